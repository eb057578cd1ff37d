"""Qwen3-Next: layers of a gated delta net between layers of attention. Rule `qwen3-next.1`. Pure, and frozen.

A layer of the delta net caches the last inputs of its convolution and a recurrent state, which engines keep for
prefixes as they keep K and V: they are that layer's KV. Sources: transformers 5.24.0,
models/qwen3_next/modeling_qwen3_next.py (`Qwen3NextGatedDeltaNet.forward`, `Qwen3NextAttention.forward`) and
configuration_qwen3_next.py (`__post_init__`); vllm 0.32.0, model_executor/models/qwen3_next.py and
model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py (`get_state_shape`).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.layer_types import every_nth, settle_layer_types
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS, QK_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS
from kvrelease.release.families.rope import default_rotary_part, unify_rope

_INTERVAL, _DEFAULT_INTERVAL = "full_attention_interval", 4


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    default_rotary_part(entries, 0.25)
    if "mlp_only_layers" in entries and entries["mlp_only_layers"] is None:
        entries["mlp_only_layers"] = []
    unify_rope(entries, warnings)


def _derive(entries: JsonObject) -> None:
    """Which layers attend, written out of the interval; where both are said and differ, both stay."""
    by_interval = every_nth(entries, entries.get(_INTERVAL, _DEFAULT_INTERVAL), other="linear_attention")
    settle_layer_types(entries, by_interval, said_by=_INTERVAL)


QWEN3_NEXT = Family(
    rule="qwen3-next.1",
    types={
        "qwen3_next": {
            **CONFIG_DEFAULTS,
            "architectures": ["Qwen3NextForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "decoder_sparse_step": 1,
            "head_dim": 256,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 5632,
            "layer_types": None,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "max_position_embeddings": 32768,
            "mlp_only_layers": [],
            "moe_intermediate_size": 512,
            "norm_topk_prob": True,
            "num_attention_heads": 16,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "output_router_logits": False,
            "rms_norm_eps": 1e-06,
            "rope_parameters": None,
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": 512,
            "tie_word_embeddings": False,
            "vocab_size": 151936,
        }
    },
    norms={
        **NORMS,
        **QK_NORMS,
        "linear_attn.norm": Reach.NEXT,
        "linear_attn.conv1d": Reach.OWN,  # no norm, but never quantised either
    },
    projections={
        **ATTENTION,
        "linear_attn.in_proj_qkvz": Reach.OWN,
        "linear_attn.in_proj_ba": Reach.OWN,
        "linear_attn.out_proj": Reach.NEXT,
        **gated_mlp(),
        **gated_mlp("mlp.shared_expert"),
        **separate_experts("mlp", "gate_proj", "up_proj", "down_proj", "gate_up_proj"),
        "mlp.gate": Reach.NEXT,
        "mlp.shared_expert_gate": Reach.NEXT,
    },
    parameters={
        **stacked_experts("mlp"),
        "linear_attn.A_log": Reach.OWN,
        "linear_attn.dt_bias": Reach.OWN,
    },
    fused=FUSED_QUERY,
    harmless=HARMLESS_OF_EXPERTS,
    affecting=AFFECTING_KEYS | {_INTERVAL, "use_sliding_window"},
    notation=_unify,
    derive=_derive,
)
