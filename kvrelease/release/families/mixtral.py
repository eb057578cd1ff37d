"""Mixtral: attention as in Llama, then experts chosen by a router. Rule `mixtral.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/mixtral/modeling_mixtral.py (`MixtralDecoderLayer.forward`,
`MixtralSparseMoeBlock.forward`) and configuration_mixtral.py; conversion_mapping.py (`mixtral`); vllm 0.32.0,
model_executor/models/mixtral.py (`hf_to_vllm_mapper`).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS
from kvrelease.release.families.rope import unify_rope

# The published name, and the one that the library has in memory.
_BLOCKS = ("block_sparse_moe", "mlp")


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    rename_keys(entries, warnings, {"num_experts": "num_local_experts"})
    unify_rope(entries, warnings, default_theta=1_000_000.0)


MIXTRAL = Family(
    rule="mixtral.1",
    types={
        "mixtral": {
            **CONFIG_DEFAULTS,
            "architectures": ["MixtralForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "head_dim": None,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "initializer_range": 0.02,
            "intermediate_size": 14336,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "output_router_logits": False,
            "rms_norm_eps": 1e-05,
            "rope_parameters": None,
            "router_aux_loss_coef": 0.001,
            "router_jitter_noise": 0.0,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        }
    },
    norms=NORMS,
    projections={
        **ATTENTION,
        **{f"{block}.gate": Reach.NEXT for block in _BLOCKS},
        # Published as w1, w2, w3; with the names of Llama in checkpoints of compressed-tensors.
        **{
            name: reach
            for block in _BLOCKS
            for name, reach in separate_experts(
                block, "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj", "gate_up_proj"
            ).items()
        },
    },
    parameters={name: reach for block in _BLOCKS for name, reach in stacked_experts(block).items()},
    fused=FUSED_QUERY,
    harmless=HARMLESS_OF_EXPERTS | {"router_jitter_noise"},  # in training only
    affecting=AFFECTING_KEYS,
    notation=_unify,
    derive=derive_heads,
)
