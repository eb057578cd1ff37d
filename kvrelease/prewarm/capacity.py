"""Which prompts of a set are worth their room in a prefix cache that may be too small for all; pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

import msgspec

from kvrelease.workload.prefix_tree import PrefixTree

# vLLM never hands out the first of its blocks (the null block), and counts it among those it has.
# Source: vLLM 0.32.0, v1/core/block_pool.py, `self.null_block = self.free_block_queue.popleft()`.
RESERVED_BLOCKS = 1


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, and what is left out.

    Attributes:
        senders: ids in the order of what each saves for what it costs: one for every branch that is kept.
        dropped: prompts that are not resident in whole afterwards, least valuable first.
        share: of all tokens of traffic, those it saves when the kept blocks are resident, 0 to 1.
    """

    senders: tuple[str, ...]
    dropped: tuple[str, ...]
    share: float


def head_room_blocks(*, block_tokens: int, in_flight: int, control_tokens: int) -> int:
    """Blocks that are no prompt's, and have to be free all the same, or resident ones are evicted for them.

    Each request in flight holds one for the end of its prompt that fills no block; the control's unique prompt stays;
    one is the engine's own. vLLM hands out a block that held no full one before it evicts anything, so those of
    requests that were answered are used again.

    Args:
        block_tokens: of a block.
        in_flight: most requests at a time.
        control_tokens: of the control's prompt.

    Source: vLLM 0.32.0, v1/core/block_pool.py, `free_blocks`; measured by benchmarks/prewarm.py.
    """
    return RESERVED_BLOCKS + in_flight + -(-control_tokens // block_tokens)


def keep(tree: PrefixTree, *, weights: Mapping[str, float], room_blocks: int | None) -> Kept:
    """The most valuable prompts that fit.

    A block is worth the weight of the traffic that goes through it. Choosing whole ways through the tree is a knapsack;
    it is filled by value per block of what a prompt would add, and again by value alone, and the better one is taken.

    Args:
        tree: of the whole prompt set.
        weights: traffic weight by prompt id.
        room_blocks: for blocks of prompts; None where nothing tells a limit.
    """
    worth = _Worth(tree, weights)
    candidates = tree.senders() if room_blocks is None else _ends(tree)
    if room_blocks is None:
        chosen = frozenset(candidates)
    else:
        by_density = worth.fill(candidates, room_blocks=room_blocks, per_block=True)
        by_value = worth.fill(candidates, room_blocks=room_blocks, per_block=False)
        chosen = max(by_density, by_value, key=worth.of)
    senders = worth.ordered(_without_covered(tree, chosen))
    resident = tree.covered(senders)
    ends = {prompt_id: tree.branches[prompt_id].segment for prompt_id in tree.order}
    left_out = [prompt_id for prompt_id, end in ends.items() if end is not None and end not in resident]
    return Kept(
        senders=senders,
        dropped=tuple(sorted(left_out, key=lambda prompt_id: (worth.way(prompt_id), prompt_id))),
        share=worth.share(senders),
    )


def share_saved(tree: PrefixTree, weights: Mapping[str, float], *, resident: Collection[str]) -> float:
    """Of all tokens of traffic, those that it saves while the ways of some prompts are resident, 0 to 1."""
    return _Worth(tree, weights).share(resident)


def ways(tree: PrefixTree, weights: Mapping[str, float]) -> dict[str, float]:
    """By prompt id, the tokens that traffic saves while the prompt's whole way through the tree is resident."""
    worth = _Worth(tree, weights)
    return {prompt_id: worth.way(prompt_id) for prompt_id in tree.order}


class _Worth:
    """What each segment of a tree saves, given the traffic through it."""

    def __init__(self, tree: PrefixTree, weights: Mapping[str, float]) -> None:
        self._tree = tree
        self._traffic = sum(weights[prompt_id] * tree.branches[prompt_id].tokens for prompt_id in tree.order)
        # Prompts through a segment are a range of the tree's order: sums over all of them by prefix sums.
        sums = [0.0]
        for prompt_id in tree.order:
            sums.append(sums[-1] + weights[prompt_id])
        self._saved = [segment.tokens * (sums[segment.last] - sums[segment.first]) for segment in tree.segments]

    def way(self, prompt_id: str) -> float:
        """What a prompt's whole way through the tree saves."""
        return sum(self._saved[segment.index] for segment in self._tree.path(prompt_id))

    def of(self, prompt_ids: Collection[str]) -> float:
        """What the blocks of some prompts save when all of them are resident."""
        return sum(self._saved[index] for index in self._tree.covered(prompt_ids))

    def share(self, prompt_ids: Collection[str]) -> float:
        """The same, of all tokens of traffic."""
        return self.of(prompt_ids) / self._traffic if self._traffic else 0.0

    def fill(self, candidates: Sequence[str], *, room_blocks: int, per_block: bool) -> frozenset[str]:
        """The candidates that are taken, best first, as long as what each adds still fits."""
        chosen: list[str] = []
        resident: set[int] = set()
        for prompt_id, added, tail_blocks in self._best_first(candidates, resident, per_block=per_block):
            cost = sum(self._tree.segments[index].tokens for index in added) // self._tree.block_tokens + tail_blocks
            if cost <= room_blocks:
                room_blocks -= cost
                resident.update(added)
                chosen.append(prompt_id)
        return frozenset(chosen)

    def ordered(self, prompt_ids: Collection[str]) -> tuple[str, ...]:
        """The prompts by what each adds for each token that it costs: a run that is cut short then loses the least."""
        resident: set[int] = set()
        order = []
        for prompt_id, added, _ in self._best_first(sorted(prompt_ids), resident, per_block=True):
            resident.update(added)
            order.append(prompt_id)
        return tuple(order)

    def _best_first(self, candidates: Sequence[str], resident: set[int], *, per_block: bool) -> _BestFirst:
        return _BestFirst(self._tree, self._saved, candidates, resident, per_block=per_block)


class _BestFirst:
    """Iterates over candidates, best first, by what each would add to what is resident by then.

    What a prompt adds for each block only falls while others are taken (the blocks it shares are the best ones), so an
    entry of the heap that is still best after it was reckoned anew is the best of all.
    """

    def __init__(
        self,
        tree: PrefixTree,
        saved: Sequence[float],
        candidates: Sequence[str],
        resident: set[int],
        *,
        per_block: bool,
    ) -> None:
        self._tree, self._saved, self._resident, self._per_block = tree, saved, resident, per_block
        self._heap = [(-self._score(prompt_id)[0], prompt_id) for prompt_id in candidates]
        heapq.heapify(self._heap)

    def __iter__(self) -> _BestFirst:
        return self

    def __next__(self) -> tuple[str, tuple[int, ...], int]:
        """Id, segments that it adds, and blocks of its end that stay in the cache and are nobody's prefix."""
        while self._heap:
            _, prompt_id = heapq.heappop(self._heap)
            score, added = self._score(prompt_id)
            if self._heap and (-score, prompt_id) > self._heap[0]:
                heapq.heappush(self._heap, (-score, prompt_id))
                continue
            return prompt_id, added, _tail_blocks(self._tree, prompt_id)
        raise StopIteration

    def _score(self, prompt_id: str) -> tuple[float, tuple[int, ...]]:
        added = []
        index = self._tree.branches[prompt_id].segment
        while index is not None and index not in self._resident:
            added.append(index)
            index = self._tree.segments[index].parent
        value = sum(self._saved[index] for index in added)
        if not self._per_block:
            return value, tuple(added)
        branch = self._tree.branches[prompt_id]
        tokens = sum(self._tree.segments[index].tokens for index in added) + branch.tail_tokens
        return value / tokens if tokens else 0.0, tuple(added)


def _tail_blocks(tree: PrefixTree, prompt_id: str) -> int:
    """1 where a prompt of whole blocks leaves its last one in the cache, which no repeat of it can use."""
    return int(tree.branches[prompt_id].tail_tokens == tree.block_tokens)


def _ends(tree: PrefixTree) -> tuple[str, ...]:
    """One prompt for every segment in which one ends, a leaf or not: the one with the shortest tail."""
    best: dict[int, str] = {}
    for prompt_id in sorted(tree.order):
        end = tree.branches[prompt_id].segment
        if end is None:
            continue
        kept = best.setdefault(end, prompt_id)
        if tree.branches[prompt_id].tail_tokens < tree.branches[kept].tail_tokens:
            best[end] = prompt_id
    return tuple(best.values())


def _without_covered(tree: PrefixTree, chosen: frozenset[str]) -> tuple[str, ...]:
    """The chosen, without those whose whole way another of them goes as well."""
    parents = {tree.segments[index].parent for index in tree.covered(chosen)}
    return tuple(sorted(prompt_id for prompt_id in chosen if tree.branches[prompt_id].segment not in parents))
