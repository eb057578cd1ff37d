"""What engines compute from other keys of a configuration: heads and windows. Pure.

Sources: transformers 5.24.0, models/{llama,mistral,qwen2,qwen3}/configuration_*.py (`__post_init__`).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.layer_types import FULL, WINDOWED, fill_in_layer_types, of_each_layer


def derive_heads(entries: JsonObject) -> None:
    """As many heads of K and V as of Q, and a head's size from the hidden one, where the file says neither."""
    heads, hidden = entries.get("num_attention_heads"), entries.get("hidden_size")
    if entries.get("num_key_value_heads") is None:
        entries["num_key_value_heads"] = heads
    if entries.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        entries["head_dim"] = hidden // heads


def derive_heads_and_windows(entries: JsonObject) -> None:
    """Likewise; and, where a model type knows `use_sliding_window`, what each layer attends to."""
    derive_heads(entries)
    if "use_sliding_window" not in entries:
        return
    is_windowed = bool(entries["use_sliding_window"])
    if not is_windowed:
        entries["sliding_window"] = None
    first, has_window = entries.get("max_window_layers"), entries.get("sliding_window") is not None
    if isinstance(first, int):
        meant = of_each_layer(entries, lambda layer: WINDOWED if has_window and layer >= first else FULL)
        fill_in_layer_types(entries, meant)
    if not is_windowed:
        entries["max_window_layers"] = None  # what it would say is in layer_types
