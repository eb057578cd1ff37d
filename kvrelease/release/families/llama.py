"""Llama, Mistral, Qwen2 and Qwen3 with their own causal-LM architecture: the rule `llama.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/{llama,mistral,qwen2,qwen3}/modeling_*.py (`DecoderLayer.forward`,
`Attention.forward`) and configuration_*.py (defaults, `__post_init__`); tests hold the tables against the installed
version.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads_and_windows
from kvrelease.release.families.parts import ATTENTION, QK_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS

_COMMON_DEFAULTS: JsonObject = {
    **CONFIG_DEFAULTS,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-06,
    "rope_parameters": None,
    "tie_word_embeddings": False,
}
_QWEN_DEFAULTS: JsonObject = {
    **_COMMON_DEFAULTS,
    "intermediate_size": 22016,
    "layer_types": None,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

_TYPES: Mapping[str, JsonObject] = {
    "llama": {
        **_COMMON_DEFAULTS,
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": None,
        "intermediate_size": 11008,
        "layer_types": None,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "num_key_value_heads": None,
        "pretraining_tp": 1,
        "vocab_size": 32000,
    },
    "mistral": {
        **_COMMON_DEFAULTS,
        "architectures": ["MistralForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": None,
        "intermediate_size": 14336,
        "layer_types": None,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "vocab_size": 32000,
    },
    "qwen2": {**_QWEN_DEFAULTS, "architectures": ["Qwen2ForCausalLM"], "head_dim": None},
    "qwen3": {**_QWEN_DEFAULTS, "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128},
}

LLAMA = Family(
    rule="llama.1",
    types=_TYPES,
    norms={
        "input_layernorm": Reach.OWN,
        **QK_NORMS,
        "post_attention_layernorm": Reach.NEXT,
    },
    projections={**ATTENTION, "self_attn.kv_proj": Reach.OWN, **gated_mlp()},
    # Which engines compute, and load from no file.
    parameters={"self_attn.rotary_emb.inv_freq": Reach.NOTHING},
    # q_norm too: `llama.1` says so, and is frozen.
    fused=frozenset({"self_attn.q_proj", "self_attn.q_norm"}),
    harmless=HARMLESS_KEYS,
    affecting=AFFECTING_KEYS | {"is_llama_config", "rope_interleaved", "use_mrope"},
    derive=derive_heads_and_windows,
)
