"""The simulated cache with requests by name that overlap, to run schedules and plans against."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kvrelease.simulator.cache import Hold, SimulatedBlocks


class OverlappingCache:
    """Requests in flight hold their blocks, and others find these once they are answered.

    Attributes:
        computed_tokens: by all requests that were begun.
    """

    def __init__(self, *, blocks: int, block_tokens: int) -> None:
        # Of what an engine says it has, it never hands out one.
        self._cache = SimulatedBlocks(blocks - 1)
        self._block_tokens = block_tokens
        self._flying: dict[object, Hold] = {}
        self.computed_tokens = 0

    @property
    def evicted(self) -> int:
        """Blocks that were overwritten."""
        return self._cache.evicted

    def begin(self, name: object, prompt: Sequence[int], *, space: Hashable = None) -> int:
        """Starts a request; returns the tokens it hits."""
        size = self._block_tokens
        keys = [(space, tuple(prompt[:end])) for end in range(size, len(prompt) + 1, size)]
        hold = self._cache.begin(keys, hit_limit=(len(prompt) - 1) // size, tail_blocks=int(len(prompt) % size > 0))
        assert hold is not None, "the request has to wait"
        self._flying[name] = hold
        self.computed_tokens += len(prompt) - hold.hits * size
        return hold.hits * size

    def end(self, name: object) -> None:
        """Answers a request: what it computed can be hit from now on."""
        self._cache.finish(self._flying.pop(name))
