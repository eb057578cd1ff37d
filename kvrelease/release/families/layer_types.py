"""What each layer attends to, from the shorter notations of it. Pure.

Sources: transformers 5.24.0, models/{cohere2,gemma2,gemma3,lfm2,olmo3,qwen2,qwen2_moe,qwen3_next,smollm3}/
configuration_*.py (`__post_init__`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value

# A hostile configuration must not make a list of a billion layers.
MAX_LAYERS = 10_000
# The types, as transformers spells them.
FULL, WINDOWED = "full_attention", "sliding_attention"

_Kind = TypeVar("_Kind", str, int)

_PATTERN = "sliding_window_pattern"
# Written by transformers beside the types that it made of the pattern.
_REPEATED_PATTERN = "_sliding_window_pattern"


def of_each_layer(entries: JsonObject, kind_of: Callable[[int], _Kind]) -> list[_Kind] | None:
    """What holds of each layer, by its number; None where the configuration has no such number of layers."""
    layers = entries.get("num_hidden_layers")
    if not isinstance(layers, int) or layers >= MAX_LAYERS:
        return None
    return [kind_of(layer) for layer in range(layers)]


def every_nth(entries: JsonObject, every: object, *, full: str = FULL, other: str = WINDOWED) -> list[str] | None:
    """The layers' types where every so many of them is full; None without a count."""
    if not isinstance(every, int) or every < 1:
        return None
    return of_each_layer(entries, lambda layer: other if (layer + 1) % every else full)


def fill_in_layer_types(entries: JsonObject, meant: list[str] | None) -> None:
    """`layer_types` written out in place, where the file says none."""
    if meant is not None and entries.get("layer_types") is None:
        entries["layer_types"] = meant


def settle_layer_types(entries: JsonObject, meant: list[str] | None, *, said_by: str) -> None:
    """Likewise, and the shorter notation goes where it says no more than the types do; else both stay, and count."""
    fill_in_layer_types(entries, meant)
    if meant is not None and same_value(entries["layer_types"], meant):
        entries.pop(said_by, None)


def derive_layer_types(entries: JsonObject, *, every: int) -> None:
    """`layer_types` written out, from `sliding_window_pattern` or from what engines take where the file says none.

    A pattern that says no more than the types do goes; one that contradicts them stays, because older engines read it.
    """
    if entries.get("layer_types") is None:
        pattern = entries.get(_PATTERN)
        entries["layer_types"] = every_nth(entries, every if pattern is None else pattern)
    for key in (_PATTERN, _REPEATED_PATTERN):
        if entries.get(key) is None or every_nth(entries, entries[key]) == entries["layer_types"]:
            entries.pop(key, None)
