"""Where the first hit of each probe came from, by counters: a later one finds in memory what the first brought in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kvrelease.engines.base import Counters, EngineClient
from kvrelease.verify.evidence import Lookup


class Lookups:
    """Reads the counters around requests, as long as they tell tiers apart.

    Attributes:
        found: so far.
    """

    def __init__(self, engine: EngineClient) -> None:
        """Of one replica."""
        self.found: list[Lookup] = []
        self._engine = engine
        self._last: Counters | None = None
        self._is_worth_it = True

    async def around(self, probe: str, ask: Callable[[str], Awaitable[object]]) -> None:
        """Awaits one request of a probe; nothing else may be asked of the engine meanwhile."""
        if self._is_worth_it and self._last is None:
            self._last = self._telling(await self._engine.counters())
        before = self._last
        await ask(probe)
        if before is None:
            return
        self._last = self._telling(await self._engine.counters())
        counted = None if self._last is None else self._last.since(before)
        if counted is not None:
            self.found.append(Lookup(probe=probe, counted=counted))

    def _telling(self, counters: Counters | None) -> Counters | None:
        """The counters, where they tell more than one tier; otherwise they are not asked again."""
        if counters is None or (counters.external_cached_tokens is None and not counters.cached_by_source):
            self._is_worth_it = False
            return None
        return counters
