"""Granite 3 (dense) with its causal-LM architecture: the rule `granite.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/granite/modeling_granite.py (`GraniteDecoderLayer.forward`,
`GraniteModel.forward`) and configuration_granite.py; vllm 0.32.0, model_executor/models/granite.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS

_TYPES: Mapping[str, JsonObject] = {
    "granite": {
        **CONFIG_DEFAULTS,
        "architectures": ["GraniteForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_multiplier": 1.0,
        "bos_token_id": 1,
        "embedding_multiplier": 1.0,
        "eos_token_id": 2,
        "head_dim": None,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 11008,
        "logits_scaling": 1.0,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": None,
        "residual_multiplier": 1.0,
        "rms_norm_eps": 1e-06,
        "rope_parameters": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
}

GRANITE = Family(
    rule="granite.1",
    types=_TYPES,
    norms=NORMS,
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS | {"logits_scaling"},
    affecting=AFFECTING_KEYS,
    derive=derive_heads,
)
