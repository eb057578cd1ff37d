"""Command R, R+, R7B and A (`cohere`, `cohere2`) with their architectures: the rule `cohere.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/{cohere,cohere2}/modeling_*.py (`DecoderLayer.forward`, `Attention.forward`) and
configuration_*.py; vllm 0.32.0, model_executor/models/commandr.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.layer_types import derive_layer_types
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, QK_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import DEFAULT_ROPE_THETA, unify_rope

_COMMON: JsonObject = {
    **CONFIG_DEFAULTS,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "head_dim": None,
    "hidden_act": "silu",
    "hidden_size": 8192,
    "initializer_range": 0.02,
    "intermediate_size": 22528,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 40,
    "num_key_value_heads": None,
    "pad_token_id": 0,
    "rope_parameters": None,
    "tie_word_embeddings": True,
    "vocab_size": 256000,
}

_TYPES: Mapping[str, JsonObject] = {
    "cohere": {**_COMMON, "architectures": ["CohereForCausalLM"], "use_qk_norm": False},
    "cohere2": {
        **_COMMON,
        "architectures": ["Cohere2ForCausalLM"],
        "layer_types": None,
        "sliding_window": 4096,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    theta = 500000.0 if entries.get("model_type") == "cohere" else DEFAULT_ROPE_THETA
    unify_rope(entries, warnings, default_theta=theta)


def _derive(entries: JsonObject) -> None:
    derive_heads(entries)
    if entries["model_type"] == "cohere2":
        derive_layer_types(entries, every=4)


COHERE = Family(
    rule="cohere.1",
    types=_TYPES,
    # One norm for attention and MLP, which are added up.
    norms={"input_layernorm": Reach.OWN, **QK_NORMS},
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS | {"logit_scale"},
    affecting=AFFECTING_KEYS
    | {
        "cache_implementation",
        "layer_switch",
        "model_max_length",
        "order_of_interleaved_layers",
        "position_embedding_type",
        "rms_norm_eps",
        "rotary_pct",
        "sliding_window_pattern",
        "use_embedding_sharing",
        "use_gated_activation",
        "use_parallel_block",
        "use_parallel_embedding",
        "use_qk_norm",
    },
    notation=_notation,
    derive=_derive,
)
