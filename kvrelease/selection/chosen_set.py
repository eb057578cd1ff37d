"""From counted blocks to chosen prompts: what of a sketch is worth covering, and what each chosen prompt stands for.

Pure.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec

from kvrelease.selection.sketch import Block, PrefixSketch, sample_of
from kvrelease.workload.budget import Budget
from kvrelease.workload.coverage import Choice, Forest, choose
from kvrelease.workload.entry import MAX_WEIGHT


class ChosenSet(msgspec.Struct, frozen=True, kw_only=True):
    """The choice for one sketch.

    Attributes:
        choice: which prompts; `Block.rank` of the sketch tells what each covers.
        weights: [chosen] traffic that each stands for.
        hits: [chosen] traffic of the blocks that each brings, of the part of the log that is chosen from.
        unit_weight: what one request of the log weighs at least; a block is worth what comes beyond that.
        worthwhile: traffic of all blocks that it comes back to.
    """

    choice: Choice
    weights: tuple[float, ...]
    hits: tuple[float, ...]
    unit_weight: float
    worthwhile: float


def choose_set(sketch: PrefixSketch, budget: Budget, *, block: int, unit_weight: float) -> ChosenSet:
    """Chooses, and writes into each block of the sketch which chosen prompt covers it first.

    A block is worth the traffic that comes *back* to it: its own weight less that of one request. So a long prompt
    that was sent once is worth nothing, however long it is.

    Args:
        sketch: of the part of the log that is chosen from.
        budget: of the set.
        block: size of a block.
        unit_weight: the smallest weight in the log.
    """
    blocks = sorted(
        (block_ for block_ in sketch.blocks.values() if block_.weight > unit_weight), key=lambda block_: block_.depth
    )
    numbers = {id(one): number for number, one in enumerate(blocks)}
    samples = [sample_of(one) for one in blocks]
    forest = Forest(
        block=block,
        parents=array("q", [-1 if one.parent is None else numbers.get(id(one.parent), -1) for one in blocks]),
        values=array("d", [one.weight - unit_weight for one in blocks]),
        prompts=array("q", [index for _, index in samples]),
        lengths=array("q", [length for length, _ in samples]),
    )
    choice = choose(forest, budget)
    hits = [0.0] * len(choice.chosen)
    for one, rank in zip(blocks, choice.ranks, strict=True):
        one.rank = rank
        if rank >= 0:
            hits[rank] += one.weight
    return ChosenSet(
        choice=choice,
        weights=_weights(blocks, forest.parents, choice),
        hits=tuple(hits),
        unit_weight=unit_weight,
        worthwhile=math.fsum(one.weight for one in blocks),
    )


def fit_to_read(weights: Sequence[float], *, least: float) -> tuple[float, ...]:
    """[chosen] the same weights as a prompt set may have them: sums of large ones scaled down, and none zero.

    Args:
        weights: that prompts stand for; of wildly different ones the smallest may be lost to rounding.
        least: what the lightest request weighs.
    """
    scale = min(1.0, MAX_WEIGHT / max(weights, default=MAX_WEIGHT))
    return tuple((weight if weight > 0 else least) * scale for weight in weights)


def _weights(blocks: Sequence[Block], parents: Sequence[int], choice: Choice) -> tuple[float, ...]:
    """The traffic of each chosen prompt: requests whose longest covered beginning it was the first to cover."""
    weights = [0.0] * len(choice.chosen)
    for one, parent, rank in zip(blocks, parents, choice.ranks, strict=True):
        if rank < 0:
            continue
        weights[rank] += one.weight
        if parent >= 0:
            weights[choice.ranks[parent]] -= one.weight
    return tuple(weights)
