"""The tiny models of the oracle that have experts, a latent cache, or layers of linear attention."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from tests.release.oracle import Case

_SIZES: JsonObject = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 3,  # of four, so that two dozen tokens reach every expert
}
_ROPE: dict[str, tuple[object, ...]] = {
    "rope_parameters": (
        {"rope_type": "default", "rope_theta": 77.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
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
        {"rope_type": "default", "rope_theta": 77.0},
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
    **{key: value for key, value in _SIZES.items() if key != "num_experts_per_tok"},
    "intermediate_size": 36,  # two thirds of it, up to the next multiple
    "block_multiple_of": 8,
}
_SHORT_CONV_ROPE: dict[str, tuple[object, ...]] = {"rope_parameters": _ROPE["rope_parameters"]}

EXPERT_CASES = (
    Case(label="Mixtral", model_type="mixtral", config={**_SIZES, "num_local_experts": 4}, alternatives=_ROPE),
    Case(
        label="Mixtral, window, tied",
        model_type="mixtral",
        config={**_SIZES, "num_local_experts": 4, "sliding_window": 8, "tie_word_embeddings": True},
        alternatives=_ROPE,
    ),
    Case(
        label="Qwen2-MoE",
        model_type="qwen2_moe",
        config={**_QWEN_MOE, "shared_expert_intermediate_size": 20},
        alternatives={**_ROPE, "mlp_only_layers": ([0],), "decoder_sparse_step": (2,)},
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
        alternatives={**_ROPE, "layer_types": (["full_attention"] * 3,)},
    ),
    Case(
        label="Qwen3-MoE",
        model_type="qwen3_moe",
        config={**_QWEN_MOE, "head_dim": 8, "decoder_sparse_step": 2},
        alternatives={**_ROPE, "mlp_only_layers": ([1],), "decoder_sparse_step": (1,)},
    ),
    Case(
        label="DeepSeek-V3",
        model_type="deepseek_v3",
        config=_DEEPSEEK,
        alternatives={**_ROPE, **_LATENT_ROPE, "first_k_dense_replace": (0,), "topk_group": (1,)},
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
        alternatives={**_ROPE, "n_group": (1,), "topk_group": (1,)},
    ),
    Case(
        label="DeepSeek-V2",
        model_type="deepseek_v2",
        config={**_DEEPSEEK, "topk_method": "group_limited_greedy"},
        alternatives={**_ROPE, "first_k_dense_replace": (0,), "topk_method": ("greedy",), "topk_group": (1,)},
    ),
    Case(
        label="gpt-oss",
        model_type="gpt_oss",
        config={**_SIZES, "num_local_experts": 4, "head_dim": 8, "sliding_window": 8},
        alternatives={**_ROPE, "layer_types": (["full_attention"] * 3,), "swiglu_limit": (0.5,)},
    ),
    Case(
        label="Qwen3-Next",
        model_type="qwen3_next",
        config={**_QWEN3_NEXT, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        alternatives={**_ROPE, "mlp_only_layers": ([0],), "decoder_sparse_step": (2,)},
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
        alternatives=_ROPE,
    ),
    Case(
        label="GLM-4-MoE",
        model_type="glm4_moe",
        config={**_SIZES, **_GLM_EXPERTS, "use_qk_norm": True, "head_dim": 8},
        alternatives={**_ROPE, "first_k_dense_replace": (0,), "topk_group": (1,)},
    ),
    Case(
        label="GLM-4-MoE, biases",
        model_type="glm4_moe",
        config={**_SIZES, **_GLM_EXPERTS, "attention_bias": True, "head_dim": 8, "first_k_dense_replace": 2},
        alternatives=_ROPE,
    ),
    Case(
        label="OLMoE",
        model_type="olmoe",
        config={**_SIZES, "num_experts": 4},
        alternatives={**_ROPE, "clip_qkv": (0.5,)},
    ),
    Case(
        label="Granite-MoE",
        model_type="granitemoe",
        config={**_SIZES, "num_local_experts": 4, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
        alternatives=_ROPE,
    ),
    Case(
        label="LFM2",
        model_type="lfm2",
        config={**_LFM2, "layer_types": ["conv", "full_attention", "conv"]},
        alternatives=_SHORT_CONV_ROPE,
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
        alternatives=_SHORT_CONV_ROPE,
    ),
)
