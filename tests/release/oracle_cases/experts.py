"""The tiny models of the oracle that have experts, a latent cache, or layers of linear attention."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from tests.release.oracle import Case
from tests.release.oracle_cases.sizes import ROPE, SIZES

_SIZES: JsonObject = {**SIZES, "num_experts_per_tok": 3}  # of four, so that two dozen tokens reach every expert
_ASKED: dict[str, tuple[object, ...]] = {
    **ROPE,
    "hidden_act": ("gelu",),
    # Twice as many experts are not in the file.
    "num_experts_per_tok": (1,),
}
_QWEN_MOE: JsonObject = {**_SIZES, "num_experts": 4, "moe_intermediate_size": 12}
_DEEPSEEK: JsonObject = {
    **_SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 2,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
}
_LATENT_ROPE: dict[str, tuple[object, ...]] = {
    "rope_parameters": (
        ROPE["rope_parameters"][0],
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    ),
}
_GLM_EXPERTS: JsonObject = {
    key: _DEEPSEEK[key]
    for key in ("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "moe_intermediate_size")
}
_QWEN3_NEXT: JsonObject = {
    **_QWEN_MOE,
    "head_dim": 16,  # of which a quarter is rotated: two pairs, so that theta counts
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "shared_expert_intermediate_size": 20,
}
_LFM2: JsonObject = {
    **SIZES,
    "intermediate_size": 36,  # two thirds of it, up to the next multiple
    "block_multiple_of": 8,
}

EXPERT_CASES = (
    Case(label="Mixtral", model_type="mixtral", config={**_SIZES, "num_local_experts": 4}, alternatives=_ASKED),
    Case(
        label="Mixtral, window, tied",
        model_type="mixtral",
        config={**_SIZES, "num_local_experts": 4, "sliding_window": 8, "tie_word_embeddings": True},
        alternatives=_ASKED,
    ),
    Case(
        label="Qwen2-MoE",
        model_type="qwen2_moe",
        config={**_QWEN_MOE, "shared_expert_intermediate_size": 20},
        alternatives={**_ASKED, "mlp_only_layers": ([0],), "decoder_sparse_step": (2,)},
    ),
    Case(
        label="Qwen2-MoE, windows, a dense layer",
        model_type="qwen2_moe",
        config={
            **_QWEN_MOE,
            "shared_expert_intermediate_size": 20,
            "mlp_only_layers": [0],
            "use_sliding_window": True,
            "sliding_window": 8,
            "max_window_layers": 2,
        },
        alternatives={**_ASKED, "layer_types": (["full_attention"] * 3,)},
    ),
    Case(
        label="Qwen3-MoE",
        model_type="qwen3_moe",
        config={**_QWEN_MOE, "head_dim": 8, "decoder_sparse_step": 2},
        alternatives={**_ASKED, "mlp_only_layers": ([1],), "decoder_sparse_step": (1,)},
    ),
    Case(
        label="DeepSeek-V3",
        model_type="deepseek_v3",
        config=_DEEPSEEK,
        alternatives={**_ASKED, **_LATENT_ROPE, "first_k_dense_replace": (0,), "topk_group": (1,)},
    ),
    Case(
        label="DeepSeek-V3, whole query, biases",
        model_type="deepseek_v3",
        config={
            **_DEEPSEEK,
            "q_lora_rank": None,
            "attention_bias": True,
            "first_k_dense_replace": 0,
            "num_experts_per_tok": 4,
        },
        alternatives={**_ASKED, "n_group": (1,), "topk_group": (1,)},
    ),
    Case(
        label="DeepSeek-V2",
        model_type="deepseek_v2",
        config={**_DEEPSEEK, "topk_method": "group_limited_greedy"},
        alternatives={**_ASKED, "first_k_dense_replace": (0,), "topk_method": ("greedy",), "topk_group": (1,)},
    ),
    Case(
        label="gpt-oss",
        model_type="gpt_oss",
        config={**_SIZES, "num_local_experts": 4, "head_dim": 8, "sliding_window": 8},
        alternatives={**_ASKED, "layer_types": (["full_attention"] * 3,), "swiglu_limit": (0.5,)},
    ),
    Case(
        label="Qwen3-Next",
        model_type="qwen3_next",
        config={**_QWEN3_NEXT, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        alternatives={**_ASKED, "mlp_only_layers": ([0],), "decoder_sparse_step": (2,)},
    ),
    Case(
        label="Qwen3-Next, a dense layer",
        model_type="qwen3_next",
        config={
            **_QWEN3_NEXT,
            "layer_types": ["full_attention", "linear_attention", "full_attention"],
            "mlp_only_layers": [1],
            "attention_bias": True,
        },
        alternatives=_ASKED,
    ),
    Case(
        label="GLM-4-MoE",
        model_type="glm4_moe",
        config={**_SIZES, **_GLM_EXPERTS, "use_qk_norm": True, "head_dim": 8},
        alternatives={**_ASKED, "first_k_dense_replace": (0,), "topk_group": (1,)},
    ),
    Case(
        label="GLM-4-MoE, biases",
        model_type="glm4_moe",
        config={**_SIZES, **_GLM_EXPERTS, "attention_bias": True, "head_dim": 8, "first_k_dense_replace": 2},
        alternatives=_ASKED,
    ),
    Case(
        label="OLMoE",
        model_type="olmoe",
        config={**_SIZES, "num_experts": 4},
        alternatives={**_ASKED, "clip_qkv": (0.5,)},
    ),
    Case(
        label="Granite-MoE",
        model_type="granitemoe",
        config={**_SIZES, "num_local_experts": 4, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
        alternatives=_ASKED,
    ),
    Case(
        label="LFM2",
        model_type="lfm2",
        config={**_LFM2, "layer_types": ["conv", "full_attention", "conv"]},
        alternatives=ROPE,
    ),
    Case(
        label="LFM2, biases, untied",
        model_type="lfm2",
        config={
            **_LFM2,
            "layer_types": ["full_attention", "conv", "full_attention"],
            "conv_bias": True,
            "tie_word_embeddings": False,
        },
        alternatives=ROPE,
    ),
)
