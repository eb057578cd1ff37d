"""The two notations of rotary parameters, made one. Pure.

Source: transformers 5.24.0, modeling_rope_utils.py (`convert_rope_params_to_dict`, `standardize_rope_params`).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value

DEFAULT_ROPE_THETA = 10000.0

_LENGTH_SCALED = ("llama3", "yarn", "longrope")


def unify_rope(entries: JsonObject, warnings: list[str], *, default_theta: float = DEFAULT_ROPE_THETA) -> None:
    """One `rope_parameters` out of `rope_theta`, `rope_scaling`, `partial_rotary_factor` and itself, in place.

    Args:
        entries: of `config.json`, absent keys not filled in yet.
        warnings: takes contradictions; the keys that contradict each other stay, and count.
        default_theta: what engines take where the file says none.
    """
    scaling, parameters = entries.get("rope_scaling"), entries.get("rope_parameters")
    chosen = scaling or parameters or {}
    if not isinstance(chosen, dict) or any(isinstance(value, dict) for value in chosen.values()):
        return  # no known notation: every key stays as it is, and counts
    rope = dict(chosen)
    legacy_type = rope.pop("type", None)
    rope.setdefault("rope_type", legacy_type if legacy_type is not None else "default")
    for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        value = entries.get(key)
        if value is None:
            entries.pop(key, None)
        elif key not in rope or same_value(rope[key], value):
            rope[key] = entries.pop(key)
        else:
            warnings.append(
                f"config.json says {key} {value!r} at its top, {rope[key]!r} in its rotary parameters; engines differ"
            )
    rope.setdefault("rope_theta", default_theta)
    if rope["rope_type"] in _LENGTH_SCALED and "max_position_embeddings" in entries:
        rope.setdefault("original_max_position_embeddings", entries["max_position_embeddings"])
    if scaling and parameters and not same_value(scaling, parameters):
        warnings.append("config.json has a rope_scaling and another rope_parameters; engines differ")
        return
    entries.pop("rope_scaling", None)
    entries["rope_parameters"] = rope
