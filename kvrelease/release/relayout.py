"""Tensors that may be others in another layout: fused, split, stacked, or under another prefix.

Names alone propose; content proves (relayout_proof.py). Sources: transformers 5.24.0, conversion_mapping.py (`mixtral`,
`qwen2_moe`: `MergeModulelist`, `Concatenate`, and `Transpose` for some) and core_model_loading.py; vllm 0.32.0,
model_executor/models/llama.py (`packed_modules_mapping`). Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvrelease.printable import first_of, listed


class RelaidStatus(enum.StrEnum):
    """What is known of the content of tensors that were laid out anew."""

    EQUAL = "equal"
    CHANGED = "changed"
    UNPROVEN = "not proven"


class Relaid(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors of the old release, and those of the new one that take their place.

    Attributes:
        old: names, in the order in which a fused tensor holds them.
        new: likewise; at least one of the two sides is a single tensor.
        status: `equal` where every byte was found again, `changed` where some were not, else `not proven`.
        experts: how many experts' tensors the single one stacks; None where it stacks none.
        layout: in which they were found: `concatenated`, or `transposed`; None where they were not, or only renamed.
        changed: of the tensors that were fused or split (of a renamed one its new name), those with other content.
        reason: why nothing is proved.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    status: RelaidStatus
    experts: int | None = None
    layout: str | None = None
    changed: tuple[str, ...] = ()
    reason: str | None = None


_WORDS = {
    RelaidStatus.EQUAL: "proven equal content",
    RelaidStatus.CHANGED: "with changed content",
    RelaidStatus.UNPROVEN: "equality not proven",
}
SAME_WEIGHTS = "the weights are the same, but names are part of the kv digest: another namespace"
NOT_READ = "its tensors were not read"

# In front of what a model's class calls its parts; savers add and drop them.
_WRAPPERS = ("model.", "language_model.", "text_model.", "transformer.", "base_model.", "module.", "_orig_mod.")
# Two names of one module (Mixtral's before transformers 5 and since).
_ALIASES = ((".block_sparse_moe.", ".mlp."),)
_EXPERT_ALIASES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}

_PARAMETER = re.compile(r"(?P<base>(?:.*\.)?)(?P<module>[^.]+)\.(?P<parameter>[^.]+)\Z", re.DOTALL)
_EXPERT = re.compile(r"(?P<base>(?:.*\.)?experts\.)(?P<expert>0|[1-9][0-9]{0,4})\.\Z", re.DOTALL)
# Module → the fused one, its place in that, and how many are fused.
_FUSED = {
    "q_proj": ("qkv_proj", 0, 3),
    "k_proj": ("qkv_proj", 1, 3),
    "v_proj": ("qkv_proj", 2, 3),
    "gate_proj": ("gate_up_proj", 0, 2),
    "up_proj": ("gate_up_proj", 1, 2),
}
# Likewise for experts, which are stacked too; a stack has no parameter of its own name.
_STACKED = {
    "gate_proj": ("gate_up_proj", 0, 2),
    "up_proj": ("gate_up_proj", 1, 2),
    "gate_up_proj": ("gate_up_proj", 0, 1),
    "down_proj": ("down_proj", 0, 1),
}
_FUSED_PARAMETERS = frozenset({"weight", "bias", "weight_scale_inv"})
_STACK_SUFFIXES = {"weight": "", "bias": "_bias", "weight_scale": "_scale", "weight_scale_inv": "_scale_inv"}


class _Place(msgspec.Struct, frozen=True):
    """Where a tensor would lie in a fused one.

    Attributes:
        whole: logical name of the fused one.
        count: tensors that are fused side by side.
        is_stack: it stacks experts.
        expert: of the tensor; 0 where it stacks none.
        place: among those side by side.
    """

    whole: str
    count: int
    is_stack: bool
    expert: int
    place: int


def logical_name(name: str) -> str:
    """A tensor's name without what savers add to it or call in two ways."""
    while wrapper := next((wrapper for wrapper in _WRAPPERS if name.startswith(wrapper)), None):
        name = name.removeprefix(wrapper)
    for old, new in _ALIASES:
        name = name.replace(old, new)
    return name


def propose_relayouts(removed: Iterable[str], added: Iterable[str]) -> tuple[Relaid, ...]:
    """Which tensors that are gone may be which ones that came; no tensor is in two of them.

    Args:
        removed: only in the old release, or found in the new one under a name that does not look like the same tensor.
        added: likewise, of the new release.

    Returns:
        By old name. Fused ones are `not proven`; a tensor with a name that means the same is `changed`, because an
        equal one would have been found by its digest.
    """
    before, after = _by_logical_name(removed), _by_logical_name(added)
    found = [
        *(Relaid(old=parts, new=(whole,), status=RelaidStatus.UNPROVEN, experts=experts, reason=NOT_READ)
          for whole, parts, experts in _fusions(wholes=after, parts=before)),
        *(Relaid(old=(whole,), new=parts, status=RelaidStatus.UNPROVEN, experts=experts, reason=NOT_READ)
          for whole, parts, experts in _fusions(wholes=before, parts=after)),
    ]  # fmt: skip
    used = {name for one in found for name in (*one.old, *one.new)}
    for logical, old in before.items():
        new = after.get(logical)
        if new is not None and old not in used and new not in used:
            found.append(Relaid(old=(old,), new=(new,), status=RelaidStatus.CHANGED, changed=(new,)))
    return tuple(sorted(found, key=lambda one: (one.old[0], one.new[0])))


