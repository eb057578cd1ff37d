"""Tiny models of the dense families beyond Llama's."""

from __future__ import annotations

from tests.release.oracle import Case
from tests.release.oracle_cases.sizes import ACTIVATION, ROPE, SIZES

_HEAD = {**SIZES, "head_dim": 8}
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

DENSE_CASES = (*_GEMMA,)
