"""What the replicas of one fleet computed, which any of them may find in a store that they share.

A hit that came out of such a store is this release's own where a sister is known to have computed it: earlier in this
run, or in an earlier one that the ledger remembers. Sisters that are warmed at once compute and find the same prompts;
so a hit is judged when every request that may have computed it has been answered, and a prompt that was merely sent
explains nothing: two stale hits cannot vouch for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kvrelease.binding.hits import remembered_hashes


class SisterMemory(Protocol):
    """What remembers prefixes between runs (`ledger.store.Ledger` does)."""

    def sister_prefixes(self, *, namespace: str, key_space: str | None) -> frozenset[bytes]:
        """Chain hashes of what any engine process computed under these keys, for this release."""


class Sisters:
    """What the replicas of one run computed under each key space.

    Args:
        namespace: of the release that all of them are said to serve.
        memory: earlier runs' knowledge.
    """

    def __init__(self, *, namespace: str, memory: SisterMemory) -> None:
        self._namespace = namespace
        self._memory = memory
        self._computed: dict[tuple[str | None, int], set[bytes]] = {}
        self._asking: dict[asyncio.Event, bytes] = {}

    def computed(self, key_space: str | None, *, block_tokens: int) -> set[bytes]:
        """Chain hashes, at this block; the set grows as the run goes on."""
        if (key_space, block_tokens) not in self._computed:
            known = self._memory.sister_prefixes(namespace=self._namespace, key_space=key_space)
            self._computed[key_space, block_tokens] = set(known)
        return self._computed[key_space, block_tokens]

    def learn(self, tokens: tuple[int, ...], *, key_space: str | None, block_tokens: int) -> None:
        """Remembers that a replica computed a whole prompt."""
        self.computed(key_space, block_tokens=block_tokens).update(remembered_hashes(tokens, block_tokens))

    @contextmanager
    def asking(self, tokens: tuple[int, ...], *, block_tokens: int) -> Iterator[None]:
        """A prompt is in flight, and its hit not accounted for, as long as the block lasts."""
        first = _first(tokens, block_tokens)
        if first is None:
            yield
            return
        answered = asyncio.Event()
        self._asking[answered] = first
        try:
            yield
        finally:
            del self._asking[answered]
            answered.set()

    async def answered(self, tokens: tuple[int, ...], *, block_tokens: int) -> None:
        """Returns when every prompt that is in flight now, and begins like this one, has been accounted for."""
        first = _first(tokens, block_tokens)
        for event in [event for event, begins in self._asking.items() if begins == first]:
            await event.wait()


def _first(tokens: tuple[int, ...], block_tokens: int) -> bytes | None:
    """Names the first block of a prompt; None where it has none."""
    return next(iter(remembered_hashes(tokens, block_tokens)), None)
