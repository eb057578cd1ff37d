"""LFM2: short convolutions between layers of attention. Rule `lfm2.1`. Pure, and frozen.

A layer of convolution caches the last inputs of its convolution, which engines keep for prefixes as they keep K and V.
Sources: transformers 5.24.0, models/lfm2/modeling_lfm2.py (`Lfm2ShortConv.forward`, `Lfm2DecoderLayer.forward`) and
configuration_lfm2.py (`__post_init__`); vllm 0.32.0, model_executor/models/lfm2.py and
model_executor/layers/mamba/short_conv.py (`conv_state`).
"""

from __future__ import annotations

import functools

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.layer_types import FULL, fill_in_layer_types, of_each_layer, settle_layer_types
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.parts import FUSED_QUERY
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_rope

_OTHER_NAMES = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
_unify_rope = functools.partial(unify_rope, default_theta=1_000_000.0)


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    rename_keys(entries, warnings, _OTHER_NAMES)
    _unify_rope(entries, warnings)


def _derive(entries: JsonObject) -> None:
    """Which layers attend, written out of their numbers; where both are said and differ, both stay."""
    derive_heads(entries)
    attending = entries.get("full_attn_idxs")
    if attending is None:
        fill_in_layer_types(entries, of_each_layer(entries, lambda _: FULL))
    elif isinstance(attending, list):
        numbers = {number for number in attending if isinstance(number, int | float)}  # it may hold anything, and much
        by_number = of_each_layer(entries, lambda layer: FULL if layer in numbers else "conv")
        settle_layer_types(entries, by_number, said_by="full_attn_idxs")


def _refuse(entries: JsonObject) -> str | None:
    if "tie_embedding" in entries:
        return "config.json contradicts itself about tied embeddings, and engines differ in which of the two they read"
    return None


LFM2 = Family(
    rule="lfm2.1",
    types={
        "lfm2": {
            **CONFIG_DEFAULTS,
            "architectures": ["Lfm2ForCausalLM"],
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "bos_token_id": 1,
            "conv_L_cache": 3,
            "conv_bias": False,
            "eos_token_id": 2,
            "full_attn_idxs": None,
            "head_dim": None,
            "hidden_size": 2560,
            "initializer_range": 0.02,
            "intermediate_size": 12288,
            "layer_types": None,
            "max_position_embeddings": 128000,
            "norm_eps": 1e-05,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "pad_token_id": 0,
            "rope_parameters": None,
            "tie_word_embeddings": True,
            "vocab_size": 65536,
        }
    },
    norms={
        "operator_norm": Reach.OWN,
        "ffn_norm": Reach.NEXT,
        "self_attn.k_layernorm": Reach.OWN,
        "self_attn.q_layernorm": Reach.NEXT,
        "conv.conv": Reach.NEXT,  # no norm, but never quantised either; what is cached are its inputs
    },
    projections={
        "self_attn.k_proj": Reach.OWN,
        "self_attn.v_proj": Reach.OWN,
        "self_attn.qkv_proj": Reach.OWN,
        "self_attn.q_proj": Reach.NEXT,
        "self_attn.out_proj": Reach.NEXT,
        "conv.in_proj": Reach.OWN,
        "conv.out_proj": Reach.NEXT,
        "feed_forward.w1": Reach.NEXT,
        "feed_forward.w2": Reach.NEXT,
        "feed_forward.w3": Reach.NEXT,
    },
    fused=FUSED_QUERY,
    outside={"model.embedding_norm.weight": Reach.NOTHING},  # the last norm, whatever its name says
    harmless=HARMLESS_KEYS,
    # What vLLM reads, and what is published besides.
    affecting=AFFECTING_KEYS
    | {
        "block_dim",
        "block_ff_dim",
        "block_mlp_init_scale",
        "block_norm_eps",
        "block_out_init_scale",
        "block_use_swiglu",
        "block_use_xavier_init",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "num_heads",
        "tie_embedding",
        "use_pos_enc",
    },
    notation=_unify,
    derive=_derive,
    refuse=_refuse,
)
