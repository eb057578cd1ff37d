"""The notations of rotary parameters, made one. Pure.

Source: transformers 5.24.0, modeling_rope_utils.py (`convert_rope_params_to_dict`, `standardize_rope_params`), and the
same method of models/{gemma3,gpt_neox,olmo3,phi3}/configuration_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value

DEFAULT_ROPE_THETA = 10000.0

# Older files say these beside the block, not in it.
_AT_THE_TOP = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_LENGTH_SCALED = ("llama3", "yarn", "longrope")
_NONE: Mapping[str, str] = {}


def unify_rope(
    entries: JsonObject,
    warnings: list[str],
    *,
    default_theta: float = DEFAULT_ROPE_THETA,
    default_factor: float | None = None,
    spellings: Mapping[str, str] = _NONE,
) -> None:
    """One `rope_parameters` out of `rope_theta`, `rope_scaling`, `partial_rotary_factor` and itself, in place.

    Nothing is dropped that is not said elsewhere: where two notations contradict each other, every key stays, and
    counts.

    Args:
        entries: of `config.json`, absent keys not filled in yet.
        warnings: takes contradictions.
        default_theta: what engines take where the file says none.
        default_factor: likewise for `partial_rotary_factor`; None where the family has none.
        spellings: the family's own key at the top → its name in the block. The common one is then not read, but may
            repeat it.
    """
    read = {**spellings, **{key: key for key in _AT_THE_TOP if key not in spellings.values()}}
    defaults: JsonObject = {"rope_theta": default_theta}
    if default_factor is not None:
        defaults["partial_rotary_factor"] = default_factor
    stated = [block for name in ("rope_scaling", "rope_parameters") if (block := entries.get(name))]
    unified = [_unified(block, entries, top=read, defaults=defaults) for block in stated or [{}]]
    if any(rope is None for rope in unified):
        return  # no known notation
    if not all(same_value(rope, unified[0]) for rope in unified):
        warnings.append("config.json has a rope_scaling and another rope_parameters; engines differ")
        return
    rope = unified[0] or {}
    entries.pop("rope_scaling", None)
    entries["rope_parameters"] = rope
    for key, name in {**spellings, **{key: key for key in _AT_THE_TOP}}.items():
        if name == "partial_rotary_factor" and default_factor is not None and entries.get(key, name) is None:
            continue  # null, which some engines take for the default and some for none
        _drop_what_is_said(entries, warnings, key=key, said=rope.get(name))


def default_rotary_part(entries: JsonObject, factor: float) -> None:
    """How much of a head is rotated where the file does not say, in place, before notations are unified.

    For the rules `glm-moe.1` and `qwen3-next.1`, which were published so: to `default_factor` a null is not said, and
    stays beside the default; here it says that there is no factor. Both are frozen; a further rule takes the other.
    """
    chosen = entries.get("rope_scaling") or entries.get("rope_parameters") or {}
    if "partial_rotary_factor" not in entries and isinstance(chosen, dict) and "partial_rotary_factor" not in chosen:
        entries["partial_rotary_factor"] = factor


def unify_layered_rope(
    entries: JsonObject, warnings: list[str], *, thetas: Mapping[str, tuple[str, float]], scaled: str
) -> None:
    """One `rope_parameters` with a block for each type of layer, likewise.

    Args:
        entries: of `config.json`, absent keys not filled in yet.
        warnings: takes contradictions.
        thetas: type of layer → its theta's key at the top, and what engines take where the file says none.
        scaled: the type of layer that a `rope_scaling` at the top is for.
    """
    blocks = entries.get("rope_parameters") or {}
    scaling = entries.get("rope_scaling") or {}
    if not isinstance(blocks, dict) or not isinstance(scaling, dict) or not blocks.keys() <= thetas.keys():
        return  # no known notation
    if "type" in scaling and scaling["type"] != scaling.get("rope_type"):
        return  # transformers goes by the block's own `rope_type`, which is then the default one
    ropes: JsonObject = {}
    said: dict[str, list[object]] = {}
    for layer_type, (key, theta) in thetas.items():
        block = blocks.get(layer_type) or {}
        if not isinstance(block, dict):
            return
        if layer_type == scaled:
            if any(name in block and not same_value(block[name], scaling[name]) for name in scaling):
                warnings.append("config.json has a rope_scaling and another rope_parameters; engines differ")
                return
            block = {**block, **scaling}
        rope = _unified(block, entries, top={key: "rope_theta"}, defaults={"rope_theta": theta})
        if rope is None:
            return
        ropes[layer_type] = rope
        said.setdefault(key, []).append(rope["rope_theta"])
    entries.pop("rope_scaling", None)
    entries["rope_parameters"] = ropes
    for key, values in said.items():
        is_one = all(same_value(value, values[0]) for value in values)
        _drop_what_is_said(entries, warnings, key=key, said=values[0] if is_one else values)


def _unified(
    block: object, entries: JsonObject, *, top: Mapping[str, str], defaults: Mapping[str, object]
) -> JsonObject | None:
    """One notation with what is said at the top filled in; None where it is not known."""
    if not isinstance(block, dict) or any(isinstance(value, dict) for value in block.values()):
        return None
    rope = {**block}
    legacy_type = rope.pop("type", None)
    rope.setdefault("rope_type", legacy_type if legacy_type is not None else "default")
    if legacy_type is not None and legacy_type != rope["rope_type"]:
        rope["type"] = legacy_type  # engines differ
    for key, name in top.items():
        if entries.get(key) is not None:
            rope.setdefault(name, entries[key])
    for name, value in defaults.items():
        rope.setdefault(name, value)
    if rope["rope_type"] in _LENGTH_SCALED and "max_position_embeddings" in entries:
        rope.setdefault("original_max_position_embeddings", entries["max_position_embeddings"])
    return rope


def _drop_what_is_said(entries: JsonObject, warnings: list[str], *, key: str, said: object) -> None:
    """A key at the top that only repeats what the block says goes; one that contradicts it stays."""
    if entries.get(key) is None or same_value(entries[key], said):
        entries.pop(key, None)
    else:
        warnings.append(
            f"config.json says {key} {entries[key]!r} at its top, {said!r} in its rotary parameters; engines differ"
        )
