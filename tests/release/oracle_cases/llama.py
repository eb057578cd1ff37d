"""Tiny models of the family `llama`."""

from __future__ import annotations

from tests.release.oracle import Case
from tests.release.oracle_cases.sizes import ACTIVATION, ROPE, SIZES

_ASKED = {**ROPE, **ACTIVATION}

LLAMA_CASES = (
    Case(label="Llama", model_type="llama", config=SIZES, alternatives=_ASKED),
    Case(label="Llama, tied", model_type="llama", config={**SIZES, "tie_word_embeddings": True}, alternatives=_ASKED),
    Case(
        label="Llama, biases",
        model_type="llama",
        config={**SIZES, "attention_bias": True, "mlp_bias": True},
        alternatives=_ASKED,
    ),
    Case(label="Mistral, window", model_type="mistral", config={**SIZES, "sliding_window": 8}, alternatives=_ASKED),
    Case(label="Qwen2", model_type="qwen2", config=SIZES, alternatives=_ASKED),
    Case(label="Qwen3", model_type="qwen3", config={**SIZES, "head_dim": 8}, alternatives=_ASKED),
)
