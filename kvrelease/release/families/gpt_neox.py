"""GPT-NeoX and Pythia with their causal-LM architecture: the rule `gpt-neox.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/gpt_neox/modeling_gpt_neox.py (`GPTNeoXLayer.forward`,
`GPTNeoXAttention.forward`, `_keys_to_ignore_on_load_unexpected`) and configuration_gpt_neox.py
(`convert_rope_params_to_dict`); vllm 0.32.0 runs the same code, model_executor/models/transformers/.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.parts import NORMS
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_rope

_TYPES: Mapping[str, JsonObject] = {
    "gpt_neox": {
        **CONFIG_DEFAULTS,
        "architectures": ["GPTNeoXForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "classifier_dropout": 0.1,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout": 0.0,
        "hidden_size": 6144,
        "initializer_range": 0.02,
        "intermediate_size": 24576,
        "is_decoder": False,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "num_attention_heads": 64,
        "num_hidden_layers": 44,
        "rope_parameters": None,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "vocab_size": 50432,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    spellings = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
    unify_rope(entries, warnings, default_factor=0.25, spellings=spellings)


GPT_NEOX = Family(
    rule="gpt-neox.1",
    types=_TYPES,
    stems=("gpt_neox.layers",),
    # With a parallel residual the second norm reads the layer's input, without one what attention made of it.
    norms=NORMS,
    projections={
        "attention.query_key_value": Reach.OWN,
        "attention.dense": Reach.NEXT,
        "mlp.dense_h_to_4h": Reach.NEXT,
        "mlp.dense_4h_to_h": Reach.NEXT,
    },
    parameters={
        # The causal mask, which old programs stored: engines make their own.
        "attention.bias": Reach.NOTHING,
        "attention.masked_bias": Reach.NOTHING,
        # transformers computes it; TGI has read the stored one, which is rounded to the checkpoint's dtype.
        "attention.rotary_emb.inv_freq": Reach.OWN,
    },
    embeddings=frozenset({"gpt_neox.embed_in"}),
    outputs=frozenset({"embed_out", "lm_head"}),
    outside={f"gpt_neox.final_layer_norm.{name}": Reach.NOTHING for name in ("weight", "bias")},
    harmless=HARMLESS_KEYS | {"classifier_dropout", "hidden_dropout"},
    affecting=AFFECTING_KEYS | {"partial_rotary_factor", "rotary_emb_base", "rotary_pct"},
    notation=_notation,
)
