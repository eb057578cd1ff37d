"""Greedy choice of the prompts that cover most traffic, and how far that can be from the best choice.

Pure. The value of a set is the traffic that its blocks save: a weighted coverage, which is monotone and submodular.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import msgspec

from kvrelease.selection.budget import Budget, Spent


class Forest(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks worth covering; a block that is covered has all blocks before it covered.

    Attributes:
        block: size of a block, in the unit of lengths.
        parents: [blocks] index of the block before each, smaller than its own; -1 at the start of prompts.
        values: [blocks] traffic that comes back to each; no larger than its parent's.
        prompts: [blocks] the shortest prompt through each; of blocks with the same one, the deepest stands for it.
        lengths: [blocks] of that prompt.
    """

    block: int
    parents: Sequence[int]
    values: Sequence[float]
    prompts: Sequence[int]
    lengths: Sequence[int]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One chosen prompt.

    Attributes:
        prompt: as in `Forest.prompts`.
        leaf: index of the last block that it covers.
        length: of the prompt.
        new_blocks: that it adds to what was chosen before it, those counted by nobody else included.
        gain: traffic times units that it adds.
    """

    prompt: int
    leaf: int
    length: int
    new_blocks: int
    gain: float


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice.

    Attributes:
        chosen: in the order of choice, best first.
        value: sum of gains.
        limit: no choice within the budget is worth more.
        ranks: [blocks] position in `chosen` of the first prompt that covers each; -1 for none.
    """

    chosen: tuple[Chosen, ...]
    value: float
    limit: float
    ranks: list[int]

    @property
    def proved_share(self) -> float:
        """Value over the limit, 0 … 1: at least so much of the best choice's value; 1 with nothing to cover."""
        return min(self.value / self.limit, 1.0) if self.limit > 0 else 1.0


def choose(forest: Forest, budget: Budget) -> Choice:
    """The prompts to take.

    The prompt with most gain per cost is taken next, as long as one fits, where cost is the largest part of a limit
    that it uses; with a limit of length or blocks, prompts by gain alone are tried too, and the better of the two wins.

    With a limit of requests alone this is the best choice there is, because blocks form a forest. With a limit of
    length alone its value is at least (1 − 1/e) / 2 (32 %) of the best choice's. Where blocks are limited, whose cost
    is shared too, and with several limits, no such constant is known. `Choice.limit` bounds the best choice for this
    very forest and budget in every case, and is mostly far nearer than the constant.

    Source:
        Pardi, Goldman, "Species Choice for Comparative Genomics: Being Greedy Works", PLoS Genetics 1(6), 2005 (in a
        tree the greedy choice of k leaves has the longest union of paths); Leskovec et al., "Cost-effective Outbreak
        Detection in Networks", KDD 2007, section 3.1 (the better of both greedy orders), 3.2 (the bound of the
        instance), and CELF, the lazy evaluation that is used here.
    """
    work = _Work(forest, budget)
    best = work.greedy(per_cost=True)
    if budget.length is not None or budget.blocks is not None:
        by_gain = work.greedy(per_cost=False)
        limit = min(best.limit, by_gain.limit)
        if budget.requests is not None:
            limit = min(limit, choose(forest, Budget(requests=budget.requests)).value)
        best = msgspec.structs.replace(by_gain if by_gain.value > best.value else best, limit=limit)
    return best


class _Work:
    """What every greedy order needs of a forest."""

    def __init__(self, forest: Forest, budget: Budget) -> None:
        self._forest = forest
        self._budget = budget
        count = len(forest.parents)
        self._depths = [0] * count
        self._sums = [0.0] * count  # value of a block and all before it, in traffic times units
        deepest: dict[int, int] = {}
        for index, parent in enumerate(forest.parents):
            self._depths[index] = 1 + (self._depths[parent] if parent >= 0 else 0)
            self._sums[index] = forest.values[index] * forest.block + (self._sums[parent] if parent >= 0 else 0.0)
            prompt = forest.prompts[index]
            if prompt not in deepest or self._depths[index] > self._depths[deepest[prompt]]:
                deepest[prompt] = index
        self._leaves = list(deepest.values())
        # Blocks of the prompt behind its last one worth covering; nobody shares them.
        self._extra = [forest.lengths[leaf] // forest.block - self._depths[leaf] for leaf in range(count)]

    def greedy(self, *, per_cost: bool) -> Choice:
        forest, budget = self._forest, self._budget
        ranks = [-1] * len(forest.parents)
        spent = Spent()
        chosen: list[Chosen] = []
        heap = [(-self._score(leaf, ranks, per_cost=per_cost), forest.prompts[leaf], leaf) for leaf in self._leaves]
        heapq.heapify(heap)
        while heap:
            score, prompt, leaf = heap[0]
            gain, new_blocks = self._added(leaf, ranks)
            length = forest.lengths[leaf]
            if gain <= 0 or not spent.has_room(budget, length=length, blocks=new_blocks):
                heapq.heappop(heap)  # what has no room now never will: what others add to its way they take from it
                continue
            now = -self._score(leaf, ranks, per_cost=per_cost)
            if now > score:
                heapq.heapreplace(heap, (now, prompt, leaf))
                continue
            heapq.heappop(heap)
            spent.requests += 1
            spent.length += length
            spent.blocks += new_blocks
            index = leaf
            while index >= 0 and ranks[index] < 0:
                ranks[index] = len(chosen)
                index = forest.parents[index]
            chosen.append(Chosen(prompt=prompt, leaf=leaf, length=length, new_blocks=new_blocks, gain=gain))
        value = math.fsum(one.gain for one in chosen)
        return Choice(chosen=tuple(chosen), value=value, limit=self._limit(value, ranks), ranks=ranks)

    def _added(self, leaf: int, ranks: Sequence[int]) -> tuple[float, int]:
        """Gain and new blocks of a prompt, given what is covered."""
        index, blocks = leaf, 0
        while index >= 0 and ranks[index] < 0:
            index = self._forest.parents[index]
            blocks += 1
        return self._sums[leaf] - (self._sums[index] if index >= 0 else 0.0), blocks + self._extra[leaf]

    def _score(self, leaf: int, ranks: Sequence[int], *, per_cost: bool) -> float:
        gain, blocks = self._added(leaf, ranks)
        return gain / self._budget.share(length=self._forest.lengths[leaf], blocks=blocks) if per_cost else gain

    def _limit(self, value: float, ranks: Sequence[int]) -> float:
        """An upper bound of the value of any choice: of every limit given, as if it were the only one."""
        forest, budget = self._forest, self._budget
        if budget.length is None and budget.blocks is None:
            return value
        worth = sorted(forest.values, reverse=True)
        bounds = [math.fsum(worth) * forest.block]
        if budget.blocks is not None:
            bounds.append(math.fsum(worth[: budget.blocks]) * forest.block)
        if budget.length is not None:
            left = [(self._added(leaf, ranks)[0], forest.lengths[leaf]) for leaf in self._leaves]
            bounds.append(value + _fractional(left, budget.length))
        return min(bounds)


def _fractional(items: Sequence[tuple[float, int]], room: int) -> float:
    """The most that items of (gain, length) are worth in so much room, if the last may be cut."""
    total = 0.0
    for gain, length in sorted(items, key=lambda item: -item[0] / max(item[1], 1)):
        if length >= room:
            return total + gain * room / max(length, 1)
        total += gain
        room -= length
    return total
