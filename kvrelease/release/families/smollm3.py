"""SmolLM3 with its causal-LM architecture: the rule `smollm3.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/smollm3/modeling_smollm3.py (`SmolLM3DecoderLayer.forward`,
`SmolLM3Attention.forward`) and configuration_smollm3.py (`__post_init__`); vllm 0.32.0 runs the same code,
model_executor/models/transformers/.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.layer_types import FULL, WINDOWED, fill_in_layer_types, of_each_layer
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_rope

_TYPES: Mapping[str, JsonObject] = {
    "smollm3": {
        **CONFIG_DEFAULTS,
        "architectures": ["SmolLM3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "head_dim": None,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 11008,
        "layer_types": None,
        "max_position_embeddings": 32768,
        "mlp_bias": False,
        "no_rope_layer_interval": 4,
        "no_rope_layers": None,
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 4,
        "pad_token_id": 128004,
        "rms_norm_eps": 1e-06,
        "rope_parameters": None,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 128256,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    unify_rope(entries, warnings, default_theta=2e6)


def _derive(entries: JsonObject) -> None:
    """Which layers rotate (1) and which don't (0), and what those that don't attend to."""
    derive_heads(entries)
    interval = entries["no_rope_layer_interval"]
    if not isinstance(interval, int) or interval < 1:
        return
    meant = of_each_layer(entries, lambda layer: int((layer + 1) % interval != 0))
    if meant is None:
        return
    if entries["no_rope_layers"] is None:
        entries["no_rope_layers"] = meant
    rotates = entries["no_rope_layers"]
    if isinstance(rotates, list) and len(rotates) == len(meant):
        is_windowed = bool(entries["use_sliding_window"]) and entries["sliding_window"] is not None
        types = [WINDOWED if is_windowed and not rotated else FULL for rotated in rotates]
        fill_in_layer_types(entries, types)


SMOLLM3 = Family(
    rule="smollm3.1",
    types=_TYPES,
    norms=NORMS,
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS,
    affecting=AFFECTING_KEYS | {"max_window_layers", "pretraining_tp"},
    notation=_notation,
    derive=_derive,
)
