"""Do production legs and clean reference legs agree within the noise floor?

Judged simply in this version: a suspect must reproduce in every repeat. Effect sizes, exact permutation tests and
measured error rates come with the statistics of a later release; reports say so.
"""

from __future__ import annotations

import enum

import msgspec

from kvrelease.engines.base import Observation
from kvrelease.verify.distance import Distance, distance
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.noise import NoiseFloor

# With a dozen probes against two dozen clean pairs, one production distance in three runs would top the largest clean
# one by chance alone; three times the largest was topped in none of the clean runs of docs/statistics.md.
SUSPECT_RATIO = 3.0

# Floating-point dust of the JSON round trip; a floor below it is zero.
DUST_NATS = 1e-6

# More than one step of bf16 logits, less than two: one step on one probe is no proof.
MORE_THAN_ONE_QUANTUM = 1.5

# A difference is proven when it shows in as many production legs, one after the other.
LEGS_THAT_PROVE = 4

# One weak probe is no proof; the same weak difference on a second probe is.
WEAK_PROBES_THAT_PROVE = 2


class ProbeVerdict(enum.StrEnum):
    """What one probe showed."""

    CLEAN = "clean"
    STALE = "stale"
    SUSPECT = "suspect"
    UNJUDGED = "unjudged"


class ProbeJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """One probe, judged.

    Attributes:
        id: of the prompt.
        replica: URL.
        prefix: the shared prefix it belongs to.
        verdict: `suspect` means a difference that was not repeated, or not enough on its own.
        detail: why, one sentence.
        distance: the largest of a production leg against its clean twin, nats; None when not measurable.
        cached_tokens: of the production leg that lies farthest from its twin, like what follows.
        foreign_tokens: of these, explained by nothing; None when not known.
        first_divergence: index of the first generated token that differs, None when none does.
        closer_to: `old` or `new`, with a baseline; None without.
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
    closer_to: str | None = None


def threshold_nats(floor: NoiseFloor) -> float:
    """The distance above which a probe is suspect."""
    return max(DUST_NATS, SUSPECT_RATIO * (floor.max or 0.0))


def widened(floor: NoiseFloor, *, to_threshold: float) -> NoiseFloor:
    """The floor of a run whose reference is another kind of engine: kernels differ on top of the measured noise."""
    return msgspec.structs.replace(floor, max=max(floor.max or 0.0, to_threshold / SUSPECT_RATIO))


def clean_twin(probe: ProbeEvidence, index: int) -> Observation | None:
    """The reference observation that is like production leg `index`: a clean hit for a hit, the cold one for a miss.

    Repeats come in pairs, so the last legs have a clean hit of their own each: an odd clean hit then disturbs one
    comparison, not all.
    """
    is_miss = probe.production[index].cached_tokens == 0
    if probe.cold is not None and (is_miss or not probe.clean):
        return probe.cold.observation
    if not probe.clean:
        return None
    return probe.clean[max(len(probe.clean) - len(probe.production) + index, 0)].observation


def _is_above(found: Distance, *, threshold: float) -> bool:
    """Whether a distance is above the threshold; text decides where there are no log-probabilities."""
    return found.first_divergence is not None if found.nats is None else found.nats > threshold


def leg_distances(probe: ProbeEvidence) -> tuple[Distance, ...]:
    """[production legs] each against its clean twin; empty when there is no twin."""
    pairs = ((leg.observation, clean_twin(probe, index)) for index, leg in enumerate(probe.production))
    return tuple(distance(production, twin) for production, twin in pairs if twin is not None)


def is_suspect(probe: ProbeEvidence, floor: NoiseFloor) -> bool:
    """Whether some production leg is farther from its clean twin than noise explains."""
    return any(_is_above(found, threshold=threshold_nats(floor)) for found in leg_distances(probe))


def suspicion(probe: ProbeEvidence) -> float:
    """For sorting suspects, worst first."""
    return max((found.nats or 0.0 for found in leg_distances(probe)), default=0.0)


def judge_probes(
    probes: tuple[ProbeEvidence, ...], *, floor: NoiseFloor, replica: str, old: dict[str, Observation]
) -> tuple[ProbeJudgement, ...]:
    """[probes] judgements of one replica's probes.

    Args:
        probes: the evidence.
        floor: of the same run.
        replica: URL, for the report.
        old: observations of the old release by prompt id, for `closer_to`.
    """
    strengths = {probe.id: _strength(probe, floor) for probe in probes}
    weak = sum(strength is _Strength.WEAK for strength in strengths.values())
    return tuple(
        _judgement(
            probe,
            strength=strengths[probe.id],
            weak_proves=weak >= WEAK_PROBES_THAT_PROVE,
            replica=replica,
            old=old.get(probe.id),
        )
        for probe in probes
    )


class _Strength(enum.Enum):
    """How strong the evidence of one probe is."""

    UNJUDGED = "no twin"
    BLUNT = "no log-probabilities, equal texts"
    NONE = "within the noise floor"
    UNREPEATED = "not repeated"
    GROUNDLESS = "reproduced, but no floor was measured"
    FLEETING = "not reproduced"
    WEAK = "reproduced, at most one quantum"
    STRONG = "reproduced"


def _strength(probe: ProbeEvidence, floor: NoiseFloor) -> _Strength:
    found = leg_distances(probe)
    threshold = threshold_nats(floor)
    if not found:
        return _Strength.UNJUDGED
    above = [_is_above(one, threshold=threshold) for one in found]
    if not any(above):
        return _Strength.BLUNT if any(one.nats is None for one in found) else _Strength.NONE
    return _strength_above(probe, floor, found=found, above=above)


def _strength_above(
    probe: ProbeEvidence, floor: NoiseFloor, *, found: tuple[Distance, ...], above: list[bool]
) -> _Strength:
    legs = _legs_that_could_show(probe, above)
    if not all(above[index] for index in legs):
        return _Strength.FLEETING
    if len(legs) < LEGS_THAT_PROVE:
        return _Strength.UNREPEATED
    if not (floor.pairs or (probe.clean and all(found[index].nats is None for index in legs))):
        return _Strength.GROUNDLESS
    largest = [nats for index in legs if (nats := found[index].largest_nats) is not None]
    if largest and floor.quantum is not None and min(largest) <= MORE_THAN_ONE_QUANTUM * floor.quantum:
        return _Strength.WEAK
    return _Strength.STRONG


def _legs_that_could_show(probe: ProbeEvidence, above: list[bool]) -> list[int]:
    """Indices of the production legs in which a difference must reproduce: of hits, where a hit shows it."""
    hits = [index for index, leg in enumerate(probe.production) if leg.cached_tokens != 0]
    return hits if any(above[index] for index in hits) else list(range(len(above)))


def _judgement(
    probe: ProbeEvidence, *, strength: _Strength, weak_proves: bool, replica: str, old: Observation | None
) -> ProbeJudgement:
    found = leg_distances(probe)
    worst = max(range(len(probe.production)), key=lambda index: (found[index].nats or 0.0) if found else 0.0)
    leg, shown = probe.production[worst], found[worst] if found else None
    legs = len(probe.production)
    match strength:
        case _Strength.UNJUDGED:
            verdict, detail = ProbeVerdict.UNJUDGED, "no clean reference leg to compare with"
        case _Strength.BLUNT:
            verdict, detail = ProbeVerdict.UNJUDGED, "equal texts, but the server gives no log-probabilities"
        case _Strength.NONE:
            verdict, detail = ProbeVerdict.CLEAN, "within the noise floor"
        case _Strength.UNREPEATED:
            verdict, detail = ProbeVerdict.SUSPECT, "suspect, not repeated"
        case _Strength.FLEETING:
            verdict, detail = ProbeVerdict.SUSPECT, f"above the floor, and not in all of {legs} production legs"
        case _Strength.GROUNDLESS:
            verdict, detail = ProbeVerdict.SUSPECT, "reproduced, but no clean pair tells how large noise is here"
        case _Strength.WEAK if not weak_proves:
            verdict, detail = ProbeVerdict.SUSPECT, "reproduced, but one logit step on one probe is no proof"
        case _Strength.WEAK | _Strength.STRONG:
            verdict, detail = ProbeVerdict.STALE, f"above the floor in all of {legs} production legs"
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
        closer_to=_closer_to(leg.observation, twin=clean_twin(probe, worst), old=old),
    )


def _closer_to(seen: Observation, *, twin: Observation | None, old: Observation | None) -> str | None:
    if old is None or twin is None:
        return None
    to_old, to_new = distance(seen, old).nats, distance(seen, twin).nats
    if to_old is None or to_new is None or to_old == to_new:
        return None
    return "old" if to_old < to_new else "new"
