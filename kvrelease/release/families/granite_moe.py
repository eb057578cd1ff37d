"""Granite-MoE (Granite 3 of a billion and of three): Mixtral with multipliers. Rule `granite-moe.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/granitemoe/modeling_granitemoe.py (`GraniteMoeDecoderLayer.forward`,
`GraniteMoeModel.forward`) and configuration_granitemoe.py; conversion_mapping.py (`granitemoe`); vllm 0.32.0,
model_executor/models/granitemoe.py (`hf_to_vllm_mapper`).
"""

from __future__ import annotations

from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS

GRANITE_MOE = Family(
    rule="granite-moe.1",
    types={
        "granitemoe": {
            **CONFIG_DEFAULTS,
            "architectures": ["GraniteMoeForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attention_multiplier": 1.0,
            "bos_token_id": 1,
            "embedding_multiplier": 1.0,
            "eos_token_id": 2,
            "head_dim": None,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "initializer_range": 0.02,
            "intermediate_size": 11008,
            "logits_scaling": 1.0,
            "max_position_embeddings": 2048,
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": None,
            "num_local_experts": 8,
            "output_router_logits": False,
            "residual_multiplier": 1.0,
            "rms_norm_eps": 1e-06,
            "rope_parameters": None,
            "router_aux_loss_coef": 0.001,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        }
    },
    norms=NORMS,
    projections={
        **ATTENTION,
        # Stacks of experts, published as modules.
        "block_sparse_moe.input_linear": Reach.NEXT,
        "block_sparse_moe.output_linear": Reach.NEXT,
        "block_sparse_moe.router": Reach.NEXT,
        "block_sparse_moe.router.layer": Reach.NEXT,
        **separate_experts("block_sparse_moe", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj"),
    },
    parameters=stacked_experts("block_sparse_moe"),
    fused=FUSED_QUERY,
    harmless=HARMLESS_OF_EXPERTS | {"logits_scaling"},  # behind the last layer
    affecting=AFFECTING_KEYS,
    derive=derive_heads,
)
