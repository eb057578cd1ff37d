"""Do production legs and clean reference legs agree within the noise floor?

Three steps. A probe whose screening leg lies farther from its clean twin than noise explains is a *suspect*. A suspect
is asked again, in fresh legs of both kinds (`repeats`). What shows there is *stale* where it is a proof on its own, or
where under more shared prefixes than chance explains no entry that was written again answers so (`peers`). Formulas,
sizes, error rates: docs/statistics.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

import msgspec

from kvrelease.engines.base import Observation
from kvrelease.verify.calibration import FOREIGN_BOUND_NATS
from kvrelease.verify.clearing import NOISE_MARGIN, largest_among, legs_of_the_same
from kvrelease.verify.distance import ENOUGH_CANDIDATES, Distance, distance
from kvrelease.verify.evidence import ProbeEvidence, untainted
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.peers import proven_by_rank
from kvrelease.verify.repeats import LEGS_THAT_CLEAR, RepeatsResult, in_turn, repeats_result

# With a dozen probes against two dozen clean pairs, one production distance in three runs would top the largest clean
# one by chance alone; three times the largest was topped in none of the clean runs of docs/statistics.md.
SUSPECT_RATIO = 3.0

# Floating-point dust of the JSON round trip; a floor below it is zero.
DUST_NATS = 1e-6

# More than one step of bf16 logits, less than two: one step on one probe is no proof.
MORE_THAN_ONE_QUANTUM = 1.5

# Where no list has two candidates to read it from: that of bf16 logits from 16 to 32, as vLLM on a CPU has them.
UNKNOWN_QUANTUM_NATS = 0.125

# The largest distance seen between clean answers of one engine, whose entries were written in other company
# (docs/statistics.md): an entry differs for good by how it was written, so a smaller difference under one prefix alone
# is no proof, however often it shows.
WRITTEN_APART_NATS = 0.06

# By how much larger it is over one to five candidates: of 18 pairs of entries 0.24 nats at most, over twenty 0.18.
FEW_ARE_NOISIER = 1.4


class ProbeVerdict(enum.StrEnum):
    """What one probe showed."""

    CLEAN = "clean"
    STALE = "stale"
    SUSPECT = "suspect"
    UNJUDGED = "unjudged"


class CloserTo(enum.StrEnum):
    """Whose answer a stale one is like (`closeness`)."""

    OLD = "old"
    """The old release's own: its weights, or an answer that somebody kept."""
    HYBRID = "hybrid"
    """The new weights' over the old release's KV: what a stale cache makes."""
    NEW = "new"
    """The new release's: hardly stale."""
    UNLIKE = "unlike"
    """None of the old release's, the hybrid and the new one's: another release's KV, a mixture, or damage."""


class ProbeJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """One probe, judged.

    Attributes:
        id: of the prompt.
        replica: which one (`EngineIdentity.shown`).
        prefix: the shared prefix it belongs to.
        verdict: `suspect` means a difference that was not repeated, or not enough on its own.
        detail: why, one sentence.
        distance: the largest of a production leg against its clean twin, nats; None when not measurable.
        cached_tokens: of the production leg that lies farthest from its twin, like what follows.
        foreign_tokens: of these, explained by nothing; None when not known.
        first_divergence: index of the first generated token that differs, None when none does.
        closer_to: whose answer it is like; None where that cannot be told (`closeness`).
        p: of the exact permutation test of its repeats; None where there were none.
    """

    id: str
    replica: str
    prefix: str
    verdict: ProbeVerdict
    detail: str
    distance: float | None
    cached_tokens: int | None
    foreign_tokens: int | None
    first_divergence: int | None
    closer_to: CloserTo | None = None
    p: float | None = None


def worst_of_each_prefix(judgements: Sequence[ProbeJudgement]) -> tuple[ProbeJudgement, ...]:
    """[prefixes] the probe of each stale or suspect prefix that speaks loudest: stale before suspect, then farthest."""

    def loudness(judged: ProbeJudgement) -> tuple[bool, float]:
        return judged.verdict is ProbeVerdict.STALE, judged.distance or 0.0

    worst: dict[str, ProbeJudgement] = {}
    for judged in judgements:
        if judged.verdict in (ProbeVerdict.STALE, ProbeVerdict.SUSPECT):
            held = worst.get(judged.prefix)
            worst[judged.prefix] = judged if held is None or loudness(judged) > loudness(held) else held
    return tuple(sorted(worst.values(), key=loudness, reverse=True))


