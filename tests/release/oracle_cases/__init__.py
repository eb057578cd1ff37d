"""The tiny models of the oracle, one tuple for each family of `kvrelease.release.families`."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from tests.release.oracle import Case
from tests.release.oracle_cases.experts import EXPERT_CASES

_SIZES: JsonObject = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# What every family is asked besides its own keys.
_ROPE: dict[str, tuple[object, ...]] = {
    "rope_parameters": (
        {"rope_type": "default", "rope_theta": 77.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
    "hidden_act": ("gelu",),
}

LLAMA_CASES = (
    Case(label="Llama", model_type="llama", config=_SIZES, alternatives=_ROPE),
    Case(label="Llama, tied", model_type="llama", config={**_SIZES, "tie_word_embeddings": True}, alternatives=_ROPE),
    Case(
        label="Llama, biases",
        model_type="llama",
        config={**_SIZES, "attention_bias": True, "mlp_bias": True},
        alternatives=_ROPE,
    ),
    Case(label="Mistral, window", model_type="mistral", config={**_SIZES, "sliding_window": 8}, alternatives=_ROPE),
    Case(label="Qwen2", model_type="qwen2", config=_SIZES, alternatives=_ROPE),
    Case(label="Qwen3", model_type="qwen3", config={**_SIZES, "head_dim": 8}, alternatives=_ROPE),
)

CASES = LLAMA_CASES + EXPERT_CASES
