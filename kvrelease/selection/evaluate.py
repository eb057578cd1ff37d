"""What a chosen set would hit, for the set as a whole and for every beginning of it.

Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from kvrelease.selection.cutting import Cut
from kvrelease.selection.sketch import PrefixSketch


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests, and what a set hits of them.

    Attributes:
        requests: lines of the log.
        weight: requests that they stand for.
        length: of all prompts, by weight.
        cacheable: of that, what the best cache could hit, by weight.
        hits: what the set alone hits: the cache holds it, and nothing else that these requests bring.
        hit_rate: hits over length, 0 … 1; None without requests.
        ceiling: the same for a set without limits, chosen by the same rule; None likewise.
    """

    requests: int
    weight: float
    length: float
    cacheable: float
    hits: float
    hit_rate: float | None
    ceiling: float | None


class Sums(msgspec.Struct, kw_only=True):
    """Requests, added up; changes as they come.

    Attributes:
        requests: lines of the log.
        weight: requests that they stand for.
        length: of all prompts, by weight.
        cacheable: blocks of them, by weight.
    """

    requests: int = 0
    weight: float = 0.0
    length: float = 0.0
    cacheable: float = 0.0

    def add(self, cut: Cut, *, weight: float) -> None:
        """Counts one request."""
        self.requests += 1
        self.weight += weight
        self.length += weight * cut.length
        self.cacheable += weight * len(cut.names)


class Score(msgspec.Struct, kw_only=True):
    """What a set hits of some requests; changes as they come.

    Attributes:
        sums: of the requests.
        hits: [prompts of the set] blocks that each brought, by weight of their hits.
        known: blocks that a set without limits would hit, by weight.
    """

    sums: Sums
    hits: list[float]
    known: float = 0.0

    def add(self, cut: Cut, sketch: PrefixSketch, *, unit_weight: float, weight: float) -> None:
        """Counts one request.

        Args:
            cut: the request.
            sketch: after `chosen_set.choose_set`.
            unit_weight: that it was chosen with.
            weight: requests that it stands for.
        """
        self.sums.add(cut, weight=weight)
        for name in cut.names:
            block = sketch.blocks.get(name)
            if block is None or block.weight <= unit_weight:
                break
            self.known += weight
            if block.rank >= 0:
                self.hits[block.rank] += weight

    def traffic(self, block: int) -> Traffic:
        """The figures, for blocks of that size."""
        length = self.sums.length
        hits = sum(self.hits) * block
        return Traffic(
            requests=self.sums.requests,
            weight=self.sums.weight,
            length=length,
            cacheable=self.sums.cacheable * block,
            hits=hits,
            hit_rate=hits / length if length else None,
            ceiling=self.known * block / length if length else None,
        )

    def hit_rates(self, sizes: Sequence[int], block: int) -> tuple[float | None, ...]:
        """[sizes] the hit rate of the first so many prompts of the set; None without requests."""
        if not self.sums.length:
            return (None,) * len(sizes)
        sums = [0.0, *itertools.accumulate(self.hits)]
        return tuple(sums[size] * block / self.sums.length for size in sizes)
