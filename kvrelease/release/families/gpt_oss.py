"""gpt-oss: attention with sinks, experts in stacks with biases, MXFP4. Rule `gpt-oss.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/gpt_oss/modeling_gpt_oss.py (`GptOssDecoderLayer.forward`,
`eager_attention_forward`) and configuration_gpt_oss.py (`__post_init__`), integrations/mxfp4.py (`_blocks`, `_scales`);
vllm 0.32.0, model_executor/models/gpt_oss.py (`hf_to_vllm_mapper`).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.layer_types import every_nth, fill_in_layer_types
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS
from kvrelease.release.families.rope import unify_rope

# What engines take where the file says nothing about rotary scaling.
_DEFAULT_SCALING: JsonObject = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    rename_keys(entries, warnings, {"num_experts": "num_local_experts"})
    if entries.get("rope_parameters") is None and not entries.get("rope_scaling"):
        entries["rope_parameters"] = dict(_DEFAULT_SCALING)
    unify_rope(entries, warnings, default_theta=150_000.0)


def _derive(entries: JsonObject) -> None:
    derive_heads(entries)
    fill_in_layer_types(entries, every_nth(entries, 2))


GPT_OSS = Family(
    rule="gpt-oss.1",
    types={
        "gpt_oss": {
            **CONFIG_DEFAULTS,
            "architectures": ["GptOssForCausalLM"],
            "attention_bias": True,
            "attention_dropout": 0.0,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2880,
            "initializer_range": 0.02,
            "intermediate_size": 2880,
            "layer_types": None,
            "max_position_embeddings": 131072,
            "num_attention_heads": 64,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "num_local_experts": 128,
            "output_router_logits": False,
            "rms_norm_eps": 1e-05,
            "rope_parameters": None,
            "router_aux_loss_coef": 0.001,
            "sliding_window": 128,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "tie_word_embeddings": False,
            "vocab_size": 201088,
        }
    },
    norms=NORMS,
    projections={
        **ATTENTION,
        **separate_experts("mlp", "gate_proj", "up_proj", "down_proj", "gate_up_proj"),
        "mlp.router": Reach.NEXT,
    },
    parameters={**stacked_experts("mlp"), "self_attn.sinks": Reach.NEXT},
    fused=FUSED_QUERY,
    harmless=HARMLESS_OF_EXPERTS,
    affecting=AFFECTING_KEYS | {"experts_per_token", "initial_context_length"},  # published beside the keys that count
    notation=_unify,
    derive=_derive,
)
