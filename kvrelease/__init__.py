"""kvrelease: a model upgrade must never answer from the old model's KV cache."""

__version__ = "0.1.0"
