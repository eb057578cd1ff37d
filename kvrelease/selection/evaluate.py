"""What a chosen set would hit, for the set as a whole and for every beginning of it.

Pure.
"""

from __future__ import annotations

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


class Score:
    """Adds up requests against a planned sketch."""

    def __init__(self, sketch: PrefixSketch, *, prompts: int, unit_weight: float, block: int) -> None:
        """Starts at nothing.

        Args:
            sketch: planned, see `planning.plan`.
            prompts: of the set.
            unit_weight: as planned.
            block: size of a block.
        """
        self._blocks = sketch.blocks
        self._unit_weight = unit_weight
        self._block = block
        self._by_rank = [0.0] * prompts  # weight of hits by the prompt that brought the block, in blocks
        self._requests = 0
        self._weight = self._length = self._cacheable = self._ceiling = 0.0

    def add(self, cut: Cut, *, weight: float) -> None:
        """Counts one request."""
        blocks, unit_weight, by_rank = self._blocks, self._unit_weight, self._by_rank
        known = 0
        for name in cut.names:
            block = blocks.get(name)
            if block is None or block.weight <= unit_weight:
                break
            known += 1
            if block.rank >= 0:
                by_rank[block.rank] += weight
        self._requests += 1
        self._weight += weight
        self._length += weight * cut.length
        self._cacheable += weight * len(cut.names) * self._block
        self._ceiling += weight * known * self._block

    def traffic(self) -> Traffic:
        """The figures of all requests so far."""
        hits = sum(self._by_rank) * self._block
        return Traffic(
            requests=self._requests,
            weight=self._weight,
            length=self._length,
            cacheable=self._cacheable,
            hits=hits,
            hit_rate=hits / self._length if self._length else None,
            ceiling=self._ceiling / self._length if self._length else None,
        )

    def hit_rates(self, sizes: Sequence[int]) -> tuple[float | None, ...]:
        """[sizes] the hit rate of the first so many prompts of the set; None without requests."""
        if not self._length:
            return (None,) * len(sizes)
        sums = [0.0]
        for hits in self._by_rank:
            sums.append(sums[-1] + hits)
        return tuple(sums[size] * self._block / self._length for size in sizes)