def threshold_nats(floor: NoiseFloor) -> float:
    """The distance above which a probe is suspect."""
    return max(DUST_NATS, SUSPECT_RATIO * (floor.max or 0.0))


def widened(floor: NoiseFloor, *, to_threshold: float) -> NoiseFloor:
    """The floor of a run whose reference is another kind of engine: kernels differ on top of the measured noise."""
    return msgspec.structs.replace(floor, max=max(floor.max or 0.0, to_threshold / SUSPECT_RATIO))


def clean_twin(probe: ProbeEvidence, index: int) -> Observation | None:
    """The reference observation that is like production leg `index`: a clean hit for a hit, the cold one for a miss."""
    is_miss, clean = probe.production[index].cached_tokens == 0, untainted(probe.clean)
    if probe.cold is not None and (is_miss or not clean):
        return probe.cold.observation
    return clean[0].observation if clean else None


def leg_distances(probe: ProbeEvidence) -> tuple[Distance, ...]:
    """[production legs] each against its clean twin; empty when there is no twin."""
    pairs = ((leg.observation, clean_twin(probe, index)) for index, leg in enumerate(probe.production))
    return tuple(distance(production, twin) for production, twin in pairs if twin is not None)


def worst_leg(probe: ProbeEvidence) -> int:
    """Index of the production leg that lies farthest from its clean twin; 0 where no distance is known."""
    found = leg_distances(probe)
    return max(range(len(probe.production)), key=lambda index: (found[index].nats or 0.0) if found else 0.0)


def is_suspect(probe: ProbeEvidence, floor: NoiseFloor) -> bool:
    """Whether some screening leg is farther from its clean twin than noise explains."""
    return any(found.is_above(threshold_nats(floor)) for found in leg_distances(probe))


def is_beyond_writing(probe: ProbeEvidence) -> bool:
    """Whether some screening leg is farther from its clean twin than entries of one prompt were seen to be apart."""
    return suspicion(probe) > WRITTEN_APART_NATS


def suspicion(probe: ProbeEvidence) -> float:
    """For sorting suspects, worst first."""
    return max((found.nats or 0.0 for found in leg_distances(probe)), default=0.0)


def is_proven(probe: ProbeEvidence, floor: NoiseFloor) -> bool:
    """Whether a suspect's repeats prove it stale, whatever the other probes show."""
    return _weighed(probe, floor).strength is _Strength.PROVEN


def is_gone(probe: ProbeEvidence, floor: NoiseFloor) -> bool:
    """Whether the difference shows in none of a suspect's fresh legs, and more of them would say no more."""
    return _weighed(probe, floor).strength in (_Strength.CLEARED, _Strength.GONE, _Strength.BLUNT)


def needs_ranks(probes: Sequence[ProbeEvidence], floor: NoiseFloor) -> bool:
    """Whether a difference reproduces that proves nothing on its own, and none is proven."""
    found = {_weighed(probe, floor).strength for probe in probes if probe.repeats.production}
    return bool(found & _FOR_RANKS) and _Strength.PROVEN not in found


def judge_probes(
    probes: Sequence[ProbeEvidence], *, floor: NoiseFloor, replica: str, capacity_tokens: int | None = None
) -> tuple[ProbeJudgement, ...]:
    """[probes] judgements of one replica's probes.

    Args:
        probes: the evidence.
        floor: of the same run.
        replica: which one, for the report.
        capacity_tokens: of its cache, which limits how many entries are written again; None where it is not told.
    """
    ranked = proven_by_rank(probes, threshold=threshold_nats(floor), capacity_tokens=capacity_tokens)
    by_rank = {probe.id for probe in ranked}
    weighed = _within_the_error_rate({probe.id: _weighed(probe, floor) for probe in probes}, probes, floor=floor)
    return tuple(_judgement(probe, weighed=weighed[probe.id], by_rank=by_rank, replica=replica) for probe in probes)


