"""EXAONE 4.0 with its causal-LM architecture: the rule `exaone4.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/exaone4/modeling_exaone4.py (`Exaone4DecoderLayer.forward`,
`Exaone4Attention.forward`) and configuration_exaone4.py (`__post_init__`); vllm 0.32.0,
model_executor/models/exaone4.py (`getattr(config, …)` for keys that the library does not know).
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.layer_types import derive_layer_types
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, POST_NORMS, QK_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS

_TYPES: Mapping[str, JsonObject] = {
    "exaone4": {
        **CONFIG_DEFAULTS,
        "architectures": ["Exaone4ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "head_dim": None,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 16384,
        "layer_types": None,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-05,
        "rope_parameters": None,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "tie_word_embeddings": False,
        "vocab_size": 102400,
    },
}


def _derive(entries: JsonObject) -> None:
    """Which layers have a window; a pattern in letters (`LLLG`), which some engines read, stays, and counts."""
    derive_heads(entries)
    if entries["sliding_window"] is None:
        entries["sliding_window_pattern"] = 0  # as transformers writes it
    derive_layer_types(entries, every=4)


EXAONE4 = Family(
    rule="exaone4.1",
    types=_TYPES,
    norms={**QK_NORMS, **POST_NORMS},
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS,
    affecting=AFFECTING_KEYS | {"attention_bias", "bias", "mlp_bias"},
    derive=_derive,
)
