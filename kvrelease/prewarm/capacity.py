"""Which prompts of a set are worth their room in a prefix cache that may be too small for all; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kvrelease.workload.budget import Budget
from kvrelease.workload.coverage import Forest, by_return, choose
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
        proved_share: what the kept blocks save, by what no choice that fits can save more than, 0 to 1.
    """

    senders: tuple[str, ...]
    dropped: tuple[str, ...]
    share: float
    proved_share: float


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
    see `workload.coverage.choose`.

    Args:
        tree: of the whole prompt set.
        weights: traffic weight by prompt id.
        room_blocks: for blocks of prompts; None where nothing tells a limit.
    """
    worth = _Worth(tree, weights)
    names = sorted(tree.order)
    forest = _forest(tree, weights, numbers={prompt_id: number for number, prompt_id in enumerate(names)})
    proved = 1.0
    if room_blocks is None:
        leaves = [segment.index for segment in tree.leaves]
    elif room_blocks == 0:
        leaves = []
    else:
        choice = choose(forest, Budget(blocks=room_blocks))
        leaves, proved = [one.leaf for one in choice.chosen], choice.proved_share
    senders = tuple(names[forest.prompts[leaf]] for leaf in by_return(forest, _without_covered(forest, leaves)))
    resident = tree.covered(senders)
    ends = {prompt_id: tree.branches[prompt_id].segment for prompt_id in tree.order}
    left_out = [prompt_id for prompt_id, end in ends.items() if end is not None and end not in resident]
    return Kept(
        senders=senders,
        dropped=tuple(sorted(left_out, key=lambda prompt_id: (worth.way(prompt_id), prompt_id))),
        share=worth.share(senders),
        proved_share=proved,
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
        sums = _sums(tree, weights)
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


def _forest(tree: PrefixTree, weights: Mapping[str, float], *, numbers: Mapping[str, int]) -> Forest:
    """The segments of a tree, each with the shortest prompt that goes through it, by its number."""
    block = tree.block_tokens
    sums = _sums(tree, weights)
    best: list[tuple[int, int]] = [(0, -1)] * len(tree.segments)
    for prompt_id, branch in tree.branches.items():
        if branch.segment is not None:
            own = (branch.tokens, numbers[prompt_id])
            best[branch.segment] = own if best[branch.segment][1] < 0 else min(best[branch.segment], own)
    for segment in reversed(tree.segments):
        if segment.parent is not None:
            before = best[segment.parent]
            best[segment.parent] = best[segment.index] if before[1] < 0 else min(before, best[segment.index])
    return Forest(
        block=block,
        parents=[-1 if segment.parent is None else segment.parent for segment in tree.segments],
        values=[sums[segment.last] - sums[segment.first] for segment in tree.segments],
        prompts=[number for _, number in best],
        lengths=[length for length, _ in best],
        sizes=[segment.tokens // block for segment in tree.segments],
    )


def _sums(tree: PrefixTree, weights: Mapping[str, float]) -> list[float]:
    """[prompts + 1] weights added up in the tree's order: prompts through a segment are a range of it."""
    sums = [0.0]
    for prompt_id in tree.order:
        sums.append(sums[-1] + weights[prompt_id])
    return sums


def _without_covered(forest: Forest, leaves: Collection[int]) -> list[int]:
    """The leaves, without those on the way of another one."""
    on_a_way: set[int] = set()
    for leaf in leaves:
        index = forest.parents[leaf]
        while index >= 0 and index not in on_a_way:
            on_a_way.add(index)
            index = forest.parents[index]
    return [leaf for leaf in leaves if leaf not in on_a_way]