def _within_the_error_rate(
    weighed: Mapping[str, _Weighed], probes: Sequence[ProbeEvidence], *, floor: NoiseFloor
) -> dict[str, _Weighed]:
    """The same, with so many suspects tested as the error rate is shared among: the worst by their screening legs.

    An engine that a reference leg heals has repeats of all. Letting one go is no test, and is not counted.
    """
    suspects = [probe for probe in probes if probe.repeats.production and probe.repeats.clean]
    suspects = [probe for probe in suspects if is_suspect(probe, floor)]
    tested = {probe.id for probe in in_turn(sorted(suspects, key=suspicion, reverse=True))}
    return {
        name: msgspec.structs.replace(one, strength=_Strength.UNTESTED)
        if one.strength is _Strength.PROVEN and name not in tested
        else one
        for name, one in weighed.items()
    }


class _Strength(enum.Enum):
    """How strong the evidence of one probe is."""

    UNJUDGED = "no clean reference leg to compare with"
    BLUNT = "equal texts, which prove nothing: the server gives no log-probabilities"
    NONE = "within the noise floor"
    CLEARED = "above the noise floor once, and in none of the legs that were asked again"
    GONE = "by more than noise was seen to make, and only once: another cache answered, or entries that are gone by now"
    ELSEWHERE = "once, and what was asked again did not hit what that request had hit, so it says nothing of it"
    UNREPEATED = "suspect, not repeated"
    FLEETING = "above the noise floor in some legs and not in others"
    GROUNDLESS = "reproduced, but no clean pair tells how large noise is here"
    UNLIKE = "reproduced, but production hits where every clean leg missed, and hits may differ from misses by as much"
    REPRODUCED = "reproduced, and too small to be told from how an entry was written"
    TEXT = "another text in every fresh leg, and no log-probabilities that tell by how much"
    UNTESTED = "differs when asked again too, and was not tested: so many others differ more"
    PROVEN = "reproduced, beyond noise"


class _Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """One probe's evidence.

    Attributes:
        strength: of it.
        distances: [production legs] against their clean twins.
        again: what its repeats showed; None where it was not asked again.
    """

    strength: _Strength
    distances: tuple[Distance, ...] = ()
    again: RepeatsResult | None = None


def _weighed(probe: ProbeEvidence, floor: NoiseFloor) -> _Weighed:
    found = leg_distances(probe)
    if not found:
        return _Weighed(strength=_Strength.UNJUDGED)
    threshold = threshold_nats(floor)
    if not any(one.is_above(threshold) for one in found):
        strength = _Strength.BLUNT if any(one.nats is None for one in found) else _Strength.NONE
        return _Weighed(strength=strength, distances=found)
    repeats = msgspec.structs.replace(probe.repeats, clean=untainted(probe.repeats.clean))
    if not repeats.production or not repeats.clean:
        return _Weighed(strength=_Strength.UNREPEATED, distances=found)
    again = repeats_result(repeats, threshold=threshold)
    strength = _strength_of_repeats(again, floor)
    if strength is _Strength.CLEARED:
        strength = _whether_cleared(probe, found, threshold=threshold)
    if strength in (_Strength.PROVEN, _Strength.REPRODUCED) and _is_unlike(probe) and again.excess < FOREIGN_BOUND_NATS:
        strength = _Strength.UNLIKE
    return _Weighed(strength=strength, distances=found, again=again)


def _whether_cleared(probe: ProbeEvidence, found: Sequence[Distance], *, threshold: float) -> _Strength:
    """Whether fresh legs that show no difference clear a suspect, or met something else than what made it one."""
    pairs = zip(probe.production, found, strict=True)
    above = [(leg, one) for leg, one in pairs if one.is_above(threshold)]
    most = max(NOISE_MARGIN * threshold, largest_among(probe.repeats.clean))
    # What is told by its text, or by candidates of which no two are the same, has no size to compare with noise.
    if not all(one.nats is not None and one.shared and one.nats <= most for _, one in above):
        return _Strength.GONE
    of_the_same = legs_of_the_same(probe.repeats.production, [leg for leg, _ in above])
    return _Strength.CLEARED if of_the_same >= LEGS_THAT_CLEAR else _Strength.ELSEWHERE


