"""Suspects, asked again: fresh legs of both kinds, as they come in. Which, and how often, `asking` plans."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from msgspec.structs import replace

from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Request
from kvrelease.verify.asking import Ask, LegKind, ask_all
from kvrelease.verify.distance import telling_tokens
from kvrelease.verify.evidence import Repeats
from kvrelease.verify.repeats import REPEATS
from kvrelease.verify.uniques import Observe


class RepeatedLegs:
    """The repeats of one replica.

    Args:
        as_production: the request of a prompt as users send it.
        clean_twin: the request that is like it, and clean; and who answers it.
        screening: the first production leg of a prompt.
        observe: sends a request.
    """

    def __init__(
        self,
        *,
        as_production: Callable[[str], Request],
        clean_twin: Callable[[str], tuple[Request, Replica]],
        screening: Callable[[str], Leg],
        observe: Observe,
    ) -> None:
        self._as_production = as_production
        self._clean_twin = clean_twin
        self._screening = screening
        self._observe = observe
        self._found: dict[str, Repeats] = {}

    def of(self, prompt_id: str) -> Repeats:
        """What was asked again of a prompt so far."""
        return self._found.get(prompt_id, Repeats())

    async def ask(self, wanted: Generator[Ask, Leg, None]) -> None:
        """Everything that a plan asks for."""
        send = {LegKind.PRODUCTION: self._production, LegKind.CLEAN: self._clean}
        await ask_all(wanted, lambda ask: send[ask.kind](ask.probe))

    async def all_of_production(self, prompt_id: str) -> None:
        """As many legs as the test takes, of a prompt that cannot be asked later."""
        for _ in range(REPEATS):
            await self._production(prompt_id)

    async def all_clean(self, prompt_ids: Iterable[str]) -> None:
        """The clean legs of prompts whose production legs were sent before."""
        for prompt_id in prompt_ids:
            for _ in range(REPEATS):
                await self._clean(prompt_id)

    async def _production(self, prompt_id: str) -> Leg:
        leg = await self._observe(self.shortened(self._as_production(prompt_id), prompt_id))
        found = self.of(prompt_id)
        self._found[prompt_id] = replace(found, production=(*found.production, leg))
        return leg

    async def _clean(self, prompt_id: str) -> Leg:
        request, on = self._clean_twin(prompt_id)
        leg = await self._observe(self.shortened(request, prompt_id), on=on)
        found = self.of(prompt_id)
        self._found[prompt_id] = replace(found, clean=(*found.clean, leg))
        return leg

    def shortened(self, request: Request, prompt_id: str) -> Request:
        """Where candidates are told, the first token that is not forced says it all."""
        telling = telling_tokens(self._screening(prompt_id).observation)
        return request if telling is None else replace(request, max_tokens=telling)
