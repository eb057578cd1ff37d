"""How much traffic goes through each block of a log, in bounded memory and with a known error.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

# The whole program peaks at 413 MiB with so many (docs/benchmarks.md, a log of a million lines).
DEFAULT_MAX_BLOCKS = 1_000_000
_INDEX_BITS = 40  # of a prompt's position in the log, below its length in one number


class Block:
    """One counted block.

    Attributes:
        parent: the block before it; None for a prompt's first.
        depth: its position in a prompt, from 1.
        weight: of the requests that went through it since it is counted: never too much.
        missed: the most that may be lacking: from before it was counted.
        sample: the shortest prompt that goes through it, the first of equal ones: see `sample_of`.
        rank: which chosen prompt covers it first; -1 for none.
    """

    __slots__ = ("depth", "missed", "parent", "rank", "sample", "weight")

    def __init__(self, parent: Block | None, *, depth: int, weight: float, missed: float, sample: int) -> None:
        self.parent = parent
        self.depth = depth
        self.weight = weight
        self.missed = missed
        self.sample = sample
        self.rank = -1


class PrefixSketch:
    """Traffic by block, of the heaviest blocks.

    When there are more than `max_blocks`, the lighter half is forgotten: those for which even `weight + missed` is no
    more than the median T of that sum. From then on whatever is not counted may have had a traffic of at most T, and so
    may have whatever is counted anew before it was. T only grows, and

        true − `missed` <= `weight` <= true,   `missed` <= `undercount` = T <= 2 · `visits` / `max_blocks`.

    Proof of the last: let Φ be the sum of `weight + missed − T` over counted blocks. A visit of weight w adds at most
    w, so Φ gains at most `visits` in all. When T grows by d, at least half of more than `max_blocks` blocks lose d
    each, and Φ stays >= 0. Hence Σd <= 2 · `visits` / `max_blocks`.

    A block is never forgotten before one that continues it: all traffic of that goes through it, and it was counted no
    later. The result depends on the log and `max_blocks` only.

    Attributes:
        blocks: by name.
        undercount: see above; 0 as long as nothing was forgotten.
        visits: weight of all blocks of all requests so far.

    Source:
        Lossy counting (Manku, Motwani, "Approximate Frequency Counts over Data Streams", VLDB 2002), with the bucket's
        end moved to when the table is full, as in Anderson et al., "A High-Performance Algorithm for Identifying
        Frequent Items in Data Streams", IMC 2017.
    """

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """Makes an empty one."""
        assert max_blocks >= 1, "nothing could be counted"
        self.blocks: dict[bytes, Block] = {}
        self.undercount = 0.0
        self.visits = 0.0
        self._max_blocks = max_blocks

    def add(self, names: Sequence[bytes], *, weight: float, length: int, index: int) -> None:
        """Counts one request.

        Args:
            names: [blocks] of its prompt, from the start.
            weight: requests that it stands for, > 0.
            length: of the whole prompt.
            index: position of the request in the log.
        """
        sample = length << _INDEX_BITS | index
        blocks = self.blocks
        parent = None
        for depth, name in enumerate(names, start=1):
            block = blocks.get(name)
            if block is None:
                block = Block(parent, depth=depth, weight=weight, missed=self.undercount, sample=sample)
                blocks[name] = block
            else:
                block.weight += weight
                if sample < block.sample:  # noqa: PLR1730 - `min` takes four times as long, a hundred million times
                    block.sample = sample
            parent = block
        self.visits += weight * len(names)
        if len(blocks) > self._max_blocks:
            self._forget()

    def _forget(self) -> None:
        bounds = sorted(block.weight + block.missed for block in self.blocks.values())
        self.undercount = bounds[(len(bounds) - 1) // 2]
        self.blocks = {
            name: block for name, block in self.blocks.items() if block.weight + block.missed > self.undercount
        }


def sample_of(block: Block) -> tuple[int, int]:
    """Length and position of a block's shortest prompt."""
    return block.sample >> _INDEX_BITS, block.sample & ((1 << _INDEX_BITS) - 1)
