"""Do production legs and clean reference legs agree within the noise floor?

Three steps. A probe whose screening leg lies farther from its clean twin than noise explains is a *suspect*
(`suspicion`). A suspect is asked again, in fresh legs of both kinds (`repeats`). What shows there is *stale* where it
is a proof on its own (`weighing`), or where under more shared prefixes than chance explains no entry that was written
again answers so (`peers`). Formulas, sizes, error rates: docs/statistics.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

import msgspec

from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.peers import proven_by_rank
from kvrelease.verify.suspicion import threshold_nats, worst_leg
from kvrelease.verify.weighing import FOR_RANKS, Strength, Weighed, weighed, within_the_error_rate


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
    found = within_the_error_rate({probe.id: weighed(probe, floor) for probe in probes}, probes, floor=floor)
    return tuple(_judgement(probe, found[probe.id], by_rank=by_rank, replica=replica) for probe in probes)


def _judgement(probe: ProbeEvidence, evidence: Weighed, *, by_rank: Collection[str], replica: str) -> ProbeJudgement:
    found, again = evidence.distances, evidence.again
    worst = worst_leg(probe)
    leg, shown = probe.production[worst], found[worst] if found else None
    verdict, detail = _VERDICTS[evidence.strength], evidence.strength.value
    if by_rank and (probe.id in by_rank or evidence.strength in FOR_RANKS):
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


_BY_RANK = "under more shared prefixes than chance explains no entry that was written again answers so"

_VERDICTS = {
    Strength.UNJUDGED: ProbeVerdict.UNJUDGED,
    Strength.BLUNT: ProbeVerdict.UNJUDGED,
    Strength.NONE: ProbeVerdict.CLEAN,
    Strength.CLEARED: ProbeVerdict.CLEAN,
    Strength.GONE: ProbeVerdict.SUSPECT,
    Strength.ELSEWHERE: ProbeVerdict.SUSPECT,
    Strength.UNREPEATED: ProbeVerdict.SUSPECT,
    Strength.FLEETING: ProbeVerdict.SUSPECT,
    Strength.GROUNDLESS: ProbeVerdict.SUSPECT,
    Strength.UNLIKE: ProbeVerdict.SUSPECT,
    Strength.TEXT: ProbeVerdict.SUSPECT,
    Strength.UNTESTED: ProbeVerdict.SUSPECT,
    Strength.REPRODUCED: ProbeVerdict.SUSPECT,
    Strength.PROVEN: ProbeVerdict.STALE,
}
