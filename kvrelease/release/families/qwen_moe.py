"""Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B) and Qwen3-MoE: rule `qwen-moe.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/{qwen2_moe,qwen3_moe}/modeling_*.py (`DecoderLayer.forward`,
`SparseMoeBlock.forward`) and configuration_*.py (`__post_init__`); conversion_mapping.py (`qwen2_moe`); vllm 0.32.0,
model_executor/models/{qwen2_moe,qwen3_moe}.py.
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.layer_types import FULL, WINDOWED, fill_in_layer_types, of_each_layer
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS, QK_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS
from kvrelease.release.families.rope import unify_rope

_COMMON_DEFAULTS: JsonObject = {
    **CONFIG_DEFAULTS,
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "head_dim": None,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "mlp_only_layers": [],
    "norm_topk_prob": False,
    "num_hidden_layers": 24,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_parameters": None,
    "router_aux_loss_coef": 0.001,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    if entries.get("model_type") == "qwen3_moe":  # qwen2_moe writes what Qwen publishes
        rename_keys(entries, warnings, {"num_experts": "num_local_experts"})
    if "mlp_only_layers" in entries and entries["mlp_only_layers"] is None:
        entries["mlp_only_layers"] = []
    unify_rope(entries, warnings)


def _derive(entries: JsonObject) -> None:
    derive_heads(entries)
    if not entries["use_sliding_window"]:
        entries["sliding_window"] = None
    last, is_windowed = entries.get("max_window_layers"), bool(entries["use_sliding_window"])
    if entries.get("model_type") == "qwen2_moe" and isinstance(last, int):
        # Every other one of the first layers: not as in Qwen2.
        meant = of_each_layer(
            entries, lambda layer: WINDOWED if is_windowed and layer < last and layer % 2 == 0 else FULL
        )
        fill_in_layer_types(entries, meant)


QWEN_MOE = Family(
    rule="qwen-moe.1",
    types={
        "qwen2_moe": {
            **_COMMON_DEFAULTS,
            "architectures": ["Qwen2MoeForCausalLM"],
            "intermediate_size": 5632,
            "layer_types": None,
            "max_window_layers": 28,
            "moe_intermediate_size": 1408,
            "num_attention_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "num_key_value_heads": 16,
            "qkv_bias": True,
            "shared_expert_intermediate_size": 5632,
        },
        "qwen3_moe": {
            **_COMMON_DEFAULTS,
            "architectures": ["Qwen3MoeForCausalLM"],
            "attention_bias": False,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_attention_heads": 32,
            "num_experts_per_tok": 8,
            "num_key_value_heads": 4,
            "num_local_experts": 128,
        },
    },
    norms={**NORMS, **QK_NORMS},
    projections={
        **ATTENTION,
        **gated_mlp(),
        **gated_mlp("mlp.shared_expert"),
        **separate_experts("mlp", "gate_proj", "up_proj", "down_proj", "gate_up_proj"),
        "mlp.gate": Reach.NEXT,
        "mlp.shared_expert_gate": Reach.NEXT,
    },
    parameters=stacked_experts("mlp"),
    fused=FUSED_QUERY,
    harmless=HARMLESS_OF_EXPERTS,
    affecting=AFFECTING_KEYS | {"max_window_layers"},
    notation=_unify,
    derive=_derive,
)
