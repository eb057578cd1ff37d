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
    "num_experts_per_tok": 2,
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
)
