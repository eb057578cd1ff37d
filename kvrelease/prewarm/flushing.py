"""Emptying an engine's own cache before it is warmed, where the user permits it: once for each engine."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from kvrelease.binding.deployment import Replica
from kvrelease.errors import UsageError
from kvrelease.ledger.store import Ledger


class Flushing:
    """Empties caches. A flush empties every data-parallel rank behind a URL, so only the first of them asks for it."""

    def __init__(self, ledger: Ledger) -> None:
        """Makes `ledger` forget what is emptied."""
        self._ledger = ledger
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._emptied: set[str] = set()

    async def flush(self, replica: Replica) -> None:
        """Asks the engine to empty its cache, unless another rank did. Proof comes from what is sent next.

        Raises:
            UsageError: it cannot, or refuses while requests run.
            ServiceError: it did not answer properly.
        """
        identity = replica.identity
        async with self._locks[identity.url]:
            if identity.url not in self._emptied:
                await self._ask(replica)
                self._emptied.add(identity.url)
        if identity.process is not None:
            self._ledger.forget(replica=identity.url, process=identity.process)

    async def _ask(self, replica: Replica) -> None:
        identity = replica.identity
        if not identity.capabilities.has_flush:
            raise UsageError(
                f"--allow-flush: {identity.kind} at {identity.url} cannot empty its cache on request",
                hint="restart the engine, or bump the epoch",
            )
        if await replica.observer.engine.flush() is False:
            raise UsageError(
                f"--allow-flush: {identity.url} refused to empty its cache, which it does while requests run",
                hint="drain the engine, then prewarm again",
            )
