"""How large the tiny models are, and what every family is asked besides its own keys."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject

SIZES: JsonObject = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ROPE: dict[str, tuple[object, ...]] = {
    "rope_parameters": (
        {"rope_type": "default", "rope_theta": 77.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
}
ACTIVATION: dict[str, tuple[object, ...]] = {"hidden_act": ("relu",)}
