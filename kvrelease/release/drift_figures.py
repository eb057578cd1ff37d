"""How far tensors moved, as figures: one record for each tensor, and their roll-up by layer. Pure.

All figures of two tensors follow from five sums over their elements, so that pieces of a tensor, and the tensors of a
layer, can be added up. Definitions: docs/drift.md.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Sequence

import msgspec

# `model.layers.3.`, `transformer.h.3.`, `gpt_neox.layers.3.`, `blk.3.`, `vision_tower.blocks.3.`
_IN_LAYER = re.compile(r"((?:.*?\.)?(?:layers?|h|blocks?|blk))\.(0|[1-9][0-9]{0,5})\.", re.DOTALL)


class DriftStatus(enum.StrEnum):
    """What is known about one tensor that both releases have."""

    EQUAL = "equal"
    MEASURED = "measured"
    NON_FINITE = "non-finite"
    FOLDED = "in its weight"
    INCOMPARABLE = "incomparable"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How far one tensor moved. Figures are None where they are not known, never zero.

    Attributes:
        tensor: name in the new release.
        status: `equal`, proved by the digests and not read; `measured`; `non-finite`, where NaN or infinite elements
            leave no figures; `in its weight`, a scale that was multiplied into the weight it belongs to;
            `incomparable`.
        layer: number of the layer that its name tells; None outside of layers.
        elements: of the tensor; None where it is incomparable.
        relative: |new - old| ∕ |old| in the L2 norm; None where the old tensor is zero and the new one is not.
        cosine: of the angle between the two; None where exactly one of them is zero.
        largest: the largest |new - old| of one element.
        changed: share of elements with another value.
        non_finite: elements that are NaN or infinite on either side; None where the tensor was not read.
        was: name in the old release, where it has another one.
        reason: why there are no figures, or how they were made.
    """

    tensor: str
    status: DriftStatus
    layer: int | None
    elements: int | None = None
    relative: float | None = None
    cosine: float | None = None
    largest: float | None = None
    changed: float | None = None
    non_finite: int | None = None
    was: str | None = None
    reason: str | None = None


