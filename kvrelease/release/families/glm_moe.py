"""GLM-4-MoE (GLM-4.5, GLM-4.6): attention with half of each head rotated, then DeepSeek's experts. Rule `glm-moe.1`.

Pure, and frozen. Sources: transformers 5.24.0, models/glm4_moe/modeling_glm4_moe.py (`Glm4MoeDecoderLayer.forward`) and
configuration_glm4_moe.py (`__post_init__`); vllm 0.32.0, model_executor/models/glm4_moe.py.
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS, QK_NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS
from kvrelease.release.families.rope import default_rotary_part, unify_rope


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    rename_keys(
        entries,
        warnings,
        {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    )
    default_rotary_part(entries, 0.5)
    unify_rope(entries, warnings)


GLM_MOE = Family(
    rule="glm-moe.1",
    types={
        "glm4_moe": {
            **CONFIG_DEFAULTS,
            "architectures": ["Glm4MoeForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "first_k_dense_replace": 1,
            "head_dim": None,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "initializer_range": 0.02,
            "intermediate_size": 10944,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 96,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 46,
            "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1,
            "output_router_logits": False,
            "rms_norm_eps": 1e-05,
            "rope_parameters": None,
            "routed_scaling_factor": 1.0,
            "tie_word_embeddings": False,
            "topk_group": 1,
            "use_qk_norm": False,
            "vocab_size": 151552,
        }
    },
    norms={**NORMS, **QK_NORMS},
    projections={
        **ATTENTION,
        **gated_mlp(),
        **gated_mlp("mlp.shared_experts"),
        **separate_experts("mlp", "gate_proj", "up_proj", "down_proj", "gate_up_proj"),
        "mlp.gate": Reach.NEXT,
    },
    parameters={**stacked_experts("mlp"), "mlp.gate.e_score_correction_bias": Reach.NEXT},
    fused=FUSED_QUERY,
    harmless=HARMLESS_OF_EXPERTS,
    affecting=AFFECTING_KEYS,
    notation=_unify,
    derive=derive_heads,
)
