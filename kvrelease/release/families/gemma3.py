"""The text model of Gemma 3 with its causal-LM architecture: the rule `gemma3.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/gemma3/modeling_gemma3.py (`Gemma3DecoderLayer.forward`,
`Gemma3Attention.forward`) and configuration_gemma3.py (`Gemma3TextConfig`); vllm 0.32.0,
model_executor/models/gemma3.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.gemma import refuse_both_ways
from kvrelease.release.families.layer_types import derive_layer_types
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, QK_NORMS, SANDWICH_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_layered_rope

_TYPES: Mapping[str, JsonObject] = {
    "gemma3_text": {
        **CONFIG_DEFAULTS,
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "initializer_range": 0.02,
        "intermediate_size": 9216,
        "layer_types": None,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_parameters": None,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": False,
        "vocab_size": 262208,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    unify_layered_rope(
        entries,
        warnings,
        thetas={"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)},
        scaled="full_attention",
    )


def _derive(entries: JsonObject) -> None:
    derive_layer_types(entries, every=6)


GEMMA3 = Family(
    rule="gemma3.1",
    types=_TYPES,
    norms={
        "input_layernorm": Reach.OWN,
        **QK_NORMS,
        "post_attention_layernorm": Reach.NEXT,
        **SANDWICH_NORMS,
    },
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS | {"final_logit_softcapping"},
    affecting=AFFECTING_KEYS | {"cache_implementation", "hidden_act", "rope_local_base_freq", "sliding_window_pattern"},
    notation=_notation,
    derive=_derive,
    refuse=refuse_both_ways,
)
