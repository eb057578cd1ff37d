"""What each layer attends to, from the shorter notations of it. Pure.

Sources: transformers 5.24.0, models/{cohere2,gemma2,gemma3,olmo3}/configuration_*.py (`__post_init__`).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.heads import MAX_LAYERS

_PATTERN = "sliding_window_pattern"
# Written by transformers beside the types that it made of the pattern.
_REPEATED_PATTERN = "_sliding_window_pattern"


def every_nth_is_full(entries: JsonObject, every: object) -> list[str] | None:
    """The layers' types where every so many of them sees all tokens, the others a window; None without a count."""
    layers = entries.get("num_hidden_layers")
    if not isinstance(layers, int) or not isinstance(every, int) or layers >= MAX_LAYERS or every < 1:
        return None
    return ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]


def derive_layer_types(entries: JsonObject, *, every: int) -> None:
    """`layer_types` written out, from `sliding_window_pattern` or from what engines take where the file says none.

    A pattern that says no more than the types do goes; one that contradicts them stays, because older engines read it.
    """
    if entries.get("layer_types") is None:
        pattern = entries.get(_PATTERN)
        entries["layer_types"] = every_nth_is_full(entries, every if pattern is None else pattern)
    for key in (_PATTERN, _REPEATED_PATTERN):
        if entries.get(key) is None or every_nth_is_full(entries, entries[key]) == entries["layer_types"]:
            entries.pop(key, None)
