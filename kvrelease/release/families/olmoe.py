"""OLMoE: norms over all heads of Q and of K, clipped projections, experts. Rule `olmoe.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/olmoe/modeling_olmoe.py (`OlmoeAttention.forward`, `OlmoeDecoderLayer.forward`) and
configuration_olmoe.py; vllm 0.32.0, model_executor/models/olmoe.py.
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS, QK_NORMS
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS
from kvrelease.release.families.rope import unify_rope


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    rename_keys(entries, warnings, {"num_local_experts": "num_experts"})
    unify_rope(entries, warnings)


OLMOE = Family(
    rule="olmoe.1",
    types={
        "olmoe": {
            **CONFIG_DEFAULTS,
            "architectures": ["OlmoeForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "clip_qkv": None,
            "eos_token_id": 50279,
            "head_dim": None,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "initializer_range": 0.02,
            "intermediate_size": 2048,
            "max_position_embeddings": 4096,
            "norm_topk_prob": False,
            "num_attention_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 16,
            "num_key_value_heads": None,
            "output_router_logits": False,
            "pad_token_id": 1,
            "rms_norm_eps": 1e-05,
            "rope_parameters": None,
            "router_aux_loss_coef": 0.01,
            "tie_word_embeddings": False,
            "vocab_size": 50304,
        }
    },
    norms={**NORMS, **QK_NORMS},
    projections={
        **ATTENTION,
        **separate_experts("mlp", "gate_proj", "up_proj", "down_proj", "gate_up_proj"),
        "mlp.gate": Reach.NEXT,
    },
    parameters=stacked_experts("mlp"),
    fused=FUSED_QUERY,
    harmless=HARMLESS_OF_EXPERTS,
    affecting=AFFECTING_KEYS,
    notation=_unify,
    derive=derive_heads,
)
