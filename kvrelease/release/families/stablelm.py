"""StableLM with its causal-LM architecture: the rule `stablelm.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/stablelm/modeling_stablelm.py (`StableLmDecoderLayer.forward`,
`StableLmAttention.forward`, `StableLmLayerNormPerHead`) and configuration_stablelm.py (`__post_init__`); vllm 0.32.0,
model_executor/models/stablelm.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_rope

_TYPES: Mapping[str, JsonObject] = {
    "stablelm": {
        **CONFIG_DEFAULTS,
        "architectures": ["StableLmForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "head_dim": None,
        "hidden_act": "silu",
        "hidden_dropout": 0.0,
        "hidden_size": 2560,
        "initializer_range": 0.02,
        "intermediate_size": 6912,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "qk_layernorm": False,
        "rope_parameters": None,
        "tie_word_embeddings": False,
        "use_parallel_residual": False,
        "use_qkv_bias": False,
        "vocab_size": 50304,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    unify_rope(entries, warnings, default_factor=0.25)


STABLELM = Family(
    rule="stablelm.1",
    types=_TYPES,
    # Q and K have a norm for each head; with a parallel residual the input norm is the MLP's, too.
    norms={
        "input_layernorm": Reach.OWN,
        "self_attn.k_layernorm.norms.*": Reach.OWN,
        "self_attn.q_layernorm.norms.*": Reach.NEXT,
        "post_attention_layernorm": Reach.NEXT,
    },
    projections={**ATTENTION, **gated_mlp()},
    fused=FUSED_QUERY,
    outside={"model.norm.weight": Reach.NOTHING, "model.norm.bias": Reach.NOTHING},
    harmless=HARMLESS_KEYS | {"hidden_dropout"},
    affecting=AFFECTING_KEYS | {"norm_eps", "partial_rotary_factor", "rope_pct", "rotary_scaling_factor"},
    notation=_notation,
    derive=derive_heads,
)
