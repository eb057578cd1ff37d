"""What `verify` observed, before any judgement. Saved with `--observations`, judged again with `--from`."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef
from kvrelease.binding.observe import Leg
from kvrelease.binding.ranks import RankProof
from kvrelease.engines.base import Counters, EngineIdentity, Observation


class Isolation(enum.StrEnum):
    """How a reference leg kept away from what was cached."""

    FRESH_SALT = "fresh-salt"
    BYPASS = "bypass"
    REFERENCE = "reference"
    FLUSH = "flush"
    NONE = "none"


class RungOutcome(enum.StrEnum):
    """What became of one way to isolate reference legs."""

    USED = "used"
    GIVEN_UP = "given up"
    UNNEEDED = "not needed"
    UNTRIED = "not tried"
    LACKING = "not there"
    NOT_ASKED_FOR = "not asked for"


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One way to isolate reference legs, as this run found it.

    Attributes:
        isolation: which way.
        outcome: what became of it.
        proved: reference legs that it was proved cold for.
        failed: reference legs that could not be proved cold.
        detail: why it was given up or never tried, or how it was proved; one clause.
    """

    isolation: Isolation
    outcome: RungOutcome
    proved: int = 0
    failed: int = 0
    detail: str


class SaltLeak(msgspec.Struct, frozen=True, kw_only=True):
    """A request that hit in a key space of this run's own, where nothing of ours was: some layer ignores the salt.

    Attributes:
        asked: what was sent: the id of a probe, or `nonce`.
        cached_tokens: that nobody computed in that key space.
        leg: what came back; None where only the server's counters told the hit.
    """

    asked: str
    cached_tokens: int
    leg: Leg | None = None


class FlushEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """An emptied cache (`--allow-flush`), recorded before it is emptied, and again after.

    Attributes:
        probe: whose hit proves that there was something to be emptied.
        cached_before: tokens of it that were cached before.
        requests_before: answered by the replica before: everything that needs the cache as it was.
        is_done: the engine was asked; False only in what is saved just before.
        says_done: what it answered; None where its reply does not tell.
        refusal: why nothing was emptied; None where the engine was asked and did not refuse.
        cached_after: tokens of it that were cached when it was sent next; None when not known.
    """

    probe: str
    cached_before: int
    requests_before: int
    is_done: bool = False
    says_done: bool | None = None
    refusal: str | None = None
    cached_after: int | None = None

    @property
    def is_proved(self) -> bool:
        """The probe hit before, and nothing of it was there afterwards."""
        return self.is_done and self.cached_before > 0 and self.cached_after == 0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the run was asked to prove.

    Attributes:
        confidence: of the claim, 0 to 1.
        stale_below: the share of requests below which staleness must be shown to lie, 0 to 1.
        expects_cold: nobody has sent this release a request yet.
        requires_power: an unknown power makes the run inconclusive.
    """

    confidence: float = 0.95
    stale_below: float
    expects_cold: bool = False
    requires_power: bool = False


def untainted(legs: Iterable[Leg]) -> tuple[Leg, ...]:
    """Reference legs without those that hit entries which nobody of ours made: such a leg is as stale as users' are.

    A layer that ignores salts now and then answers them. A hit of unknown origin counts as the run's own: a cold leg in
    the same key space was proved cold before it.
    """
    return tuple(leg for leg in legs if not leg.foreign_tokens)


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked again of a probe, apart from what made it a suspect.

    Attributes:
        production: [legs] as users send it.
        clean: [legs] as its clean twin; in turns with the production legs, in random order, where the engine allows it.
    """

    production: tuple[Leg, ...] = ()
    clean: tuple[Leg, ...] = ()


class ProbeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of the set, observed on one replica.

    Attributes:
        id: of the prompt.
        prefix: the shared prefix it belongs to.
        weight: traffic weight.
        production: [legs] exactly as users send it: the screening leg, and the one that asked for residency.
        cold: reference leg with the cache bypassed, None when no isolation was found.
        clean: [legs] clean hits: the reference's own entries, asked again.
        rewritten: [legs] clean hits on entries that were written once more, in company of other requests.
        peers: [legs] the same of entries written after something differed, among which users' own is ranked (`peers`).
        repeats: of a suspect; where a reference leg heals the engine, production's legs of every probe.
    """

    id: str
    prefix: str
    weight: float
    production: tuple[Leg, ...]
    cold: Leg | None = None
    clean: tuple[Leg, ...] = ()
    rewritten: tuple[Leg, ...] = ()
    peers: tuple[Leg, ...] = ()
    repeats: Repeats = Repeats()

    @property
    def reference_legs(self) -> tuple[Leg, ...]:
        """The cold leg where there is one, and the clean hits after it."""
        return self.clean if self.cold is None else (self.cold, *self.clean)

    @property
    def every_clean_leg(self) -> tuple[Leg, ...]:
        """The reference legs, and everything else that read entries of this run's own."""
        return (*self.reference_legs, *self.rewritten, *self.peers, *self.repeats.clean)


class ExposureEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One probe sent into a key space that production does not use, and clients may still reach.

    Attributes:
        key_space: the salt, None for unsalted.
        probe: which one.
        leg: its answer there.
        repeats: of the worst suspicious one of a key space: more legs there, and as many of its clean twin.
    """

    key_space: str | None
    probe: str
    leg: Leg
    repeats: Repeats = Repeats()


class BindingEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A nonce prompt, sent inside the namespace, then as production, then under a fresh salt."""

    inside: Leg
    as_production: Leg
    fresh_salt: Leg


class ControlEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A unique prompt of two blocks or more, sent twice as production.

    Attributes:
        legs: [2].
        counted_hits: how far the server's hit counter moved over both, None when it has none.
        counted_queries: how far its counter of looked-up tokens did; None likewise, or where it went back.
    """

    legs: tuple[Leg, Leg]
    counted_hits: float | None
    counted_queries: float | None = None


class ReferencePair(msgspec.Struct, frozen=True, kw_only=True):
    """The same prompt from the replica's reference leg and from a witness of the release's identity."""

    probe: str
    witness: Observation


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A unique prompt, asked of the engine and of the second one that gives the reference legs.

    Attributes:
        name: nobody else's; in-process twins of it carry it too.
        engine: [1 or 2] as production: a miss, and a hit.
        reference: [1 or 2] likewise.
    """

    name: str
    engine: tuple[Leg, ...]
    reference: tuple[Leg, ...]


class PowerPair(msgspec.Struct, frozen=True, kw_only=True):
    """The same prompt on the new weights in process: over the old release's KV, and clean."""

    probe: str
    stale: Observation
    clean: Observation


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a prompt as token ids, cut after whole blocks, and answered both ways.

    Attributes:
        blocks: that the cut was to hit: it is just long enough for them.
        production: in production's key space.
        clean: its clean twin.
    """

    blocks: int
    production: Leg
    clean: Leg


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The search for the first stale block of one shared prefix, by cuts of the prompt of its worst probe.

    Attributes:
        probe: whose prompt was cut.
        prefix: that it belongs to.
        block_tokens: tokens of a block; None when not known.
        cuts: in the order asked; none where it could not begin.
        why_not: why it could not begin, or go on; None when it came to its end.
    """

    probe: str
    prefix: str
    block_tokens: int | None
    cuts: tuple[Cut, ...] = ()
    why_not: str | None = None


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """How the server's counters moved while a probe was asked for the first time as production."""

    probe: str
    counted: Counters


class InProcessAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a stale probe, answered by the releases in process.

    Attributes:
        probe: its id.
        old: by the old release.
        stale: by the new one over the old one's KV, where the engine served stale blocks.
        clean: by the new one over as much KV of its own.
    """

    probe: str
    old: Observation
    stale: Observation
    clean: Observation


class Recheck(msgspec.Struct, frozen=True, kw_only=True):
    """A stale probe, asked again as production after the cache was emptied."""

    probe: str
    leg: Leg


class ReplicaEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything observed on one replica.

    Attributes:
        identity: what it said of itself at the start.
        is_fresh: no request had reached it before this run; None when its counters do not tell, or when a store
            outside the process answered, which earlier processes of this release may have filled.
        isolation: how reference legs were isolated.
        rungs: every way to isolate reference legs, in the order of trying.
        leaks: requests that hit in fresh key spaces, in the order sent.
        flush: how its cache was emptied; None where it was not.
        probes: in the order sent.
        exposure: other key spaces.
        control: None when it could not be sent.
        binding: None when the engine has no salt.
        identity_pairs: in-process or golden twins of some reference legs.
        identity_source: `golden`, `release` (in process), or `none`.
        identity_failure: why the release could not be run in process; None when it could, or was not to.
        identity_is_alike: the witness ran on the same kind and version of engine, so kernels hardly differ.
        old_pairs: twins from the old release's baseline.
        old_is_alike: the baseline is of the same kind and version of engine.
        weights_differ: the release's weights are other ones than the baseline's; None where one does not say.
        old_identity_pairs: twins from the old release, by the same kind of source as `identity_pairs`.
        residency: production legs asked again at the end; `probes` has them too.
        reference: the engine that gave the reference legs, None for the replica itself.
        calibration: unique prompts that both engines were asked, where the second one gave the reference legs.
        noise: [nonce prompts] a miss and a hit of each, where the isolation allows no clean hits of the probes.
        lookups: of the first production legs, where the counters tell tiers apart.
        bisections: of stale and suspect prefixes, the worst first.
        in_process: the prompts of those, in process; empty without both releases.
        allows_flush: the user permitted to empty its cache.
        rechecks: stale probes, asked again after that; the flush's own probe first.
        rank_proof: whether requests for its rank reach it; None where it is no rank, or the run ended before.
    """

    identity: EngineIdentity
    is_fresh: bool | None
    isolation: Isolation
    rungs: tuple[Rung, ...] = ()
    leaks: tuple[SaltLeak, ...] = ()
    flush: FlushEvidence | None = None
    probes: tuple[ProbeEvidence, ...]
    exposure: tuple[ExposureEvidence, ...] = ()
    control: ControlEvidence | None = None
    binding: BindingEvidence | None = None
    identity_pairs: tuple[ReferencePair, ...] = ()
    identity_source: str = "none"
    identity_failure: str | None = None
    identity_is_alike: bool = False
    old_pairs: tuple[ReferencePair, ...] = ()
    old_is_alike: bool = False
    weights_differ: bool | None = None
    old_identity_pairs: tuple[ReferencePair, ...] = ()
    residency: tuple[Leg, ...] = ()
    reference: EngineIdentity | None = None
    calibration: tuple[Calibration, ...] = ()
    noise: tuple[tuple[Leg, Leg], ...] = ()
    lookups: tuple[Lookup, ...] = ()
    bisections: tuple[Bisection, ...] = ()
    in_process: tuple[InProcessAnswers, ...] = ()
    allows_flush: bool = False
    rechecks: tuple[Recheck, ...] = ()
    rank_proof: RankProof | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the run cost the engines.

    Attributes:
        requests: sent, without retries.
        retries: sent again.
        tokens: prompt tokens of all of them, where told.
        computed_tokens: of these, not from the cache; None where not every answer tells.
        on_reference: of the requests, those that a second engine answered.
        seconds: wall clock.
    """

    requests: int
    retries: int
    tokens: int
    computed_tokens: int | None = None
    on_reference: int = 0
    seconds: float


class Evidence(Artifact, frozen=True, kw_only=True, tag="kvrelease/evidence"):
    """A whole run of observation.

    Attributes:
        release: that is said to be served.
        namespace: of that release.
        production_salt: the name of the key space that users use, never a secret; None for unsalted.
        prompt_set: digest of the prompt set.
        population: how many prompts the set has.
        skipped: ids of prompts too short to say anything.
        limits: what was to be proved.
        replicas: one entry each.
        power: stale against clean, in process; empty when not computed.
        cost: of the run.
        faults: what ended parts of the run early, or left replicas unjudged.
        stray_fields: fields of production's body that hold a namespace, though no engine reads a key space from them.
        interrupted: the run was cut short.
        prompts: where the prompt set was read; None in older evidence.
        old_release: the one before, where it was named and could be read here.
        is_salt_declared: somebody said which salt users send, or that they send none.
    """

    release: ReleaseRef
    namespace: str
    production_salt: str | None
    prompt_set: str
    population: int
    skipped: tuple[str, ...]
    limits: Limits
    replicas: tuple[ReplicaEvidence, ...]
    power: tuple[PowerPair, ...] = ()
    cost: Cost
    faults: tuple[Fault, ...] = ()
    stray_fields: tuple[str, ...] = ()
    interrupted: bool = False
    prompts: str | None = None
    old_release: ReleaseRef | None = None
    is_salt_declared: bool = True
