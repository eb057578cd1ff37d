"""Falcon (7B, 40B, 11B, RW) with its causal-LM architecture: the rule `falcon.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/falcon/modeling_falcon.py (`FalconDecoderLayer`, `FalconAttention`) and
configuration_falcon.py (`__post_init__`); vllm 0.32.0, model_executor/models/falcon.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS

_TYPES: Mapping[str, JsonObject] = {
    "falcon": {
        **CONFIG_DEFAULTS,
        "activation": "gelu",
        "alibi": False,
        "architectures": ["FalconForCausalLM"],
        "attention_dropout": 0.0,
        "bias": False,
        "bos_token_id": 11,
        "eos_token_id": 11,
        "ffn_hidden_size": None,
        "hidden_dropout": 0.0,
        "hidden_size": 4544,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 2048,
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_attention_heads": 71,
        "num_hidden_layers": 32,
        "num_kv_heads": None,
        "num_ln_in_parallel_attn": None,
        "parallel_attn": True,
        "rope_parameters": None,
        "tie_word_embeddings": True,
        "vocab_size": 65024,
    },
}


def _derive(entries: JsonObject) -> None:
    if entries["tie_word_embeddings"] is None:
        entries["tie_word_embeddings"] = True  # vLLM takes null for tied
    if entries["num_kv_heads"] is None:
        entries["num_kv_heads"] = entries["num_attention_heads"]
    if entries["ffn_hidden_size"] is None and isinstance(hidden := entries["hidden_size"], int):
        entries["ffn_hidden_size"] = 4 * hidden
    if entries["num_ln_in_parallel_attn"] is None and entries["new_decoder_architecture"] is True:
        entries["num_ln_in_parallel_attn"] = 2


FALCON = Family(
    rule="falcon.1",
    types=_TYPES,
    stems=("transformer.h",),
    # One norm for both branches (7B, 11B), one for each (40B), or one after the other (RW).
    norms={
        "input_layernorm": Reach.OWN,
        "ln_attn": Reach.OWN,
        "ln_mlp": Reach.NEXT,
        "post_attention_layernorm": Reach.NEXT,
    },
    projections={
        "self_attention.query_key_value": Reach.OWN,
        "self_attention.dense": Reach.NEXT,
        "mlp.dense_h_to_4h": Reach.NEXT,
        "mlp.dense_4h_to_h": Reach.NEXT,
    },
    embeddings=frozenset({"transformer.word_embeddings"}),
    outside={f"transformer.ln_f.{name}": Reach.NOTHING for name in ("weight", "bias")},
    harmless=HARMLESS_KEYS | {"hidden_dropout"},
    affecting=AFFECTING_KEYS | {"apply_residual_connection_post_layernorm", "n_embed"},
    derive=_derive,
)
