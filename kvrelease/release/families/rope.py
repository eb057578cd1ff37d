"""The two notations of rotary parameters, made one. Pure.

Source: transformers 5.24.0, modeling_rope_utils.py (`convert_rope_params_to_dict`, `standardize_rope_params`).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value

DEFAULT_ROPE_THETA = 10000.0

# Older files say these beside the block, not in it.
_AT_THE_TOP = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_LENGTH_SCALED = ("llama3", "yarn", "longrope")


def unify_rope(entries: JsonObject, warnings: list[str], *, default_theta: float = DEFAULT_ROPE_THETA) -> None:
    """One `rope_parameters` out of `rope_theta`, `rope_scaling`, `partial_rotary_factor` and itself, in place.

    Nothing is dropped that is not said elsewhere: where two notations contradict each other, every key stays, and
    counts.

    Args:
        entries: of `config.json`, absent keys not filled in yet.
        warnings: takes contradictions.
        default_theta: what engines take where the file says none.
    """
    stated = [block for name in ("rope_scaling", "rope_parameters") if (block := entries.get(name))]
    unified = [_unified(block, entries, default_theta=default_theta) for block in stated or [{}]]
    if any(rope is None for rope in unified):
        return  # no known notation
    if not all(same_value(rope, unified[0]) for rope in unified):
        warnings.append("config.json has a rope_scaling and another rope_parameters; engines differ")
        return
    rope = unified[0] or {}
    entries.pop("rope_scaling", None)
    entries["rope_parameters"] = rope
    for key in _AT_THE_TOP:
        if entries.get(key) is None or same_value(entries[key], rope[key]):
            entries.pop(key, None)
        else:
            warnings.append(
                f"config.json says {key} {entries[key]!r} at its top, {rope[key]!r} in its rotary parameters; "
                "engines differ"
            )


def _unified(block: object, entries: JsonObject, *, default_theta: float) -> JsonObject | None:
    """One notation with what is said at the top filled in; None where it is not known."""
    if not isinstance(block, dict) or any(isinstance(value, dict) for value in block.values()):
        return None
    rope = {key: value for key, value in block.items() if key != "type"}
    legacy_type = block.get("type")
    rope.setdefault("rope_type", legacy_type if legacy_type is not None else "default")
    for key in _AT_THE_TOP:
        if entries.get(key) is not None:
            rope.setdefault(key, entries[key])
    rope.setdefault("rope_theta", default_theta)
    if rope["rope_type"] in _LENGTH_SCALED and "max_position_embeddings" in entries:
        rope.setdefault("original_max_position_embeddings", entries["max_position_embeddings"])
    return rope