class LayerDrift(msgspec.Struct, frozen=True, kw_only=True):
    """How far the tensors of one layer moved together.

    Attributes:
        name: what the names of its tensors begin with, such as `model.layers.3`; empty for those outside of layers.
        layer: its number; None for those outside of layers.
        tensors: that both releases have.
        equal: of these, proved equal.
        moved: of these, measured; the norms below are over them alone, because equal ones are not read.
        without_figures: of these, incomparable or with elements that are not finite.
        relative: |new - old| ∕ |old| over all elements that moved tensors have; None where there are none.
        cosine: of the angle between them, as one vector.
        largest: the largest |new - old| of one element.
        changed: share of the elements with another value, equal tensors' included; None where some are not known.
    """

    name: str
    layer: int | None
    tensors: int
    equal: int
    moved: int
    without_figures: int
    relative: float | None
    cosine: float | None
    largest: float | None
    changed: float | None


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--drift` found.

    Attributes:
        tensors: one record for each tensor that both releases have, by name.
        layers: their roll-up.
        notes: what the records leave out.
    """

    tensors: tuple[Drift, ...]
    layers: tuple[LayerDrift, ...]
    notes: tuple[str, ...] = ()


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over pairs of elements, of which those that are not finite on either side are left out.

    Attributes:
        elements: pairs, all of them.
        old_square: of old².
        new_square: of new².
        moved_square: of (new - old)².
        largest: |new - old|.
        changed: pairs with different values; two NaN are no change.
        non_finite: pairs that were left out.
    """

    elements: int
    old_square: float
    new_square: float
    moved_square: float
    largest: float
    changed: int
    non_finite: int


def added_up(parts: Iterable[Sums]) -> Sums:
    """The sums of all elements, whichever piece or tensor they are in."""
    pieces = tuple(parts)
    return Sums(
        elements=sum(part.elements for part in pieces),
        old_square=math.fsum(part.old_square for part in pieces),
        new_square=math.fsum(part.new_square for part in pieces),
        moved_square=math.fsum(part.moved_square for part in pieces),
        largest=max((part.largest for part in pieces), default=0.0),
        changed=sum(part.changed for part in pieces),
        non_finite=sum(part.non_finite for part in pieces),
    )


def relative(sums: Sums) -> float | None:
    """|new - old| ∕ |old|; None where only the old side is zero."""
    if sums.moved_square == 0:
        return 0.0
    return math.sqrt(sums.moved_square / sums.old_square) if sums.old_square > 0 else None


def cosine(sums: Sums) -> float | None:
    """Cosine of the angle between old and new; None where one of them is zero.

    From |new - old|² = (|new| - |old|)² + 2·|old|·|new|·(1 - cos): unlike the dot product it leaves 1 - cos its digits
    where the two are nearly equal.
    """
    if sums.moved_square == 0:
        return 1.0
    old, new = math.sqrt(sums.old_square), math.sqrt(sums.new_square)
    if old == 0 or new == 0:
        return None
    lengthened = (sums.new_square - sums.old_square) / (old + new)
    return max(-1.0, min(1.0, 1 - (sums.moved_square - lengthened**2) / (2 * old * new)))


def measured(tensor: str, sums: Sums, *, was: str | None = None, how: str | None = None) -> Drift:
    """The record of a tensor whose elements were read."""
    drift = Drift(
        tensor=tensor,
        status=DriftStatus.MEASURED,
        layer=layer_of(tensor)[1],
        elements=sums.elements,
        changed=sums.changed / sums.elements if sums.elements else 0.0,
        non_finite=sums.non_finite,
        was=was,
        reason=how,
    )
    why = None
    if sums.non_finite:
        why = f"{sums.non_finite} of {sums.elements} elements are NaN or infinite in one of the releases, or in both"
    elif not all(map(math.isfinite, (sums.old_square, sums.new_square, sums.moved_square))):
        why = "the squares of its elements are beyond float64"
    if why is not None:
        return msgspec.structs.replace(drift, status=DriftStatus.NON_FINITE, reason=why)
    return msgspec.structs.replace(drift, relative=relative(sums), cosine=cosine(sums), largest=sums.largest)


def equal(tensor: str, *, elements: int, was: str | None = None) -> Drift:
    """The record of a tensor whose digests prove that no byte differs."""
    return Drift(
        tensor=tensor,
        status=DriftStatus.EQUAL,
        layer=layer_of(tensor)[1],
        elements=elements,
        relative=0.0,
        cosine=1.0,
        largest=0.0,
        changed=0.0,
        was=was,
    )


def layer_of(tensor: str) -> tuple[str, int | None]:
    """What the name of a tensor begins with up to the number of its layer, and that number."""
    match = _IN_LAYER.match(tensor)
    return ("", None) if match is None else (f"{match[1]}.{match[2]}", int(match[2]))


def roll_up(tensors: Sequence[Drift], sums: dict[str, Sums]) -> tuple[LayerDrift, ...]:
    """One record for each layer, in the order of the layers, those outside of any first.

    Args:
        tensors: all records.
        sums: name of a tensor that was read → its sums.
    """
    groups: dict[tuple[str, int], list[Drift]] = {}
    for drift in tensors:
        name, layer = layer_of(drift.tensor)
        prefix = "" if layer is None else name.removesuffix(f".{layer}")
        groups.setdefault((prefix, -1 if layer is None else layer), []).append(drift)
    return tuple(
        _roll_up(f"{prefix}.{layer}" if layer >= 0 else "", None if layer < 0 else layer, drifts, sums)
        for (prefix, layer), drifts in sorted(groups.items())
    )


def _roll_up(name: str, layer: int | None, drifts: Sequence[Drift], sums: dict[str, Sums]) -> LayerDrift:
    count = {status: sum(drift.status is status for drift in drifts) for status in DriftStatus}
    without = count[DriftStatus.INCOMPARABLE] + count[DriftStatus.NON_FINITE]
    moved = [drift for drift in drifts if drift.status is DriftStatus.MEASURED]
    total = added_up(sums[drift.tensor] for drift in moved)
    elements = sum(drift.elements or 0 for drift in drifts if drift.status in (DriftStatus.EQUAL, DriftStatus.MEASURED))
    has_figures = bool(moved) or not without
    return LayerDrift(
        name=name,
        layer=layer,
        tensors=len(drifts),
        equal=count[DriftStatus.EQUAL],
        moved=len(moved),
        without_figures=without,
        relative=relative(total) if has_figures else None,
        cosine=cosine(total) if has_figures else None,
        largest=total.largest if has_figures else None,
        changed=None if without else total.changed / elements if elements else 0.0,
    )
