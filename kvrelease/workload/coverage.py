"""Greedy choice of the prompts that cover most traffic, and how far that can be from the best choice.

Pure. The value of a set is the traffic that its blocks save: a weighted coverage, which is monotone and submodular.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from kvrelease.workload.budget import Budget, Spent

# What one more prompt is worth: by the traffic times units that it adds, its length, and the blocks that it adds.
_Score = Callable[[float, int, int], float]


class Forest(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks worth covering; a block that is covered has all blocks before it covered.

    Attributes:
        block: size of a block, in the unit of lengths.
        parents: [nodes] index of the node before each, smaller than its own; -1 at the start of prompts.
        values: [nodes] traffic that comes back to each of its blocks; no larger than its parent's.
        prompts: [nodes] the shortest prompt through each; of nodes with the same one, the deepest stands for it.
        lengths: [nodes] of that prompt.
        sizes: [nodes] blocks of each, which the same prompts go through; None for one block each.
    """

    block: int
    parents: Sequence[int]
    values: Sequence[float]
    prompts: Sequence[int]
    lengths: Sequence[int]
    sizes: Sequence[int] | None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One chosen prompt.

    Attributes:
        prompt: as in `Forest.prompts`.
        leaf: index of the last node that it covers.
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
        ranks: [nodes] position in `chosen` of the first prompt that covers each; -1 for none.
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
    best = work.greedy(lambda gain, length, blocks: gain / budget.share(length=length, blocks=blocks))
    if budget.length is not None or budget.blocks is not None:
        by_gain = work.greedy(lambda gain, _length, _blocks: gain)
        limit = min(best.limit, by_gain.limit)
        if budget.requests is not None:
            limit = min(limit, choose(forest, Budget(requests=budget.requests)).value)
        best = msgspec.structs.replace(by_gain if by_gain.value > best.value else best, limit=limit)
    return best


def by_return(forest: Forest, leaves: Iterable[int]) -> tuple[int, ...]:
    """Leaves in the order of what each adds for each unit that has to be computed for it, given those before it.

    A run that is cut short then loses the least. Leaves that add nothing to those before them are left out.
    """
    block = forest.block
    work = _Work(forest, Budget(), leaves=leaves)
    choice = work.greedy(lambda gain, length, blocks: gain / (blocks * block + length % block))
    return tuple(one.leaf for one in choice.chosen)


class _Work:
    """What every greedy order needs of a forest."""

    def __init__(self, forest: Forest, budget: Budget, *, leaves: Iterable[int] | None = None) -> None:
        self._forest = forest
        self._budget = budget
        count = len(forest.parents)
        self._depths = [0] * count  # in blocks
        self._sums = [0.0] * count  # value of a node and all before it, in traffic times units
        deepest: dict[int, int] = {}
        for index, parent in enumerate(forest.parents):
            size = 1 if forest.sizes is None else forest.sizes[index]
            worth = forest.values[index] * size * forest.block
            self._depths[index] = size + (self._depths[parent] if parent >= 0 else 0)
            self._sums[index] = worth + (self._sums[parent] if parent >= 0 else 0.0)
            prompt = forest.prompts[index]
            if prompt not in deepest or self._depths[index] > self._depths[deepest[prompt]]:
                deepest[prompt] = index
        self._leaves = list(deepest.values() if leaves is None else leaves)
        # Blocks of the prompt behind its last one worth covering; nobody shares them.
        self._extra = [forest.lengths[leaf] // forest.block - self._depths[leaf] for leaf in range(count)]

    def greedy(self, score_of: _Score) -> Choice:
        """The leaves by their scores, given those before, as long as they add something and fit.

        What a score falls to while others are taken is reckoned when the leaf comes up: one that is best all the same
        is the best of all.
        """
        forest, budget = self._forest, self._budget
        ranks = [-1] * len(forest.parents)
        spent = Spent()
        chosen: list[Chosen] = []
        heap = []
        for leaf in self._leaves:
            gain, new_blocks = self._added(leaf, ranks)
            heap.append((-score_of(gain, forest.lengths[leaf], new_blocks), forest.prompts[leaf], leaf))
        heapq.heapify(heap)
        while heap:
            score, prompt, leaf = heap[0]
            gain, new_blocks = self._added(leaf, ranks)
            length = forest.lengths[leaf]
            if gain <= 0 or not spent.has_room(budget, length=length, blocks=new_blocks):
                heapq.heappop(heap)  # what has no room now never will: what others add to its way they take from it
                continue
            now = -score_of(gain, length, new_blocks)
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
        index = leaf
        while index >= 0 and ranks[index] < 0:
            index = self._forest.parents[index]
        covered, depth = (self._sums[index], self._depths[index]) if index >= 0 else (0.0, 0)
        return self._sums[leaf] - covered, self._depths[leaf] - depth + self._extra[leaf]

    def _limit(self, value: float, ranks: Sequence[int]) -> float:
        """An upper bound of the value of any choice: of every limit given, as if it were the only one."""
        forest, budget = self._forest, self._budget
        if budget.length is None and budget.blocks is None:
            return value
        bounds = [self._most_worth(None)]
        if budget.blocks is not None:
            bounds.append(self._most_worth(budget.blocks))
        if budget.length is not None:
            left = [(self._added(leaf, ranks)[0], forest.lengths[leaf]) for leaf in self._leaves]
            bounds.append(value + _fractional(left, budget.length))
        return min(bounds)

    def _most_worth(self, blocks: int | None) -> float:
        """The value of so many blocks, if any could be taken by themselves; of all of them for None."""
        forest = self._forest
        if forest.sizes is None:
            worth = sorted(forest.values, reverse=True)
            return math.fsum(worth[:blocks]) * forest.block
        runs = [(value * size * forest.block, size) for value, size in zip(forest.values, forest.sizes, strict=True)]
        return _fractional(runs, sum(forest.sizes) if blocks is None else blocks)


def _fractional(items: Sequence[tuple[float, int]], room: int) -> float:
    """The most that items of (gain, length) are worth in so much room, if the last may be cut."""
    total = 0.0
    for gain, length in sorted(items, key=lambda item: -item[0] / max(item[1], 1)):
        if length >= room:
            return total + gain * room / max(length, 1)
        total += gain
        room -= length
    return total
