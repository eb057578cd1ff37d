"""GPT-2 with its language-model head: the rule `gpt2.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/gpt2/modeling_gpt2.py (`GPT2Block.forward`, `GPT2Attention.forward`,
`_keys_to_ignore_on_load_unexpected`) and configuration_gpt2.py (`attribute_map`); vllm 0.32.0,
model_executor/models/gpt2.py (`hf_to_vllm_mapper`, `_add_transformer_prefix`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS

# Other names that transformers takes for its own.
_SPELLINGS: Mapping[str, str] = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_SUMMARY = {
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
}

_TYPES: Mapping[str, JsonObject] = {
    "gpt2": {
        **CONFIG_DEFAULTS,
        **_SUMMARY,
        "activation_function": "gelu_new",
        "add_cross_attention": False,
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "embd_pdrop": 0.1,
        "eos_token_id": 50256,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "n_embd": 768,
        "n_head": 12,
        "n_inner": None,
        "n_layer": 12,
        "n_positions": 1024,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.1,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "vocab_size": 50257,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    rename_keys(entries, warnings, _SPELLINGS, is_null_absent=True)


def _refuse(entries: JsonObject) -> str | None:
    if entries.get("add_cross_attention"):
        return "add_cross_attention is on, so that KV also depends on an encoder"
    if any(spelling in entries for spelling in _SPELLINGS):
        return "config.json says one of its sizes twice, differently"
    return None


# The Hub's own checkpoints have no prefix, what transformers saves has one.
_STEMS = ("", "transformer.")

GPT2 = Family(
    rule="gpt2.1",
    types=_TYPES,
    layers_key="n_layer",
    stems=tuple(f"{stem}h" for stem in _STEMS),
    norms={"ln_1": Reach.OWN, "ln_2": Reach.NEXT},
    projections={
        "attn.c_attn": Reach.OWN,
        "attn.c_proj": Reach.NEXT,
        "mlp.c_fc": Reach.NEXT,
        "mlp.c_proj": Reach.NEXT,
    },
    # The causal mask, which old programs stored: engines make their own.
    parameters={"attn.bias": Reach.NOTHING, "attn.masked_bias": Reach.NOTHING},
    embeddings=frozenset(f"{stem}wte" for stem in _STEMS),
    outside={
        **{f"{stem}wpe.weight": Reach.EVERYTHING for stem in _STEMS},
        **{f"{stem}ln_f.{name}": Reach.NOTHING for stem in _STEMS for name in ("weight", "bias")},
    },
    harmless=HARMLESS_KEYS | _SUMMARY.keys() | {"attn_pdrop", "embd_pdrop", "resid_pdrop"},
    affecting=AFFECTING_KEYS | {"n_ctx"},
    notation=_notation,
    refuse=_refuse,
)