def _is_unlike(probe: ProbeEvidence) -> bool:
    """Whether hits of production stand against clean legs that should have hit, and missed.

    Where the isolation has no clean hits, the floor has hits against misses of unique prompts instead.
    """
    hits = any(leg.cached_tokens for leg in probe.repeats.production)
    return hits and bool(probe.clean) and all(leg.cached_tokens == 0 for leg in probe.repeats.clean)


def _strength_of_repeats(again: RepeatsResult, floor: NoiseFloor) -> _Strength:
    if again.showed == 0:
        enough = _Strength.BLUNT if again.by_text else _Strength.CLEARED
        return enough if again.legs >= LEGS_THAT_CLEAR else _Strength.UNREPEATED
    if not again.is_measured:
        return _Strength.TEXT if again.showed == again.legs else _Strength.FLEETING
    if again.excess <= threshold_nats(floor) or not again.is_reproduced:
        return _Strength.FLEETING
    if not floor.pairs:
        return _Strength.GROUNDLESS
    return _Strength.PROVEN if again.is_proof and _is_large(again, floor) else _Strength.REPRODUCED


def _is_large(again: RepeatsResult, floor: NoiseFloor) -> bool:
    """Whether a difference is larger than what one entry, written in other company, or one logit step can make."""
    step = UNKNOWN_QUANTUM_NATS if floor.quantum is None else floor.quantum
    if again.largest_nats is None or again.largest_nats <= MORE_THAN_ONE_QUANTUM * step:
        return False
    is_few = floor.candidates is not None and floor.candidates < ENOUGH_CANDIDATES
    return again.excess > WRITTEN_APART_NATS * (FEW_ARE_NOISIER if is_few else 1.0)


def _judgement(probe: ProbeEvidence, *, weighed: _Weighed, by_rank: Collection[str], replica: str) -> ProbeJudgement:
    found, again = weighed.distances, weighed.again
    worst = worst_leg(probe)
    leg, shown = probe.production[worst], found[worst] if found else None
    verdict, detail = _VERDICTS[weighed.strength], weighed.strength.value
    if by_rank and (probe.id in by_rank or weighed.strength in _FOR_RANKS):
        verdict, detail = ProbeVerdict.STALE, _BY_RANK
    if again is not None and verdict in (ProbeVerdict.STALE, ProbeVerdict.SUSPECT):
        detail += f" ({again.showed} of {again.legs} fresh legs above the threshold"
        detail += "" if again.p is None else f", p = {again.p:.1g}"
        detail += f", excess {again.excess:.4f})"
    return ProbeJudgement(
        id=probe.id,
        replica=replica,
        prefix=probe.prefix,
        verdict=verdict,
        detail=detail,
        distance=shown.nats if shown else None,
        cached_tokens=leg.cached_tokens,
        foreign_tokens=leg.foreign_tokens,
        first_divergence=shown.first_divergence if shown else None,
        p=None if again is None else again.p,
    )


# What ranks can make a proof of: a difference that is too small on its own, or that nobody measured.
_FOR_RANKS = frozenset({_Strength.REPRODUCED, _Strength.TEXT})
_BY_RANK = "under more shared prefixes than chance explains no entry that was written again answers so"

_VERDICTS = {
    _Strength.UNJUDGED: ProbeVerdict.UNJUDGED,
    _Strength.BLUNT: ProbeVerdict.UNJUDGED,
    _Strength.NONE: ProbeVerdict.CLEAN,
    _Strength.CLEARED: ProbeVerdict.CLEAN,
    _Strength.GONE: ProbeVerdict.SUSPECT,
    _Strength.ELSEWHERE: ProbeVerdict.SUSPECT,
    _Strength.UNREPEATED: ProbeVerdict.SUSPECT,
    _Strength.FLEETING: ProbeVerdict.SUSPECT,
    _Strength.GROUNDLESS: ProbeVerdict.SUSPECT,
    _Strength.UNLIKE: ProbeVerdict.SUSPECT,
    _Strength.TEXT: ProbeVerdict.SUSPECT,
    _Strength.UNTESTED: ProbeVerdict.SUSPECT,
    _Strength.REPRODUCED: ProbeVerdict.SUSPECT,
    _Strength.PROVEN: ProbeVerdict.STALE,
}
