"""Cache or model? Stale probes, asked again as production over an emptied cache; pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from kvrelease.verify.consistency import ProbeJudgement, ProbeVerdict, worst_of_each_prefix
from kvrelease.verify.evidence import FlushEvidence, Isolation, ProbeEvidence, Recheck, ReplicaEvidence, untainted
from kvrelease.verify.floor import judged_by_floor
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.repeats import gap
from kvrelease.verify.suspicion import threshold_nats

# As many as are searched for their first stale block; one is proof enough, and each is computed anew.
MAX_RECHECKED = 4


class Cause(enum.StrEnum):
    """What makes answers stale."""

    CACHE = "cache"
    """Entries of another release: without them the engine answers as the release does."""
    MODEL = "model"
    """Other weights than the release's, or a broken load: no flush changes its answers."""
    REUSE = "reuse"
    """The cache does not give back what was put in, whoever put it: no flush changes that either."""


class CauseFound(msgspec.Struct, frozen=True, kw_only=True):
    """What makes answers stale, as far as it was told apart.

    Attributes:
        cause: None where it was not.
        why: how it was told, or what it would take; one clause.
    """

    cause: Cause | None
    why: str


def probes_to_recheck(seen: ReplicaEvidence) -> tuple[str, ...]:
    """[probes] the worst of each stale prefix; none where nothing is proven, or where reference legs replaced it."""
    if seen.identity.capabilities.reference_heals:
        return ()
    _, judged = judged_by_floor(seen)
    worst = worst_of_each_prefix(judged)
    return tuple(one.id for one in worst if one.verdict is ProbeVerdict.STALE)[:MAX_RECHECKED]


def cause_of(
    replica: ReplicaEvidence,
    judgements: Sequence[ProbeJudgement],
    *,
    floor: NoiseFloor,
    runs_other_weights: bool,
    gives_back_other: bool = False,
) -> CauseFound:
    """Cache or model, of a replica with stale probes, or whose own hits are wrong.

    Args:
        replica: the evidence.
        judgements: of its probes.
        floor: that its probes were judged by.
        runs_other_weights: `identity` failed: clean answers are not the release's either.
        gives_back_other: `reuse` failed: hits of this run's own entries are not what was computed.
    """
    if gives_back_other and not runs_other_weights:
        return CauseFound(cause=Cause.REUSE, why="hits of this run's own entries are not what was computed (reuse)")
    if not any(judged.verdict is ProbeVerdict.STALE for judged in judgements):
        return CauseFound(cause=None, why="not told apart: no probe is proven stale")
    if runs_other_weights:
        return CauseFound(cause=Cause.MODEL, why="clean answers are not the release's either (identity)")
    flush = replica.flush
    if flush is None or not flush.is_proved:
        why = _what_it_would_take(replica) if flush is None else f"not told apart: {_why_unproved(flush)}"
        return CauseFound(cause=None, why=why)
    if replica.isolation is Isolation.FLUSH:
        return CauseFound(cause=Cause.CACHE, why="once the cache was emptied, the same prompts were answered otherwise")
    return _by_rechecks(replica, threshold=threshold_nats(floor))


def _by_rechecks(replica: ReplicaEvidence, *, threshold: float) -> CauseFound:
    probes = {probe.id: probe for probe in replica.probes}
    computed = [one for one in replica.rechecks if one.leg.foreign_tokens == 0]
    differ = [one for one in computed if _differs(one, probes[one.probe], threshold=threshold)]
    asked = len(computed)
    if not replica.rechecks:
        return CauseFound(cause=None, why="not told apart: nothing was asked again after the cache was emptied")
    if not asked:
        return CauseFound(
            cause=None,
            why=f"not told apart: after the flush all of {len(replica.rechecks)} stale probes hit again what nobody "
            "computed since, so a tier below filled the cache",
        )
    if differ:
        return CauseFound(
            cause=Cause.MODEL,
            why=f"over an emptied cache {len(differ)} of {asked} stale probes still differ from their clean twins",
        )
    return CauseFound(cause=Cause.CACHE, why=f"over an emptied cache all of {asked} stale probes are clean")


def _differs(recheck: Recheck, probe: ProbeEvidence, *, threshold: float) -> bool:
    """Whether the answer is like none of its clean twins, of which one missed and one hit, as it may have."""
    clean = [leg.observation for leg in untainted(probe.reference_legs)]
    return bool(clean) and min(gap(recheck.leg.observation, twin) for twin in clean) > threshold


def _why_unproved(flush: FlushEvidence) -> str:
    if flush.refusal is not None:
        return flush.refusal
    if not flush.is_done:
        return "the run ended before the cache was emptied"
    if flush.cached_after is None:
        return "it is not known whether the cache is empty"
    return (
        f"{flush.cached_after} tokens of {flush.probe} were cached again after the flush: a tier below filled it, or "
        "the flush did nothing"
    )


def _what_it_would_take(replica: ReplicaEvidence) -> str:
    if replica.identity.capabilities.reference_heals:
        return "not told apart: reference legs replaced what the engine held; restart it, and verify again"
    if replica.identity.capabilities.has_flush and not replica.allows_flush:
        return "not told apart: --allow-flush empties the cache and asks the stale probes again"
    if replica.allows_flush:
        return "not told apart: no stale probe hit any more when the cache was to be emptied"
    return "not told apart: this engine is not emptied by a call; restart it over empty stores, and verify again"
