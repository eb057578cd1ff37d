"""OLMo 2 and OLMo 3 with their causal-LM architectures: the rule `olmo.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/{olmo2,olmo3}/modeling_*.py (`DecoderLayer.forward`, `Attention.forward`) and
configuration_*.py; vllm 0.32.0 runs the same code, model_executor/models/transformers/.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value
from kvrelease.release.families.family import Family
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.layer_types import every_nth, fill_in_layer_types
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, POST_NORMS, QK_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_layered_rope, unify_rope

_COMMON: JsonObject = {
    **CONFIG_DEFAULTS,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": 50279,
    "head_dim": None,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": None,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-05,
    "rope_parameters": None,
    "tie_word_embeddings": False,
    "vocab_size": 50304,
}

_TYPES: Mapping[str, JsonObject] = {
    "olmo2": {**_COMMON, "architectures": ["Olmo2ForCausalLM"]},
    "olmo3": {**_COMMON, "architectures": ["Olmo3ForCausalLM"], "layer_types": None, "sliding_window": 4096},
}
_OLMO3_THETA = 500000.0


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    if entries.get("model_type") == "olmo2":
        unify_rope(entries, warnings)
    elif entries.get("rope_theta") is None or same_value(entries["rope_theta"], _OLMO3_THETA):
        # Another theta at the top is for all layers in some engines, for the full ones alone in transformers.
        thetas = dict.fromkeys(("full_attention", "sliding_attention"), ("rope_theta", _OLMO3_THETA))
        unify_layered_rope(entries, warnings, thetas=thetas, scaled="full_attention")


def _derive(entries: JsonObject) -> None:
    derive_heads(entries)
    if entries["model_type"] == "olmo3":
        fill_in_layer_types(entries, every_nth(entries, 4))


OLMO = Family(
    rule="olmo.1",
    types=_TYPES,
    norms={**QK_NORMS, **POST_NORMS},
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS,
    affecting=AFFECTING_KEYS,
    notation=_notation,
    derive=_derive,
)
