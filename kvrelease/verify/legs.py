"""Observing one replica, in the only order that keeps the evidence.

Production legs first: every request changes the cache, and a control on a one-slot engine wipes what it should find.
Then other key spaces, control and binding; reference legs last, because they write too; entries written again in
company, production again, and repeats of suspects at the end. An engine that a reference leg heals answers production's
repeats at once, before anybody is a suspect: there the reference leg wipes what they should find. So does a flush, the
last resort: it comes after everything else, of every rank that it would empty, and production's repeats before it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from kvrelease.binding.deployment import Replica
from kvrelease.binding.flushing import Flushing
from kvrelease.binding.observe import Leg
from kvrelease.binding.salts import probe_salt
from kvrelease.engines.base import Request
from kvrelease.errors import Refused, UsageError, one_of
from kvrelease.progress import Progress, ProgressEvent
from kvrelease.verify.asking import LegKind, repeats_to_ask, suspects_of
from kvrelease.verify.bisect import Bisector
from kvrelease.verify.consistency import is_suspect
from kvrelease.verify.distance import telling_tokens
from kvrelease.verify.evidence import (
    BindingEvidence,
    Calibration,
    ControlEvidence,
    ExposureEvidence,
    FlushEvidence,
    Isolation,
    ProbeEvidence,
    Recheck,
    Repeats,
    ReplicaEvidence,
)
from kvrelease.verify.floor import judging_floor
from kvrelease.verify.ladder import Ladder, Leaks, hidden_hits, why_not_cold
from kvrelease.verify.lookups import Lookups
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.recheck import probes_to_recheck
from kvrelease.verify.record import MAX_TOKENS, probe_request
from kvrelease.verify.repeats import REPEATS, in_turn
from kvrelease.verify.uniques import Uniques
from kvrelease.workload.prompt_set import Prompt

# Probes that are written once more, in company, for the noise floor. Two requests each: a clean run of sixty probes
# takes at most 3.5 requests for each of them.
REWRITTEN = 8

# Nonce prompts that measure the noise where the probes have no clean hits. The largest of eight, times
# `SUSPECT_RATIO`, is topped by the largest of a dozen in 6 % of runs where noise is exponential, in 1 % where normal.
NOISE_NONCES = 8

# Probes that are asked once more at the end: is the warm set still there?
LAST_LOOKS = 6

# Key spaces besides production's get one probe for each of so many shared prefixes.
EXPOSURE_PROBES = 3


class Collector:
    """One replica's evidence as it comes in; `evidence` tells what there is so far, at any time.

    Args:
        replica: prepared.
        probes: drawn from the prompt set.
        other_spaces: key spaces besides production's that clients may still reach.
        reference: a clean second engine for reference legs, None to isolate on the replica itself.
        allows_flush: the replica's own cache may be emptied, where nothing else isolates reference legs.
        progress: told after each request.

    Attributes:
        replica: as given.
        unique: by name, prompts that both engines were asked, where a second one gave the reference legs.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        probes: Sequence[Prompt],
        other_spaces: Sequence[str | None],
        reference: Replica | None,
        allows_flush: bool = False,
        progress: Progress,
    ) -> None:
        self.replica = replica
        self._prompts = {prompt.id: prompt for prompt in probes}
        self._spaces = tuple(other_spaces)
        self._reference = reference
        self._progress = progress
        self._capabilities = replica.identity.capabilities
        self._is_fresh: bool | None = None
        self._allows_flush = allows_flush
        self._ladder = Ladder(replica, reference=reference, allows_flush=allows_flush)
        self._isolated_by: dict[str, Isolation] = {}
        self._flush: FlushEvidence | None = None
        self._rechecks: list[Recheck] = []
        self._leaks = Leaks()
        self._uniques = Uniques(
            replica, route=probe_request(replica, probes[0], salt=None).route, observe=self._observe
        )
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
        self._lookups = Lookups(replica.observer.engine)
        self._bisector = Bisector(
            replica,
            as_production=lambda prompt_id: self._request(prompt_id, salt=replica.deployment.salt),
            as_clean_twin=self._clean_twin,
            observe=self._observe,
        )
        self._calibration: list[Calibration] = []
        self.unique: dict[str, Prompt] = {}
        self._done = 0

    async def collect(self) -> None:
        """Sends everything, in order.

        Raises:
            KvreleaseError: the engine failed; `evidence` keeps what was observed before.
        """
        self._is_fresh = await self._nobody_was_here()
        heals = self._capabilities.reference_heals
        for prompt_id in self._prompts:
            await self._lookups.around(prompt_id, self._ask_as_production)
            if heals:
                for _ in range(REPEATS):
                    await self._repeat_production(prompt_id)
        if self._is_fresh and await self._store_answered():
            self._is_fresh = None
        if self._capabilities.has_salt:
            await self._expose()
        self._control = await self._uniques.control()
        if self._capabilities.has_salt:
            self._binding = await self._uniques.binding()
        if heals:
            self._noise = [await self._uniques.twice() for _ in range(NOISE_NONCES)]
        for prompt_id in self._prompts:
            await self._refer(prompt_id)
        if self._ladder.used is Isolation.REFERENCE:
            await self._calibrate()
        elif self._cold and not self._clean:
            self._noise = [await self._uniques.twice() for _ in range(NOISE_NONCES)]
        if not heals:
            await self._rewrite()
            # What hit nothing at first may hit something now: these legs are judged like the first ones.
            for prompt_id in self._to_ask_at_last():
                self._residency.append(await self._ask_as_production(prompt_id))
            await self._repeat_suspects()
        await self._bisector.run(self.evidence())
        await self.replica.observer.require_same_process()

    @property
    def wants_flush(self) -> bool:
        """Whether it may be emptied, and that isolates reference legs, or tells cache from model after a failure."""
        return self._allows_flush and bool(self._unreferred() or probes_to_recheck(self.evidence()))

    async def prepare_flush(self) -> None:
        """What has to be asked while the cache is as it was: production's repeats, and a hit that proves the flush.

        Raises:
            KvreleaseError: the engine failed.
        """
        for prompt_id in self._unreferred():
            # What this release computed itself, as far as the ledger knows, can hardly be stale: it is not asked again.
            if not self._capabilities.reference_heals and any(
                leg.cached_tokens and leg.foreign_tokens != 0 for leg in self._production[prompt_id]
            ):
                for _ in range(REPEATS):
                    await self._repeat_production(prompt_id)
        asked_after = self._unreferred() or probes_to_recheck(self.evidence())
        probe = max(asked_after, key=lambda one: self._production[one][-1].cached_tokens or 0)
        leg = await self._observe(replace(self._request(probe, salt=self.replica.deployment.salt), max_tokens=1))
        if not leg.cached_tokens:
            if self._unreferred():
                why = "nothing hits now, or nobody witnesses it, so that a flush emptied anything could not be shown"
                self._ladder.failed(Isolation.FLUSH, probe=probe, why=why)
            return
        self._flush = FlushEvidence(probe=probe, cached_before=leg.cached_tokens, requests_before=self._done)

    @property
    def is_about_to_flush(self) -> bool:
        """Whether everything is asked that has to be before the cache is emptied."""
        return self._flush is not None and not self._flush.is_done

    async def refer_after_flush(self, flushing: Flushing) -> None:
        """Empties the cache, and sends the probes that have no reference leg once more as production.

        Raises:
            KvreleaseError: the engine failed.
        """
        if self._flush is None:
            return
        self._tell(f"emptying the cache of {self.replica.identity.shown} (--allow-flush)")
        try:
            says_done = await flushing.flush(self.replica)
        except UsageError as error:
            self._flush = replace(self._flush, refusal=error.message)
            if self._unreferred():
                self._ladder.failed(Isolation.FLUSH, probe=self._flush.probe, why=error.message)
            return
        self._flush = replace(self._flush, is_done=True, says_done=says_done)
        probe, stale = self._flush.probe, probes_to_recheck(self.evidence())
        is_for_reference = probe in self._unreferred()
        others = [one for one in self._unreferred() if one != probe]
        leg = await (self._refer_by(Isolation.FLUSH, probe) if is_for_reference else self._recheck(probe))
        self._flush = replace(self._flush, cached_after=None if leg is None else leg.cached_tokens)
        if not self._flush.is_proved:
            return
        for prompt_id in stale:
            if prompt_id != probe:
                await self._recheck(prompt_id)
        for prompt_id in others:
            await self._refer_by(Isolation.FLUSH, prompt_id)
        suspects = suspects_of(self._probes(), floor=self._floor())
        for suspect in in_turn([one for one in suspects if one.repeats.production and not one.repeats.clean]):
            for _ in range(REPEATS):
                await self._repeat_cleanly(suspect.id)
        await self.replica.observer.require_same_process()

    async def _recheck(self, prompt_id: str) -> Leg:
        """A stale probe as production, over an emptied cache."""
        leg = await self._observe(self._request(prompt_id, salt=self.replica.deployment.salt))
        self._rechecks.append(Recheck(probe=prompt_id, leg=leg))
        return leg

    def _unreferred(self) -> list[str]:
        """Probes of which no reference leg was proved cold."""
        return [prompt_id for prompt_id in self._production if prompt_id not in self._cold]

    def evidence(self) -> ReplicaEvidence:
        """What has been observed so far."""
        return ReplicaEvidence(
            identity=self.replica.identity,
            is_fresh=self._is_fresh,
            isolation=self._ladder.used,
            isolation_notes=self._ladder.notes,
            rungs=self._ladder.rungs(),
            leaks=tuple(self._leaks.found),
            flush=self._flush,
            probes=self._probes(),
            exposure=tuple(self._exposure),
            control=self._control,
            binding=self._binding,
            residency=tuple(self._residency),
            reference=self._reference.identity if self._reference else None,
            calibration=tuple(self._calibration),
            noise=tuple(self._noise),
            lookups=tuple(self._lookups.found),
            bisections=tuple(self._bisector.found),
            allows_flush=self._allows_flush,
            rechecks=tuple(self._rechecks),
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
        return judging_floor(self.evidence())

    async def _nobody_was_here(self) -> bool | None:
        if self._capabilities.cache_outlives_process:
            return None
        counters = await self.replica.observer.engine.counters()
        return None if counters is None else counters.queried_tokens == 0

    async def _store_answered(self) -> bool:
        """Whether hits of a process that nobody had asked came from outside it: an earlier one may have left them."""
        counters = await self.replica.observer.engine.counters()
        return counters is not None and bool(counters.external_cached_tokens)

    async def _observe(self, request: Request, *, on: Replica | None = None, asked: str = "nonce") -> Leg:
        leg = await (on or self.replica).observer.observe(request)
        if on is None or on is self.replica:
            self._leaks.look(leg, asked=asked)
        self._done += 1
        self._tell(f"verifying {self.replica.identity.url}")
        return leg

    def _tell(self, stage: str) -> None:
        self._progress(ProgressEvent(stage=stage, done=self._done, total=None, unit="requests"))

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

    def _to_ask_at_last(self) -> list[str]:
        """One probe of each shared prefix, and more of those that were warm before the run."""
        warm = [prompt_id for prompt_id, legs in self._production.items() if legs[0].hits_wholly]
        return list(dict.fromkeys((*self._one_per_prefix(), *self._spread_over_prefixes(warm))))[:LAST_LOOKS]

    async def _expose(self) -> None:
        for key_space in self._spaces:
            for prompt_id in self._one_per_prefix():
                leg = await self._observe(self._request(prompt_id, salt=key_space))
                self._exposure.append(ExposureEvidence(key_space=key_space, probe=prompt_id, leg=leg))

    async def _calibrate(self) -> None:
        """What the kernels of a second engine add to the noise."""
        probes = itertools.cycle(self._spread_over_prefixes(self._cold))
        for like in itertools.islice(probes, NOISE_NONCES):
            tokens = telling_tokens(self._production[like][0].observation) or MAX_TOKENS
            prompt, found = await self._uniques.of_both(self._prompts[like], ladder=self._ladder, max_tokens=tokens)
            self.unique[prompt.id] = prompt
            self._calibration.append(found)

    async def _refer(self, prompt_id: str) -> None:
        """A proved cold leg of one probe, and its clean hits where its isolation allows them."""
        for way in self._ladder.candidates():
            await self._refer_by(way, prompt_id)
            if prompt_id in self._cold:
                return

    async def _refer_by(self, way: Isolation, prompt_id: str) -> Leg | None:
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
        self._cold[prompt_id] = leg
        await self._hit_cleanly(prompt_id, way)
        return leg

    async def _hit_cleanly(self, prompt_id: str, way: Isolation) -> None:
        """The clean hit of a probe, where its isolation allows any."""
        hit = self._ladder.hit_request(self._prompts[prompt_id], way)
        if hit is None:
            return
        self._clean[prompt_id] = [await self._observe(hit, on=self._ladder.answering(way))]
        if not self._capabilities.reference_heals:
            return
        (probe,) = (one for one in self._probes() if one.id == prompt_id)
        if is_suspect(probe, self._floor()):
            for _ in range(REPEATS):
                await self._repeat_cleanly(prompt_id)

    async def _rewrite(self) -> None:
        """Entries of some probes, written once more in company and read alone, each in a key space of its own.

        Production's entries were written among other requests too, with what that does to their last digits.
        """
        if self._ladder.used is not Isolation.FRESH_SALT or not self.replica.observer.usage_speaks:
            return
        chosen = list(itertools.islice(self._spread_over_prefixes(self._clean), REWRITTEN))
        requests = {prompt_id: self._request(prompt_id, salt=probe_salt("company")) for prompt_id in chosen}
        try:
            async with asyncio.TaskGroup() as group:
                for prompt_id, request in requests.items():
                    group.create_task(self._observe(request, asked=prompt_id))
        except ExceptionGroup as errors:
            raise one_of(errors) from errors
        for prompt_id, request in requests.items():
            self._rewritten[prompt_id] = [await self._observe(request)]

    def _spread_over_prefixes(self, probes: Iterable[str]) -> Iterable[str]:
        """One of each shared prefix, then the next of each."""
        groups: dict[str, list[str]] = {}
        for prompt_id in probes:
            groups.setdefault(self.replica.prefixes[prompt_id], []).append(prompt_id)
        rounds = itertools.zip_longest(*groups.values())
        return (prompt_id for one in rounds for prompt_id in one if prompt_id is not None)

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

    def _clean_twin(self, prompt_id: str) -> tuple[Request, Replica]:
        """The request that is like a production leg, and clean; and who answers it."""
        way = self._isolated_by[prompt_id]
        return self._ladder.clean_request(self._prompts[prompt_id], way), self._ladder.answering(way)

    async def _repeat_cleanly(self, prompt_id: str) -> Leg:
        request, on = self._clean_twin(prompt_id)
        return await self._fresh(prompt_id, request, kind=1, on=on)

    async def _fresh(self, prompt_id: str, request: Request, *, kind: int, on: Replica) -> Leg:
        """One repeat; where candidates are told, the first token that is not forced says it all."""
        telling = telling_tokens(self._production[prompt_id][0].observation)
        leg = await self._observe(request if telling is None else replace(request, max_tokens=telling), on=on)
        self._repeats.setdefault(prompt_id, ([], []))[kind].append(leg)
        return leg
