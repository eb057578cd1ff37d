"""Gemma and Gemma 2 with their causal-LM architectures: the rule `gemma.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/{gemma,gemma2}/modeling_*.py (`DecoderLayer.forward`, `Attention.forward`) and
configuration_*.py; vllm 0.32.0, model_executor/models/{gemma,gemma2}.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.layer_types import every_nth, fill_in_layer_types
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, SANDWICH_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS

_COMMON: JsonObject = {
    **CONFIG_DEFAULTS,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": None,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": None,
    "vocab_size": 256000,
}

_TYPES: Mapping[str, JsonObject] = {
    "gemma": {
        **_COMMON,
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 16,
    },
    "gemma2": {
        **_COMMON,
        "architectures": ["Gemma2ForCausalLM"],
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "layer_types": None,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
}


def _derive(entries: JsonObject) -> None:
    """Every second layer of a Gemma 2 is full."""
    if entries["model_type"] == "gemma2":
        fill_in_layer_types(entries, every_nth(entries, 2))


def refuse_both_ways(entries: JsonObject) -> str | None:
    """Models that embed texts attend to what comes later, too."""
    if entries.get("use_bidirectional_attention"):
        return "use_bidirectional_attention is on, so that KV also depends on later tokens"
    return None


GEMMA = Family(
    rule="gemma.1",
    types=_TYPES,
    norms={
        "input_layernorm": Reach.OWN,
        "post_attention_layernorm": Reach.NEXT,
        **SANDWICH_NORMS,
    },
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS | {"final_logit_softcapping"},
    affecting=AFFECTING_KEYS | {"cache_implementation", "hidden_act", "hidden_activation", "sliding_window_size"},
    derive=_derive,
    refuse=refuse_both_ways,
)