def _by_logical_name(names: Iterable[str]) -> dict[str, str]:
    """Logical name → the one tensor that has it."""
    found: dict[str, str | None] = {}
    for name in sorted(names):
        logical = logical_name(name)
        found[logical] = None if logical in found else name
    return {logical: name for logical, name in found.items() if name is not None}


def _fusions(*, wholes: Mapping[str, str], parts: Mapping[str, str]) -> list[tuple[str, tuple[str, ...], int | None]]:
    """(single tensor, the ones it holds in their order, number of experts) of every complete set."""
    sets: dict[tuple[str, int, bool], dict[tuple[int, int], str]] = {}
    for logical, name in parts.items():
        for place in _places(logical):
            if place.whole in wholes:
                key = (place.whole, place.count, place.is_stack)
                sets.setdefault(key, {})[place.expert, place.place] = name
    found = []
    taken: set[str] = set()
    for (whole, count, is_stack), members in sorted(sets.items(), key=lambda item: -len(item[1])):
        experts = max(expert for expert, _ in members) + 1
        names = tuple(name for _, name in sorted(members.items()))
        if len(names) == experts * count > 1 and whole not in taken and taken.isdisjoint(names):
            found.append((wholes[whole], names, experts if is_stack else None))
            taken |= {whole, *names}
    return found


def _places(logical: str) -> list[_Place]:
    """Where a tensor of this name could lie."""
    match = _PARAMETER.match(logical)
    if match is None:
        return []
    base, module, parameter = match["base"], match["module"], match["parameter"]
    found = []
    expert = _EXPERT.match(base)
    if expert is not None:
        module = _EXPERT_ALIASES.get(module, module)
        if module in _STACKED and parameter in _STACK_SUFFIXES:
            fused, place, count = _STACKED[module]
            whole = f"{expert['base']}{fused}{_STACK_SUFFIXES[parameter]}"
            found.append(_Place(whole, count, True, int(expert["expert"]), place))
    if module in _FUSED and parameter in _FUSED_PARAMETERS:
        fused, place, count = _FUSED[module]
        found.append(_Place(f"{base}{fused}.{parameter}", count, False, 0, place))
    return found


def relaid_phrase(relaid: Sequence[Relaid], *, renamed: int) -> str:
    """What goes on under other names, for a sentence; empty where nothing does.

    Args:
        relaid: all of it.
        renamed: how many tensors have equal content under another name.
    """
    phrases = [f"renamed, proven equal content: {renamed} tensor{'s' * (renamed != 1)}"] if renamed else []
    fused = [one for one in relaid if _is_fused(one)]
    for status, words in _WORDS.items():
        some = [one for one in fused if one.status is status]
        if some:
            old, new = sum(len(one.old) for one in some), sum(len(one.new) for one in some)
            phrases.append(f"re-laid-out, {words}: {old} tensor{'s' * (old != 1)} as {new}")
    return "; ".join(phrases)


def _is_fused(one: Relaid) -> bool:
    """Whether it is more than another name."""
    return len(one.old) > 1 or len(one.new) > 1


def changed_inside(relaid: Sequence[Relaid]) -> list[str]:
    """Tensors that changed besides being laid out anew; one under another name as `old -> new`."""
    return [
        name
        for one in relaid
        for name in (one.changed if _is_fused(one) else [f"{one.old[0]} -> {one.new[0]}"] if one.changed else [])
    ]


def relaid_reasons(relaid: Sequence[Relaid]) -> list[str]:
    """What is known of the content of tensors that were laid out anew: a sentence for each kind of knowledge."""
    groups: dict[tuple[RelaidStatus, str], list[Relaid]] = {}
    for one in relaid:
        if _is_fused(one):
            groups.setdefault((one.status, one.reason or ""), []).append(one)
    reasons = []
    for (status, reason), some in sorted(groups.items()):
        what = f"{_shown(some[0])}{f', and {len(some) - 1} more like it' if len(some) > 1 else ''}"
        because = {
            RelaidStatus.EQUAL: SAME_WEIGHTS,
            RelaidStatus.CHANGED: f"other content in {listed(sorted(name for one in some for name in one.changed))}",
            RelaidStatus.UNPROVEN: reason,
        }[status]
        reasons.append(f"re-laid-out, {_WORDS[status]}: {what}: {because}")
    return reasons


def _shown(one: Relaid) -> str:
    return " as ".join(first_of([repr(name) for name in names]) for names in (one.old, one.new))
