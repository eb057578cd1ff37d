"""Observing one replica, in the only order that keeps the evidence.

Production legs first: every request changes the cache, and a control on a one-slot engine wipes what it should find.
Then other key spaces, control and binding; reference legs last, because they write too; entries written again in
company, production again, and repeats of suspects at the end. An engine that a reference leg heals answers production's
repeats at once, before anybody is a suspect: there the reference leg wipes what they should find.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from kvrelease.binding.control import nonce_request
from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg
from kvrelease.binding.salts import probe_salt
from kvrelease.engines.base import Counters, Request
from kvrelease.errors import Refused, one_of
from kvrelease.progress import Progress, ProgressEvent
from kvrelease.verify.asking import LegKind, repeats_to_ask
from kvrelease.verify.consistency import is_suspect
from kvrelease.verify.distance import telling_tokens
from kvrelease.verify.evidence import (
    BindingEvidence,
    ControlEvidence,
    ExposureEvidence,
    Isolation,
    ProbeEvidence,
    Repeats,
    ReplicaEvidence,
)
from kvrelease.verify.noise import NoiseFloor, noise_floor
from kvrelease.verify.record import as_probe, probe_request
from kvrelease.verify.repeats import REPEATS
from kvrelease.workload.prompt_set import Prompt

# Probes that are written once more, in company, for the noise floor. Two requests each: a clean run of sixty probes
# takes at most 3.5 requests for each of them.
REWRITTEN = 8

# Nonce prompts that measure the noise where the probes have no clean hits. The largest of eight, times
# `SUSPECT_RATIO`, is topped by the largest of a dozen in 6 % of runs where noise is exponential, in 1 % where normal.
NOISE_NONCES = 8

# Key spaces besides production's get one probe for each of so many shared prefixes.
EXPOSURE_PROBES = 3


class Collector:
    """One replica's evidence as it comes in; `evidence` tells what there is so far, at any time.

    Args:
        replica: prepared.
        probes: drawn from the prompt set.
        other_spaces: key spaces besides production's that clients may still reach.
        reference: a clean second engine for reference legs, None to isolate on the replica itself.
        progress: told after each request.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        probes: Sequence[Prompt],
        other_spaces: Sequence[str | None],
        reference: Replica | None,
        progress: Progress,
    ) -> None:
        self.replica = replica
        self._prompts = {prompt.id: prompt for prompt in probes}
        self._spaces = tuple(other_spaces)
        self._reference = reference
        self._progress = progress
        self._capabilities = replica.identity.capabilities
        self._is_fresh: bool | None = None
        self._isolation = Isolation.NONE
        self._notes: list[str] = []
        self._production: dict[str, list[Leg]] = {}
        self._cold: dict[str, Leg] = {}
        self._clean: dict[str, list[Leg]] = {}
        self._rewritten: dict[str, list[Leg]] = {}
        self._repeats: dict[str, tuple[list[Leg], list[Leg]]] = {}
        self._exposure: list[ExposureEvidence] = []
        self._control: ControlEvidence | None = None
        self._binding: BindingEvidence | None = None
        self._residency: list[Leg] = []
        self._noise: list[tuple[Leg, Leg]] = []
        self._reference_salt = probe_salt("reference")
        self._done = 0

    async def collect(self) -> None:
        """Sends everything, in order.

        Raises:
            KvreleaseError: the engine failed; `evidence` keeps what was observed before.
        """
        self._is_fresh = await self._nobody_was_here()
        heals = self._capabilities.reference_heals
        for prompt_id in self._prompts:
            await self._ask_as_production(prompt_id)
            if heals:
                for _ in range(REPEATS):
                    await self._repeat_production(prompt_id)
        if self._capabilities.has_salt:
            await self._expose()
        self._control = await self._send_control()
        if self._capabilities.has_salt:
            self._binding = await self._send_binding()
        if heals:
            self._noise = [await self._nonce_twice() for _ in range(NOISE_NONCES)]
        for prompt_id in self._prompts:
            await self._refer(prompt_id)
        if self._cold and not self._clean:
            self._noise = [await self._nonce_twice() for _ in range(NOISE_NONCES)]
        if not heals:
            await self._rewrite()
            # What hit nothing at first may hit something now: these legs are judged like the first ones.
            for prompt_id in self._one_per_prefix():
                self._residency.append(await self._ask_as_production(prompt_id))
            await self._repeat_suspects()
        await self.replica.observer.require_same_process()

    def evidence(self) -> ReplicaEvidence:
        """What has been observed so far."""
        return ReplicaEvidence(
            identity=self.replica.identity,
            is_fresh=self._is_fresh,
            isolation=self._isolation,
            isolation_notes=tuple(self._notes),
            probes=self._probes(),
            exposure=tuple(self._exposure),
            control=self._control,
            binding=self._binding,
            residency=tuple(self._residency),
            reference=self._reference.identity if self._reference else None,
            noise=tuple(self._noise),
        )

    def _probes(self) -> tuple[ProbeEvidence, ...]:
        return tuple(
            ProbeEvidence(
                id=prompt_id,
                prefix=self.replica.prefixes[prompt_id],
                weight=self._prompts[prompt_id].weight,
                production=tuple(legs),
                cold=self._cold.get(prompt_id),
                clean=tuple(self._clean.get(prompt_id, ())),
                rewritten=tuple(self._rewritten.get(prompt_id, ())),
                repeats=self._repeats_of(prompt_id),
            )
            for prompt_id, legs in self._production.items()
        )

    def _repeats_of(self, prompt_id: str) -> Repeats:
        production, clean = self._repeats.get(prompt_id, ((), ()))
        return Repeats(production=tuple(production), clean=tuple(clean))

    def _floor(self) -> NoiseFloor:
        return noise_floor(self._probes(), nonces=self._noise)

    async def _nobody_was_here(self) -> bool | None:
        if self._capabilities.cache_outlives_process:
            return None
        counters = await self.replica.observer.engine.counters()
        return None if counters is None else counters.queried_tokens == 0

    async def _observe(self, request: Request, *, on: Replica | None = None) -> Leg:
        leg = await (on or self.replica).observer.observe(request)
        self._done += 1
        self._progress(
            ProgressEvent(stage=f"verifying {self.replica.identity.url}", done=self._done, total=None, unit="requests")
        )
        return leg

    def _request(self, prompt_id: str, *, salt: str | None, on: Replica | None = None) -> Request:
        return probe_request(on or self.replica, self._prompts[prompt_id], salt=salt)

    async def _ask_as_production(self, prompt_id: str) -> Leg:
        leg = await self._observe(self._request(prompt_id, salt=self.replica.deployment.salt))
        self._production.setdefault(prompt_id, []).append(leg)
        return leg

    def _one_per_prefix(self) -> list[str]:
        first: dict[str, str] = {}
        for prompt_id in self._prompts:
            first.setdefault(self.replica.prefixes[prompt_id], prompt_id)
        return list(first.values())[:EXPOSURE_PROBES]

    async def _expose(self) -> None:
        for key_space in self._spaces:
            for prompt_id in self._one_per_prefix():
                leg = await self._observe(self._request(prompt_id, salt=key_space))
                self._exposure.append(ExposureEvidence(key_space=key_space, probe=prompt_id, leg=leg))

    async def _nonce(self, *, salt: str | None) -> Request:
        first = next(iter(self._prompts))
        return await nonce_request(
            self.replica.observer,
            route=self._request(first, salt=None).route,
            production=self.replica.deployment.production,
            model=self.replica.identity.model,
            salt=salt,
        )

    async def _send_control(self) -> ControlEvidence:
        engine = self.replica.observer.engine
        before = await engine.counters()
        legs = await self._nonce_twice()
        after = await engine.counters()
        if before is None or after is None:
            return ControlEvidence(legs=legs, counted_hits=None)
        queried = after.queried_tokens - before.queried_tokens
        return ControlEvidence(
            legs=legs,
            counted_hits=after.all_cached_tokens - before.all_cached_tokens,
            counted_queries=queried if queried >= 0 else None,
        )

    async def _nonce_twice(self) -> tuple[Leg, Leg]:
        request = as_probe(await self._nonce(salt=self.replica.deployment.salt))
        return await self._observe(request), await self._observe(request)

    async def _send_binding(self) -> BindingEvidence:
        deployment = self.replica.deployment
        request = await self._nonce(salt=deployment.namespace)
        inside = await self._observe(request)
        as_production = await self._observe(replace(request, salt=deployment.salt))
        fresh = await self._observe(replace(request, salt=probe_salt("binding")))
        return BindingEvidence(inside=inside, as_production=as_production, fresh_salt=fresh)

    async def _refer(self, prompt_id: str) -> None:
        """A proved cold leg of one probe, and its clean hits where the isolation allows them."""
        isolations = (Isolation.FRESH_SALT, Isolation.BYPASS, Isolation.REFERENCE)
        start = 0 if self._isolation is Isolation.NONE else isolations.index(self._isolation)
        for isolation in filter(self._can, isolations[start:]):
            leg = await self._cold_leg(prompt_id, isolation)
            if leg is not None:
                self._isolation = isolation
                self._cold[prompt_id] = leg
                await self._hit_cleanly(prompt_id)
                return

    async def _hit_cleanly(self, prompt_id: str) -> None:
        """The clean hit of a probe, where its isolation allows any."""
        hit = self._clean_hit_request(prompt_id)
        if hit is None:
            return
        self._clean[prompt_id] = [await self._observe(hit, on=self._answering)]
        (probe,) = (one for one in self._probes() if one.id == prompt_id)
        if self._capabilities.reference_heals and is_suspect(probe, self._floor()):
            for _ in range(REPEATS):
                await self._repeat_cleanly(prompt_id)

    @property
    def _answering(self) -> Replica:
        """The engine that gives the reference legs."""
        if self._isolation is Isolation.REFERENCE:
            assert self._reference is not None
            return self._reference
        return self.replica

    async def _rewrite(self) -> None:
        """Entries of some probes, written once more in company and read alone, each in a key space of its own.

        Production's entries were written among other requests too, with what that does to their last digits.
        """
        if self._isolation is not Isolation.FRESH_SALT or not self.replica.observer.usage_speaks:
            return
        chosen = list(itertools.islice(self._spread_over_prefixes(), REWRITTEN))
        requests = {prompt_id: self._request(prompt_id, salt=probe_salt("company")) for prompt_id in chosen}
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests.values():
                    group.create_task(self._observe(request))
        except ExceptionGroup as errors:
            raise one_of(errors) from errors
        for prompt_id, request in requests.items():
            self._rewritten[prompt_id] = [await self._observe(request)]

    def _spread_over_prefixes(self) -> Iterable[str]:
        """Probes with a clean hit: one of each shared prefix, then the next of each."""
        groups: dict[str, list[str]] = {}
        for prompt_id in self._clean:
            groups.setdefault(self.replica.prefixes[prompt_id], []).append(prompt_id)
        rounds = itertools.zip_longest(*groups.values())
        return (prompt_id for one in rounds for prompt_id in one if prompt_id is not None)

    def _can(self, isolation: Isolation) -> bool:
        match isolation:
            case Isolation.FRESH_SALT:
                return self._capabilities.has_salt
            case Isolation.BYPASS:
                return self._capabilities.has_bypass
            case Isolation.REFERENCE:
                return self._reference is not None
            case Isolation.NONE:
                return False

    async def _cold_leg(self, prompt_id: str, isolation: Isolation) -> Leg | None:
        """The reference leg, or None when it could not be proved cold; the reason goes into the notes."""
        on = self._reference if isolation is Isolation.REFERENCE else None
        counters = (on or self.replica).observer.engine.counters
        before = await counters()
        try:
            leg = await self._observe(self._cold_request(prompt_id, isolation), on=on)
        except Refused as error:
            if error.status != 400:
                raise
            self._notes.append(f"{isolation}: {error.message}")
            return None
        if leg.foreign_tokens is None:
            found = "nobody witnessed whether it hit"
        elif leg.foreign_tokens:
            found = f"hit {leg.foreign_tokens} tokens"
        elif (hidden := hidden_hits(before, await counters(), leg=leg)) > 0:
            found = f"the server's counters tell {hidden} more cached tokens than its usage"
        else:
            return leg
        note = f"{isolation} ({prompt_id}): {found}"
        if not any(known.startswith(f"{isolation} ") for known in self._notes):
            self._notes.append(note)
        return None

    def _cold_request(self, prompt_id: str, isolation: Isolation) -> Request:
        match isolation:
            case Isolation.FRESH_SALT:
                return self._request(prompt_id, salt=self._reference_salt)
            case Isolation.BYPASS:
                plain = self._request(prompt_id, salt=self.replica.deployment.salt)
                return replace(plain, bypasses_cache=True)
            case Isolation.REFERENCE:
                assert self._reference is not None
                can = self._reference.identity.capabilities
                salt = self._reference_salt if can.has_salt else None
                plain = self._request(prompt_id, salt=salt, on=self._reference)
                return replace(plain, bypasses_cache=can.reference_heals)
            case Isolation.NONE:
                raise AssertionError("no isolation has no cold leg")

    def _clean_hit_request(self, prompt_id: str) -> Request | None:
        """The request that hits what the cold leg left behind; None where it would hit what was there before."""
        cold = self._cold_request(prompt_id, self._isolation)
        is_reference = self._isolation is Isolation.REFERENCE
        answering = self._reference.identity.capabilities if self._reference and is_reference else self._capabilities
        if cold.bypasses_cache and not answering.reference_heals:
            return None
        return replace(cold, bypasses_cache=False)

    async def _repeat_suspects(self) -> None:
        """Asks suspects again, as `asking` plans it."""
        repeat = {LegKind.PRODUCTION: self._repeat_production, LegKind.CLEAN: self._repeat_cleanly}
        wanted = repeats_to_ask(self._probes(), floor=self._floor())
        ask = next(wanted, None)
        while ask is not None:
            leg = await repeat[ask.kind](ask.probe)
            try:
                ask = wanted.send(leg)
            except StopIteration:
                return

    async def _repeat_production(self, prompt_id: str) -> Leg:
        request = self._request(prompt_id, salt=self.replica.deployment.salt)
        return await self._fresh(prompt_id, request, kind=0, on=self.replica)

    async def _repeat_cleanly(self, prompt_id: str) -> Leg:
        request = self._clean_hit_request(prompt_id) or self._cold_request(prompt_id, self._isolation)
        return await self._fresh(prompt_id, request, kind=1, on=self._answering)

    async def _fresh(self, prompt_id: str, request: Request, *, kind: int, on: Replica) -> Leg:
        """One repeat; where candidates are told, the first token that is not forced says it all."""
        telling = telling_tokens(self._production[prompt_id][0].observation)
        leg = await self._observe(request if telling is None else replace(request, max_tokens=telling), on=on)
        self._repeats.setdefault(prompt_id, ([], []))[kind].append(leg)
        return leg


def hidden_hits(before: Counters | None, after: Counters | None, *, leg: Leg) -> int:
    """Cached tokens of a leg that the counters tell and its usage does not; 0 where they don't speak of it alone."""
    if before is None or after is None or leg.cached_tokens is None:
        return 0
    if after.queried_tokens - before.queried_tokens != leg.prompt_tokens:
        return 0
    return max(0, int(after.all_cached_tokens - before.all_cached_tokens) - leg.cached_tokens)
