"""GLM-4 (`glm`, `glm4`) with its causal-LM architectures: the rule `glm.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/{glm,glm4}/modeling_*.py (`DecoderLayer.forward`, `Attention.forward`) and
configuration_*.py (`__post_init__`); vllm 0.32.0, model_executor/models/glm4.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_rope

_COMMON: JsonObject = {
    **CONFIG_DEFAULTS,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 13696,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "pad_token_id": 151329,
    "rms_norm_eps": 1.5625e-07,
    "rope_parameters": None,
    "tie_word_embeddings": False,
    "vocab_size": 151552,
}

_TYPES: Mapping[str, JsonObject] = {
    "glm": {**_COMMON, "architectures": ["GlmForCausalLM"]},
    "glm4": {**_COMMON, "architectures": ["Glm4ForCausalLM"]},
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    unify_rope(entries, warnings, default_factor=0.5)


GLM = Family(
    rule="glm.1",
    types=_TYPES,
    # GLM-4 0414 also norms what attention and MLP give back.
    norms={
        "input_layernorm": Reach.OWN,
        "post_self_attn_layernorm": Reach.NEXT,
        "post_attention_layernorm": Reach.NEXT,
        "post_mlp_layernorm": Reach.NEXT,
    },
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS,
    affecting=AFFECTING_KEYS | {"partial_rotary_factor"},
    notation=_notation,
    derive=derive_heads,
)
