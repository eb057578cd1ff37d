"""Checked access to foreign JSON: a value of the expected type, or None.

Servers disagree about what they leave out, send as null, or send as another type. None here always means "not told".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeGuard

from kvrelease.artifacts import JsonObject

_MAX_IDS = 2**32  # as many as chained keys can name


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def as_object(value: object) -> JsonObject:
    """The object, or an empty one."""
    return value if is_object(value) else {}


def as_list(value: object) -> list[object]:
    """The array, or an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """The string, or None."""
    return value if isinstance(value, str) else None


def as_count(value: object) -> int | None:
    """A number of things: a JSON integer >= 0, or None (true is no number)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def as_number(value: object) -> float | None:
    """A JSON number, NaN and infinities included, or None; None for an integer that no float holds too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def as_ids(value: object) -> tuple[int, ...] | None:
    """An array of token ids, or None when it is anything else: no vocabulary has an id below 0 or above 32 bits."""
    if not isinstance(value, list):
        return None
    ids = [item for item in value if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < _MAX_IDS]
    return tuple(ids) if len(ids) == len(value) else None


def at(value: Mapping[str, object], *keys: str) -> object:
    """The value at a path of keys; None where the path ends early."""
    found: object = value
    for key in keys:
        found = as_object(found).get(key)
    return found


def label(value: object) -> str | None:
    """A scalar as a label, with JSON's spelling of true and false; None for null, objects and arrays."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def setting_text(value: object) -> str:
    """A setting as text; containers are spelt canonically, because digests are made of them."""
    text = label(value)
    return text.removeprefix("torch.") if text is not None else json.dumps(value, sort_keys=True)
