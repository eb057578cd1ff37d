"""Reference legs of one replica's probes, as they come in: proved cold, hit cleanly, and written again in company."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from msgspec.structs import replace

from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg
from kvrelease.binding.salts import probe_salt
from kvrelease.engines.base import Request
from kvrelease.errors import Refused, one_of
from kvrelease.verify.asking import ask_all
from kvrelease.verify.evidence import Isolation
from kvrelease.verify.ladder import Ladder, Leaks, hidden_hits, why_not_cold
from kvrelease.verify.uniques import Observe
from kvrelease.workload.prompt_set import Prompt

# Probes that are written once more, in company, for the noise floor. Two requests each: a clean run of sixty probes
# takes at most 3.5 requests for each of them.
REWRITTEN = 8


class ReferenceLegs:
    """The reference legs of one replica.

    Args:
        replica: under test.
        prompts: of the probes, by id.
        ladder: the ways to isolate them.
        leaks: told of hits that only counters show.
        as_production: the request of a prompt as users send it, in a key space.
        observe: sends a request.

    Attributes:
        cold: the proved cold leg of each probe that has one.
        clean: the hits on what those left, where their isolation allows any.
        rewritten: hits on entries that were written once more, in company.
        peers: hits on those that were written after something differed.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        prompts: Mapping[str, Prompt],
        ladder: Ladder,
        leaks: Leaks,
        as_production: Callable[[str, str | None], Request],
        observe: Observe,
    ) -> None:
        self.cold: dict[str, Leg] = {}
        self.clean: dict[str, list[Leg]] = {}
        self.rewritten: dict[str, list[Leg]] = {}
        self.peers: dict[str, list[Leg]] = {}
        self._replica = replica
        self._prompts = prompts
        self._ladder = ladder
        self._leaks = leaks
        self._as_production = as_production
        self._observe = observe
        self._isolated_by: dict[str, Isolation] = {}

    async def refer(self, prompt_id: str) -> None:
        """A proved cold leg of one probe, and its clean hit, by the first way that gives one."""
        for way in self._ladder.candidates():
            await self.refer_by(way, prompt_id)
            if prompt_id in self.cold:
                return

    async def refer_by(self, way: Isolation, prompt_id: str) -> Leg | None:
        """The reference leg of one way, kept with the clean hit that it allows where it is proved cold.

        None where the engine refused the request.
        """
        prompt, on = self._prompts[prompt_id], self._ladder.answering(way)
        request = self._ladder.cold_request(prompt, way)
        before = await on.observer.engine.counters()
        try:
            leg = await self._observe(request, on=on, asked=prompt_id)
        except Refused as error:
            if error.status != 400:
                raise
            self._ladder.failed(way, probe=prompt_id, why=error.message)
            return None
        hidden = hidden_hits(before, await on.observer.engine.counters(), leg=leg)
        if way is Isolation.FRESH_SALT:
            self._leaks.add(prompt_id, hidden)
        why = why_not_cold(leg, way=way, bypasses=request.bypasses_cache, hidden=hidden)
        if why is not None:
            self._ladder.failed(way, probe=prompt_id, why=why)
            return leg
        self._ladder.proved(way)
        self._isolated_by[prompt_id] = way
        self.cold[prompt_id] = leg
        hit = self._ladder.hit_request(prompt, way)
        if hit is not None:
            self.clean[prompt_id] = [await self._observe(hit, on=on)]
        return leg

    def clean_twin(self, prompt_id: str) -> tuple[Request, Replica]:
        """The request that is like a production leg, and clean; and who answers it."""
        way = self._isolated_by[prompt_id]
        return self._ladder.clean_request(self._prompts[prompt_id], way), self._ladder.answering(way)

    @property
    def can_be_rewritten(self) -> bool:
        """Whether entries can be written again beside all others, and a hit of them is told."""
        return self._ladder.used is Isolation.FRESH_SALT and bool(self._replica.observer.usage_speaks)

    async def rewrite(self, probes: Sequence[str]) -> None:
        """Entries of the first of these probes, written once more in company and read alone.

        Production's entries were written among other requests too, with what that does to their last digits.
        """
        if not self.can_be_rewritten:
            return
        chosen = [prompt_id for prompt_id in probes if prompt_id in self.clean][:REWRITTEN]
        requests = [self._in_company(prompt_id) for prompt_id in chosen]
        for prompt_id, leg in zip(chosen, await self._written_at_once(chosen, requests), strict=True):
            self.rewritten[prompt_id] = [leg]

    async def write_peers(
        self, wanted: Generator[tuple[str, ...], Sequence[Leg], None], *, shortened: Callable[[Request, str], Request]
    ) -> None:
        """The entries that a plan asks for, written in company and read alone.

        Users' entries lie over what another question left of a system prompt, or were computed whole: peers take turns.

        Args:
            wanted: the plan.
            shortened: a request of a prompt, cut off at the first token that tells.
        """
        if not self.can_be_rewritten:
            return
        is_over_another = itertools.cycle((False, True))

        async def write(company: tuple[str, ...]) -> Sequence[Leg]:
            requests = [shortened(self._in_company(prompt_id), prompt_id) for prompt_id in company]
            if next(is_over_another):
                await self._send_at_once(self._siblings(company, requests))
            legs = await self._written_at_once(company, requests)
            for prompt_id, leg in zip(company, legs, strict=True):
                self.peers.setdefault(prompt_id, []).append(leg)
            return legs

        await ask_all(wanted, write)

    def _in_company(self, prompt_id: str) -> Request:
        """As users send it, in a key space of its own."""
        return self._as_production(prompt_id, probe_salt("company"))

    def _siblings(self, company: Sequence[str], requests: Sequence[Request]) -> list[tuple[str, Request]]:
        """For each request another prompt under the same prefix, in the same key space, where there is one."""
        prefixes = self._replica.prefixes
        found = []
        for prompt_id, request in zip(company, requests, strict=True):
            under_it = (one for one in self._prompts if one != prompt_id and prefixes[one] == prefixes[prompt_id])
            if (other := next(under_it, None)) is not None:
                sibling = replace(self._as_production(other, None), salt=request.salt, max_tokens=1)
                found.append((other, sibling))
        return found

    async def _written_at_once(self, chosen: Sequence[str], requests: Sequence[Request]) -> list[Leg]:
        """The entry of each request, all written at once; then read, one by one."""
        await self._send_at_once(zip(chosen, requests, strict=True))
        return [await self._observe(request) for request in requests]

    async def _send_at_once(self, requests: Iterable[tuple[str, Request]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for prompt_id, request in requests:
                    group.create_task(self._observe(request, asked=prompt_id))
        except ExceptionGroup as errors:
            raise one_of(errors) from errors
