"""Phi-3, Phi-3.5 and Phi-4 (`phi3`) with their causal-LM architecture: the rule `phi3.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/phi3/modeling_phi3.py (`Phi3DecoderLayer.forward`, `Phi3Attention.forward`) and
configuration_phi3.py (`convert_rope_params_to_dict`); vllm 0.32.0, model_executor/models/phi3.py, which is its Llama.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_rope

_ORIGINAL = "original_max_position_embeddings"

_TYPES: Mapping[str, JsonObject] = {
    "phi3": {
        **CONFIG_DEFAULTS,
        "architectures": ["Phi3ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "embd_pdrop": 0.0,
        "eos_token_id": 32000,
        "head_dim": None,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": None,
        _ORIGINAL: 4096,
        "pad_token_id": 32000,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05,
        "rope_parameters": None,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    """The original length is said at the top, and read there even where the block says another one."""
    if entries.get(_ORIGINAL) is None:
        entries[_ORIGINAL] = _TYPES["phi3"][_ORIGINAL]
    original = entries[_ORIGINAL]
    for name in ("rope_scaling", "rope_parameters"):
        block = entries.get(name)
        if isinstance(block, dict) and "rope_type" not in block and block.get("type") == "su":
            entries[name] = {**block, "type": "longrope"}  # its first name
    unify_rope(entries, warnings, default_factor=1.0)
    entries[_ORIGINAL] = original


PHI3 = Family(
    rule="phi3.1",
    types=_TYPES,
    norms=NORMS,
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_KEYS | {"embd_pdrop", "resid_pdrop"},
    affecting=AFFECTING_KEYS | {"attention_bias", "partial_rotary_factor"},
    notation=_notation,
    derive=derive_heads,
)
