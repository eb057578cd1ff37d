"""Emptying an engine's own cache, where the user permits it: once for each engine, and forgotten by the ledger."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from kvrelease.binding.deployment import Replica
from kvrelease.engines.base import EngineKind
from kvrelease.errors import UsageError
from kvrelease.ledger.store import Ledger


class Flushing:
    """Empties caches. A flush empties every data-parallel rank behind a URL, so only the first of them asks for it."""

    def __init__(self, ledger: Ledger, *, command: str) -> None:
        """Makes `ledger` forget what is emptied; `command` is what a refusal says to run again."""
        self._ledger = ledger
        self._command = command
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._emptied: dict[str, bool | None] = {}

    def has_emptied(self, replica: Replica) -> bool:
        """Whether this run has had the engine's cache emptied."""
        return replica.identity.url in self._emptied

    async def flush(self, replica: Replica) -> bool | None:
        """Asks the engine to empty its cache, unless another rank did. Proof comes from what is sent next.

        What was known of its entries is forgotten first of all, however the call ends: a hit that is not explained any
        more is looked into, one that is explained wrongly is not.

        Returns:
            True where the engine says that it did, None where its reply does not tell.

        Raises:
            UsageError: it cannot, or refuses while requests run; nothing was emptied.
            ServiceError: it did not answer properly, and may have been emptied.
        """
        require_flush([replica])
        url = replica.identity.url
        async with self._locks[url]:
            if url not in self._emptied:
                self._emptied[url] = await self._ask(replica)
        self.forget(replica)
        return self._emptied[url]

    def forget(self, replica: Replica) -> None:
        """Forgets what this run and the ledger know to be cached: another rank of the engine had it emptied."""
        if replica.identity.process is not None:
            self._ledger.forget(replica=replica.identity.url, process=replica.identity.process)
        replica.observer.forget()

    async def _ask(self, replica: Replica) -> bool | None:
        identity = replica.identity
        may_be_empty = True
        try:
            reply = await replica.observer.engine.flush()
            may_be_empty = reply is not False
        except UsageError:
            may_be_empty = False  # it has no such route
            raise
        finally:  # also where the answer broke, or the run was cut short
            if may_be_empty:
                self.forget(replica)
        if reply is False:
            raise UsageError(
                f"--allow-flush: {identity.shown} refused to empty its cache, which it does while requests run",
                hint=f"drain the engine, then {self._command} again",
            )
        return reply


def require_flush(replicas: Iterable[Replica]) -> None:
    """Checks before anything is sent that each engine can empty its cache on request.

    Raises:
        UsageError: one cannot.
    """
    for replica in replicas:
        identity = replica.identity
        if not identity.capabilities.has_flush:
            raise UsageError(
                f"--allow-flush: {identity.kind} at {identity.shown} cannot empty its cache on request",
                hint=_HOW.get(identity.kind, "restart the engine, or bump the epoch"),
            )


# Source: docs/engines.md, "Flushing".
_HOW = {
    EngineKind.VLLM: "start vLLM with VLLM_SERVER_DEV_MODE=1, which has the route; or restart it, or bump the epoch",
    EngineKind.LLAMACPP: "start llama-server with its /slots endpoint, or restart it",
}
