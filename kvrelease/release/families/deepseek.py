"""DeepSeek-V2 and V3 (R1): a latent of K and V, experts in groups. Rule `deepseek.1`. Pure, and frozen.

Engines cache the latent and the rotated part of the key (`kv_a_proj_with_mqa`, `kv_a_layernorm`), or K and V as
`kv_b_proj` makes them of it; so that one counts as K and V too. Sources: transformers 5.24.0,
models/{deepseek_v2,deepseek_v3}/modeling_*.py (`Attention.forward` caches the latent) and configuration_*.py
(`__post_init__`); transformers 4.55.4, likewise (caches K and V); vllm 0.32.0, model_executor/models/deepseek_v2.py
(`DeepseekV2MLAAttention` caches the latent, `DeepseekV2Attention` K and V; `fused_qkv_a_proj`; `getattr(config, …)`
for keys that the library does not know).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.experts import HARMLESS_OF_EXPERTS, separate_experts, stacked_experts
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.notation import rename_keys
from kvrelease.release.families.parts import NORMS, gated_mlp
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS
from kvrelease.release.families.rope import unify_rope

_COMMON_DEFAULTS: JsonObject = {
    **CONFIG_DEFAULTS,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": None,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "kv_lora_rank": 512,
    "output_router_logits": False,
    "pretraining_tp": 1,
    "q_lora_rank": 1536,
    "qk_head_dim": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_parameters": None,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
}
_OTHER_NAMES = {
    "deepseek_v2": {"num_experts": "n_routed_experts"},
    "deepseek_v3": {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
}


def _unify(entries: JsonObject, warnings: list[str]) -> None:
    rename_keys(entries, warnings, _OTHER_NAMES.get(str(entries.get("model_type")), {}))
    unify_rope(entries, warnings)


def _derive(entries: JsonObject) -> None:
    """Only the rotated part of a head has the size `head_dim`."""
    if entries.get("num_key_value_heads") is None:
        entries["num_key_value_heads"] = entries.get("num_attention_heads")
    nope, rope = entries.get("qk_nope_head_dim"), entries.get("qk_rope_head_dim")
    if entries.get("head_dim") is None:
        entries["head_dim"] = rope
    if entries.get("qk_head_dim") is None and isinstance(nope, int) and isinstance(rope, int):
        entries["qk_head_dim"] = nope + rope


DEEPSEEK = Family(
    rule="deepseek.1",
    types={
        "deepseek_v2": {
            **_COMMON_DEFAULTS,
            "architectures": ["DeepseekV2ForCausalLM"],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "first_k_dense_replace": 0,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "mlp_bias": False,
            "moe_intermediate_size": 1407,
            "n_group": None,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "num_attention_heads": 32,
            "num_experts_per_tok": None,
            "num_hidden_layers": 32,
            "num_key_value_heads": None,
            "routed_scaling_factor": 1.0,
            "topk_group": None,
            "topk_method": "greedy",
            "vocab_size": 102400,
        },
        "deepseek_v3": {
            **_COMMON_DEFAULTS,
            "architectures": ["DeepseekV3ForCausalLM"],
            "bos_token_id": 0,
            "eos_token_id": 1,
            "first_k_dense_replace": 3,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "max_position_embeddings": 4096,
            "moe_intermediate_size": 2048,
            "n_group": 8,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 128,
            "num_nextn_predict_layers": 1,
            "rope_interleave": True,
            "routed_scaling_factor": 2.5,
            "topk_group": 4,
            "vocab_size": 129280,
        },
    },
    norms={**NORMS, "self_attn.kv_a_layernorm": Reach.OWN, "self_attn.q_a_layernorm": Reach.NEXT},
    projections={
        "self_attn.kv_a_proj_with_mqa": Reach.OWN,
        "self_attn.kv_b_proj": Reach.OWN,
        "self_attn.q_proj": Reach.NEXT,
        "self_attn.q_a_proj": Reach.NEXT,
        "self_attn.q_b_proj": Reach.NEXT,
        "self_attn.o_proj": Reach.NEXT,
        **gated_mlp(),
        **gated_mlp("mlp.shared_experts"),
        **separate_experts("mlp", "gate_proj", "up_proj", "down_proj", "gate_up_proj"),
        "mlp.gate": Reach.NEXT,
    },
    parameters={**stacked_experts("mlp"), "mlp.gate.e_score_correction_bias": Reach.NEXT},
    fused=frozenset({"self_attn.q_a_proj"}),  # with kv_a_proj_with_mqa
    # Of the loss; a key of Llama's that nobody reads here; and the sum of two keys that count.
    harmless=HARMLESS_OF_EXPERTS | {"aux_loss_alpha", "seq_aux", "pretraining_tp", "qk_head_dim"},
    # What vLLM, or the code that is published beside the weights, reads beyond the library's keys.
    affecting=AFFECTING_KEYS | {"ep_size", "moe_layer_freq", "moe_router_dtype", "scoring_func", "topk_method"},
    notation=_unify,
    derive=_derive,
)
