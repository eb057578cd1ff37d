"""Observing one replica, in the only order that keeps the evidence.

Production legs first: every request changes the cache, and a control on a one-slot engine wipes what it should find.
Then other key spaces, control and binding; reference legs last, because they write too; entries written again in
company, production again, repeats of suspects and their peers at the end; but a suspect that differs by more than
writing explains is asked again as soon as its clean twin is there, before other clients evict what it hit. An engine
that a reference leg heals answers production's repeats before anybody is a suspect: there the reference leg wipes what
they should find. So does a flush, the last resort: it comes after everything else, of every rank that it would empty,
and production's repeats before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Request
from kvrelease.progress import Progress, ProgressEvent
from kvrelease.verify.asking import peers_to_write, repeats_at_once, repeats_to_ask
from kvrelease.verify.bisect import Bisector
from kvrelease.verify.distance import telling_tokens
from kvrelease.verify.evidence import (
    BindingEvidence,
    Calibration,
    ControlEvidence,
    ExposureEvidence,
    Isolation,
    ProbeEvidence,
    ReplicaEvidence,
)
from kvrelease.verify.exposure import exposed_suspects
from kvrelease.verify.floor import judging_floor
from kvrelease.verify.ladder import Ladder, Leaks
from kvrelease.verify.last_resort import LastResort
from kvrelease.verify.lookups import Lookups
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.record import MAX_TOKENS, probe_request
from kvrelease.verify.reference_legs import REWRITTEN, ReferenceLegs
from kvrelease.verify.repeated_legs import RepeatedLegs
from kvrelease.verify.suspicion import is_suspect
from kvrelease.verify.uniques import Uniques
from kvrelease.workload.prompt_set import Prompt

# Nonce prompts that measure the noise where the probes have no clean hits. The largest of eight, times
# `SUSPECT_RATIO`, is topped by the largest of a dozen in 6 % of runs where noise is exponential, in 1 % where normal.
NOISE_NONCES = 8

# Reference legs that are computed whole: of each shared prefix the first is, because nothing of it is there yet.
WHOLE = 8

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
        last_resort: the flush of its cache.
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
        self._leaks = Leaks()
        self._ladder = Ladder(replica, reference=reference, allows_flush=allows_flush, whole=self._to_compute_whole())
        self._production: dict[str, list[Leg]] = {}
        self._references = ReferenceLegs(
            replica,
            prompts=self._prompts,
            ladder=self._ladder,
            leaks=self._leaks,
            as_production=self._request,
            observe=self._observe,
        )
        self._repeated = self._repeated_in(replica.deployment.salt)
        self._uniques = Uniques(
            replica, route=probe_request(replica, probes[0], salt=None).route, observe=self._observe
        )
        self._exposure: list[ExposureEvidence] = []
        self._control: ControlEvidence | None = None
        self._binding: BindingEvidence | None = None
        self._residency: list[Leg] = []
        self._noise: list[tuple[Leg, Leg]] = []
        self._lookups = Lookups(replica.observer.engine)
        self._bisector = Bisector(
            replica,
            as_production=self._as_users_do,
            as_clean_twin=self._references.clean_twin,
            observe=self._observe,
        )
        self.last_resort = LastResort(
            replica,
            is_allowed=allows_flush,
            ladder=self._ladder,
            production=self._production,
            refer_by=self._refer_by,
            repeated=self._repeated,
            seen=self.evidence,
            as_production=self._as_users_do,
            observe=self._observe,
            tell=self._tell,
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
                await self._repeated.all_of_production(prompt_id)
        if self._is_fresh and await self._store_answered():
            self._is_fresh = None
        if self._capabilities.has_salt:
            await self._expose()
        self._control = await self._uniques.control()
        if self._capabilities.has_salt:
            self._binding = await self._uniques.binding()
        if (leaks := self._leaks.found) and self._capabilities.has_salt:
            hit = f"{leaks[0].asked} hit {leaks[0].cached_tokens} tokens in a key space that nobody had used"
            self._ladder.give_up(Isolation.FRESH_SALT, why=hit)
        if heals:
            self._noise = [await self._uniques.twice() for _ in range(NOISE_NONCES)]
        for prompt_id in self._prompts:
            await self._references.refer(prompt_id)
            await self._heal(prompt_id)
            await self._ask_again_at_once(prompt_id)
        if self._ladder.used is Isolation.REFERENCE:
            await self._calibrate()
        elif self._references.cold and not self._references.clean:
            self._noise = [await self._uniques.twice() for _ in range(NOISE_NONCES)]
        if not heals:
            await self._references.rewrite(self._to_rewrite())
            # What hit nothing at first may hit something now: these legs are judged like the first ones.
            for prompt_id in self._to_ask_at_last():
                self._residency.append(await self._ask_as_production(prompt_id))
            await self._repeated.ask(repeats_to_ask(self._probes(), floor=self._floor()))
            peers = peers_to_write(
                self._probes(), floor=self._floor(), capacity_tokens=self.replica.identity.capacity_tokens
            )
            await self._references.write_peers(peers, shortened=self._repeated.shortened)
            await self._repeat_exposed()
        await self._bisector.run(self.evidence())
        await self.replica.observer.require_same_process()

    def evidence(self) -> ReplicaEvidence:
        """What has been observed so far."""
        return ReplicaEvidence(
            identity=self.replica.identity,
            is_fresh=self._is_fresh,
            isolation=self._ladder.used,
            rungs=self._ladder.rungs(),
            leaks=tuple(self._leaks.found),
            flush=self.last_resort.flush,
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
            rechecks=tuple(self.last_resort.rechecks),
        )

    def _probes(self) -> tuple[ProbeEvidence, ...]:
        references = self._references
        return tuple(
            ProbeEvidence(
                id=prompt_id,
                prefix=self.replica.prefixes[prompt_id],
                weight=self._prompts[prompt_id].weight,
                production=tuple(legs),
                cold=references.cold.get(prompt_id),
                clean=tuple(references.clean.get(prompt_id, ())),
                rewritten=tuple(references.rewritten.get(prompt_id, ())),
                peers=tuple(references.peers.get(prompt_id, ())),
                repeats=self._repeated.of(prompt_id),
            )
            for prompt_id, legs in self._production.items()
        )

    def _probe(self, prompt_id: str) -> ProbeEvidence:
        return next(probe for probe in self._probes() if probe.id == prompt_id)

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
        self._tell(f"verifying {self.replica.identity.shown}")
        return leg

    def _tell(self, stage: str) -> None:
        self._progress(ProgressEvent(stage=stage, done=self._done, total=None, unit="requests"))

    def _request(self, prompt_id: str, salt: str | None) -> Request:
        return probe_request(self.replica, self._prompts[prompt_id], salt=salt)

    def _as_users_do(self, prompt_id: str) -> Request:
        return self._request(prompt_id, self.replica.deployment.salt)

    async def _ask_as_production(self, prompt_id: str) -> Leg:
        leg = await self._observe(self._as_users_do(prompt_id))
        self._production.setdefault(prompt_id, []).append(leg)
        return leg

    async def _refer_by(self, way: Isolation, prompt_id: str) -> Leg | None:
        leg = await self._references.refer_by(way, prompt_id)
        await self._heal(prompt_id)
        return leg

    async def _heal(self, prompt_id: str) -> None:
        """What a reference leg replaced cannot be asked for later: a suspect's clean repeats come at once."""
        if not self._capabilities.reference_heals or prompt_id not in self._references.clean:
            return
        if is_suspect(self._probe(prompt_id), self._floor()):
            await self._repeated.all_clean([prompt_id])

    async def _ask_again_at_once(self, prompt_id: str) -> None:
        """What other clients evict cannot be asked for later either: repeats of a large difference come at once."""
        if not self._capabilities.reference_heals and prompt_id in self._references.clean:
            probe = self._probe(prompt_id)
            await self._repeated.ask(repeats_at_once(probe, among=self._probes(), floor=self._floor))

    async def _expose(self) -> None:
        for key_space in self._spaces:
            for prompt_id in self._one_per_prefix()[:EXPOSURE_PROBES]:
                leg = await self._observe(self._request(prompt_id, key_space))
                self._exposure.append(ExposureEvidence(key_space=key_space, probe=prompt_id, leg=leg))

    async def _repeat_exposed(self) -> None:
        """Asks the worst suspect of each other key space again there, beside its clean twin."""
        floor = self._floor()
        for place, suspect in exposed_suspects(self.evidence(), floor=floor).items():
            there = self._repeated_in(self._exposure[place].key_space)
            await there.ask(repeats_to_ask([suspect], floor=floor))
            self._exposure[place] = replace(self._exposure[place], repeats=there.of(suspect.id))

    def _repeated_in(self, key_space: str | None) -> RepeatedLegs:
        """Repeats that are sent as production's are, into another key space."""
        return RepeatedLegs(
            as_production=lambda prompt_id: self._request(prompt_id, key_space),
            clean_twin=self._references.clean_twin,
            screening=lambda prompt_id: self._production[prompt_id][0],
            observe=self._observe,
        )

    async def _calibrate(self) -> None:
        """What the kernels of a second engine add to the noise."""
        probes = itertools.cycle(self._spread_over_prefixes(self._references.cold))
        for like in itertools.islice(probes, NOISE_NONCES):
            tokens = telling_tokens(self._production[like][0].observation) or MAX_TOKENS
            prompt, found = await self._uniques.of_both(self._prompts[like], ladder=self._ladder, max_tokens=tokens)
            self.unique[prompt.id] = prompt
            self._calibration.append(found)

    def _one_per_prefix(self) -> list[str]:
        first: dict[str, str] = {}
        for prompt_id in self._prompts:
            first.setdefault(self.replica.prefixes[prompt_id], prompt_id)
        return list(first.values())

    def _to_rewrite(self) -> list[str]:
        """In order of choice; of half the reference leg found what an earlier one left, as users' requests do."""
        first, later = self._first_and_later()
        half = REWRITTEN // 2
        return [*first[:half], *later[:half], *first[half:], *later[half:]]

    def _to_compute_whole(self) -> list[str]:
        """Others that would find the system prompt that an earlier reference leg left: as many as make up `WHOLE`."""
        first, later = self._first_and_later()
        rewritten = self._to_rewrite()[:REWRITTEN]
        return [prompt_id for prompt_id in later if prompt_id not in rewritten][: max(0, WHOLE - len(first))]

    def _first_and_later(self) -> tuple[list[str], list[str]]:
        """The first probe of each shared prefix, and the others."""
        prefixes = {self.replica.prefixes[prompt_id] for prompt_id in self._prompts}
        spread = self._spread_over_prefixes(self._prompts)
        return spread[: len(prefixes)], spread[len(prefixes) :]

    def _to_ask_at_last(self) -> list[str]:
        """One probe of each shared prefix, of those that hit nothing at first before others, then more that were warm.

        What missed may hit when it is asked again (a tier that answers late): only that look shows what users get then.
        """
        first = self._one_per_prefix()
        missed = [prompt_id for prompt_id in first if not self._production[prompt_id][0].cached_tokens]
        warm = [prompt_id for prompt_id, legs in self._production.items() if legs[0].hits_wholly]
        return list(dict.fromkeys((*missed, *first, *self._spread_over_prefixes(warm))))[:LAST_LOOKS]

    def _spread_over_prefixes(self, probes: Iterable[str]) -> list[str]:
        """One of each shared prefix, then the next of each."""
        groups: dict[str, list[str]] = {}
        for prompt_id in probes:
            groups.setdefault(self.replica.prefixes[prompt_id], []).append(prompt_id)
        rounds = itertools.zip_longest(*groups.values())
        return [prompt_id for one in rounds for prompt_id in one if prompt_id is not None]
