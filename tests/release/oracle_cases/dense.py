"""Tiny models of the dense families beyond Llama's."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from tests.release.oracle import Case
from tests.release.oracle_cases.sizes import ACTIVATION, ROPE, SIZES

_PADDED: JsonObject = {**SIZES, "pad_token_id": 3}
_HEAD: JsonObject = {**SIZES, "head_dim": 8}
_HEAD_PADDED: JsonObject = {**_HEAD, "pad_token_id": 3}
_WITHOUT_KV_HEADS: JsonObject = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
_PART_ROTATED: dict[str, tuple[object, ...]] = {
    "rope_parameters": (
        {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5},
        {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    ),
}
_HIDDEN_ACTIVATION: dict[str, tuple[object, ...]] = {"hidden_activation": ("relu",)}
_BOTH_FULL: dict[str, tuple[object, ...]] = {"layer_types": (["full_attention"] * 3,)}
_CAPS: dict[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None, 0.5),
    "final_logit_softcapping": (None, 0.5),
}
_LAYERED_ROPE: dict[str, tuple[object, ...]] = {
    "rope_parameters": (
        {
            "full_attention": {"rope_type": "default", "rope_theta": 77.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 77.0},
        },
    ),
}

_GEMMA = (
    Case(label="Gemma", model_type="gemma", config=_HEAD, alternatives={**ROPE, **ACTIVATION}),
    Case(
        label="Gemma, untied, biases",
        model_type="gemma",
        config={**_HEAD, "tie_word_embeddings": False, "attention_bias": True},
        alternatives={**ROPE, **ACTIVATION},
    ),
    Case(
        label="Gemma 2",
        model_type="gemma2",
        config={**_HEAD, "sliding_window": 8, "query_pre_attn_scalar": 8},
        alternatives={**ROPE, **_HIDDEN_ACTIVATION, **_CAPS, **_BOTH_FULL},
    ),
    Case(
        label="Gemma 2, no caps, untied, biases",
        model_type="gemma2",
        config={
            **_HEAD,
            "sliding_window": 8,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        alternatives={**ROPE, **_HIDDEN_ACTIVATION, **_CAPS, **_BOTH_FULL},
    ),
    Case(
        label="Gemma 3 text",
        model_type="gemma3_text",
        config={
            **_HEAD,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        alternatives={**_LAYERED_ROPE, **_HIDDEN_ACTIVATION, **_CAPS, **_BOTH_FULL},
    ),
    Case(
        label="Gemma 3 text, caps, untied, biases",
        model_type="gemma3_text",
        config={
            **_HEAD,
            "sliding_window": 8,
            "attn_logit_softcapping": 1.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        alternatives={**_LAYERED_ROPE, **_HIDDEN_ACTIVATION, **_CAPS, **_BOTH_FULL},
    ),
)

_PHI3_ASKED: dict[str, tuple[object, ...]] = {
    "rope_parameters": ({"rope_type": "default", "rope_theta": 77.0},),
    **ACTIVATION,
}
_PHI3 = (
    Case(label="Phi-3", model_type="phi3", config={**_PADDED, "sliding_window": 8}, alternatives=_PHI3_ASKED),
    Case(
        label="Phi-3, longrope, part rotated, tied",
        model_type="phi3",
        config={
            **_PADDED,
            "hidden_size": 32,
            "original_max_position_embeddings": 16,
            "rope_parameters": {
                "rope_type": "longrope",
                "short_factor": [1.0, 2.0],
                "long_factor": [1.0, 8.0],
                "partial_rotary_factor": 0.5,
            },
            "tie_word_embeddings": True,
        },
        alternatives={
            "rope_parameters": (
                {
                    "rope_type": "longrope",
                    "short_factor": [1.0, 2.0],
                    "long_factor": [1.0, 4.0],
                    "partial_rotary_factor": 0.5,
                },
                {"rope_type": "default", "partial_rotary_factor": 0.5},
            ),
            **ACTIVATION,
        },
    ),
)

_GPT2_SIZES: JsonObject = {"vocab_size": 32, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 64}
_GPT2_ASKED: dict[str, tuple[object, ...]] = {"activation_function": ("relu",), "n_inner": (24,)}
_GPT2 = (
    Case(
        label="GPT-2, as on the Hub",
        model_type="gpt2",
        config=_GPT2_SIZES,
        alternatives=_GPT2_ASKED,
        prefix="transformer.",
        buffers={f"h.{layer}.attn.{name}": (1, 1, 4, 4) for layer in range(3) for name in ("bias", "masked_bias")},
    ),
    Case(
        label="GPT-2, untied, scaled by layer",
        model_type="gpt2",
        config={
            **_GPT2_SIZES,
            "n_inner": 24,
            "tie_word_embeddings": False,
            "scale_attn_by_inverse_layer_idx": True,
            "reorder_and_upcast_attn": True,
        },
        alternatives=_GPT2_ASKED,
    ),
)

_NEOX_SIZES: JsonObject = {**_WITHOUT_KV_HEADS, "hidden_size": 32}
_NEOX = (
    Case(
        label="GPT-NeoX, as Pythia's",
        model_type="gpt_neox",
        config=_NEOX_SIZES,
        alternatives={**_PART_ROTATED, **ACTIVATION},
        buffers={
            f"gpt_neox.layers.{layer}.attention.{name}": (4,)
            for layer in range(3)
            for name in ("bias", "masked_bias", "rotary_emb.inv_freq")
        },
    ),
    Case(
        label="GPT-NeoX, one after the other, tied",
        model_type="gpt_neox",
        config={**_NEOX_SIZES, "use_parallel_residual": False, "tie_word_embeddings": True},
        alternatives={**_PART_ROTATED, **ACTIVATION},
    ),
    Case(
        label="GPT-NeoX, no biases",
        model_type="gpt_neox",
        config={**_NEOX_SIZES, "attention_bias": False},
        alternatives={**_PART_ROTATED, **ACTIVATION},
    ),
)

_FALCON_SIZES: JsonObject = {
    key: value
    for key, value in _WITHOUT_KV_HEADS.items()
    if key not in ("intermediate_size", "max_position_embeddings")
}
_FALCON_ASKED: dict[str, tuple[object, ...]] = {**ROPE, "activation": ("relu",)}
_FALCON = (
    Case(label="Falcon, as 7B", model_type="falcon", config=_FALCON_SIZES, alternatives=_FALCON_ASKED),
    Case(
        label="Falcon, as 40B",
        model_type="falcon",
        config={**_FALCON_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2},
        alternatives=_FALCON_ASKED,
    ),
    Case(
        label="Falcon, as 11B",
        model_type="falcon",
        config={
            **_FALCON_SIZES,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 24,
            "tie_word_embeddings": False,
        },
        alternatives=_FALCON_ASKED,
    ),
    Case(
        label="Falcon, as RW",
        model_type="falcon",
        config={
            **_FALCON_SIZES,
            "alibi": True,
            "multi_query": False,
            "num_kv_heads": 4,
            "parallel_attn": False,
            "bias": True,
        },
        alternatives={"activation": ("relu",)},
    ),
)

_COHERE = (
    Case(label="Command R", model_type="cohere", config=SIZES, alternatives={**ROPE, **ACTIVATION}),
    Case(
        label="Command R+, untied, biases",
        model_type="cohere",
        config={**SIZES, "use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False},
        alternatives={**ROPE, **ACTIVATION},
    ),
    Case(
        label="Command R7B",
        model_type="cohere2",
        config={
            **SIZES,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        alternatives={**ROPE, **ACTIVATION, **_BOTH_FULL},
    ),
)

_OLMO = (
    Case(label="OLMo 2", model_type="olmo2", config=SIZES, alternatives={**ROPE, **ACTIVATION}),
    Case(
        label="OLMo 2, tied, biases",
        model_type="olmo2",
        config={**SIZES, "tie_word_embeddings": True, "attention_bias": True},
        alternatives={**ROPE, **ACTIVATION},
    ),
    Case(
        label="OLMo 3",
        model_type="olmo3",
        config={
            **SIZES,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        alternatives={**_LAYERED_ROPE, **ACTIVATION, **_BOTH_FULL},
    ),
)

_EXAONE = (
    Case(
        label="EXAONE 4.0 32B",
        model_type="exaone4",
        config={**SIZES, "sliding_window": 8, "sliding_window_pattern": 2},
        alternatives={**ROPE, **ACTIVATION, **_BOTH_FULL, "sliding_window": (None, 16)},
    ),
    Case(
        label="EXAONE 4.0 1.2B, no windows, tied",
        model_type="exaone4",
        config={**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True},
        alternatives={**ROPE, **ACTIVATION, "sliding_window": (8,)},
    ),
)

_GLM = (
    Case(label="GLM", model_type="glm", config=_HEAD_PADDED, alternatives={**_PART_ROTATED, **ACTIVATION}),
    Case(label="GLM-4 0414", model_type="glm4", config=_HEAD_PADDED, alternatives={**_PART_ROTATED, **ACTIVATION}),
    Case(
        label="GLM-4 0414, no biases, tied",
        model_type="glm4",
        config={**_HEAD_PADDED, "attention_bias": False, "tie_word_embeddings": True},
        alternatives={**_PART_ROTATED, **ACTIVATION},
    ),
)

_LARGER: JsonObject = {**SIZES, "hidden_size": 32}
_OTHERS = (
    Case(
        label="Granite",
        model_type="granite",
        config={**SIZES, "attention_bias": True, "mlp_bias": True},
        alternatives={**ROPE, **ACTIVATION},
    ),
    Case(label="Phi-2", model_type="phi", config=_LARGER, alternatives={**_PART_ROTATED, **ACTIVATION}),
    Case(
        label="Phi-2, normed Q and K",
        model_type="phi",
        config={**_LARGER, "qk_layernorm": True},
        alternatives={**_PART_ROTATED, **ACTIVATION},
    ),
    Case(
        label="SmolLM3",
        model_type="smollm3",
        config={**_PADDED, "no_rope_layer_interval": 2, "sliding_window": 8, "use_sliding_window": True},
        alternatives={**ROPE, **ACTIVATION, **_BOTH_FULL, "no_rope_layers": ([1, 1, 1],)},
    ),
    Case(label="StableLM", model_type="stablelm", config=_LARGER, alternatives={**_PART_ROTATED, **ACTIVATION}),
    Case(
        label="StableLM, parallel, normed Q and K, biases",
        model_type="stablelm",
        config={**_LARGER, "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
        alternatives={**_PART_ROTATED, **ACTIVATION},
    ),
    Case(
        label="StarCoder2",
        model_type="starcoder2",
        config={**SIZES, "sliding_window": 8},
        alternatives={**ROPE, **ACTIVATION},
    ),
)

DENSE_CASES = (*_GEMMA, *_PHI3, *_GPT2, *_NEOX, *_FALCON, *_COHERE, *_OLMO, *_EXAONE, *_GLM, *_OTHERS)
