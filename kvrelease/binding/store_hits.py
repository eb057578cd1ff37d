"""Whether a hit came out of a store outside the engine's process, where the reply or the counters tell."""

from __future__ import annotations

import asyncio

from kvrelease.binding.usage import counted_since
from kvrelease.engines.base import Counters, EngineClient, Observation


class StoreHits:
    """What one replica found in a store outside its process during this run.

    Args:
        engine: the replica.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._beginning = asyncio.Lock()
        self._is_begun = False
        self._before: Counters | None = None
        self._sent_tokens = 0
        self._found_tokens = 0

    async def sending(self, tokens: int) -> None:
        """Reads the counters before the first request; call it before each, with the prompt's tokens."""
        async with self._beginning:
            if not self._is_begun:
                self._before = await self._engine.counters()
                self._is_begun = True
        self._sent_tokens += tokens

    async def found(self, observation: Observation, *, tokens: int) -> bool | None:
        """Whether so many tokens of a hit came out of the store; they count as found from then on.

        Returns:
            None where others used the engine meanwhile, so that the counters do not speak of this run alone.
        """
        if observation.tiers is not None:
            return (observation.tiers.storage_tokens or 0) >= tokens
        after = await self._engine.counters()
        if after is None or after.external_cached_tokens is None:
            return False
        moved = counted_since(self._before or Counters(queried_tokens=0, cached_tokens=0), after)
        if moved is None or (moved.external_cached_tokens or 0) < self._found_tokens + tokens:
            return False
        if moved.queried_tokens > self._sent_tokens:
            return None
        self._found_tokens += tokens
        return True
