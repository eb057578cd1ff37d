"""Phi-1, Phi-1.5 and Phi-2 with their causal-LM architecture: the rule `phi.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/phi/modeling_phi.py (`PhiDecoderLayer.forward`, `PhiAttention.forward`) and
configuration_phi.py (`__post_init__`); vllm 0.32.0 runs the same code, model_executor/models/transformers/.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.parts import FUSED_QUERY
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS
from kvrelease.release.families.rope import unify_rope

_TYPES: Mapping[str, JsonObject] = {
    "phi": {
        **CONFIG_DEFAULTS,
        "architectures": ["PhiForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "embd_pdrop": 0.0,
        "eos_token_id": 2,
        "head_dim": None,
        "hidden_act": "gelu_new",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 24,
        "num_key_value_heads": None,
        "qk_layernorm": False,
        "resid_pdrop": 0.0,
        "rope_parameters": None,
        "tie_word_embeddings": False,
        "vocab_size": 51200,
    },
}


def _notation(entries: JsonObject, warnings: list[str]) -> None:
    unify_rope(entries, warnings, default_factor=0.5)


PHI = Family(
    rule="phi.1",
    types=_TYPES,
    # One norm for attention and MLP, which are added up.
    norms={"input_layernorm": Reach.OWN, "self_attn.k_layernorm": Reach.OWN, "self_attn.q_layernorm": Reach.NEXT},
    projections={
        "self_attn.k_proj": Reach.OWN,
        "self_attn.v_proj": Reach.OWN,
        "self_attn.q_proj": Reach.NEXT,
        "self_attn.dense": Reach.NEXT,
        "mlp.fc1": Reach.NEXT,
        "mlp.fc2": Reach.NEXT,
    },
    fused=FUSED_QUERY,
    outside={
        "model.final_layernorm.weight": Reach.NOTHING,
        "model.final_layernorm.bias": Reach.NOTHING,
        "lm_head.bias": Reach.NOTHING,
    },
    harmless=HARMLESS_KEYS | {"embd_pdrop", "resid_pdrop"},
    affecting=AFFECTING_KEYS | {"partial_rotary_factor"},
    notation=_notation,
    derive=derive_heads,
)
