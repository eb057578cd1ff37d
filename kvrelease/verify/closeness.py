"""Whose answer is a stale answer like: the old release's, the new one's over old KV, the new one's, or nobody's? Pure.

Distances are compared within one family of witnesses: answers of the same kind of engine, or of the releases in
process. How far kernels alone move this very prompt is measured on its clean answer, where the new release runs in
process; a claim needs more than that between the nearest witness and the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.engines.base import Observation
from kvrelease.verify.calibration import KERNEL_BOUND_NATS
from kvrelease.verify.consistency import CloserTo, ProbeJudgement
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import ProbeEvidence, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.suspicion import WRITTEN_APART_NATS, clean_twin, threshold_nats, worst_leg


class Witnesses(msgspec.Struct, frozen=True, kw_only=True):
    """What one prompt is answered elsewhere.

    Attributes:
        old: by the old release.
        hybrid: by the new one over the old one's KV; None where nobody computed it.
        new: by the new one.
        apart_nats: how far other kernels than the engine's move an answer.
    """

    old: Observation
    hybrid: Observation | None = None
    new: Observation
    apart_nats: float


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """How near an answer is to each witness, nats; None where that is not known.

    Attributes:
        to_old: to the old release's.
        to_hybrid: to the new one's over old KV.
        to_new: to the new one's.
        closer_to: the nearest; None where two are equally near, one of them is not known, or none is near and there is
            no hybrid to compare with.
    """

    to_old: float | None
    to_hybrid: float | None
    to_new: float | None
    closer_to: CloserTo | None


def closeness_of(replica: ReplicaEvidence, *, floor: NoiseFloor) -> dict[str, Closeness]:
    """By prompt id, of the production leg that lies farthest from its clean twin, where there are witnesses."""
    found = {}
    for probe in replica.probes:
        witnesses = _witnesses(probe, replica)
        if witnesses is not None:
            leg = probe.production[worst_leg(probe)]
            found[probe.id] = closeness(leg.observation, witnesses, threshold=threshold_nats(floor))
    return found


def with_closeness(judgements: Sequence[ProbeJudgement], found: dict[str, Closeness]) -> tuple[ProbeJudgement, ...]:
    """The judgements, with whose answers they are like."""
    return tuple(
        msgspec.structs.replace(judged, closer_to=found[judged.id].closer_to) if judged.id in found else judged
        for judged in judgements
    )


def closeness(seen: Observation, witnesses: Witnesses, *, threshold: float) -> Closeness:
    """How near an answer is to each witness.

    Args:
        seen: the answer.
        witnesses: to the same prompt.
        threshold: nats above which the run's noise does not explain a distance.
    """
    answers = {CloserTo.OLD: witnesses.old, CloserTo.HYBRID: witnesses.hybrid, CloserTo.NEW: witnesses.new}
    nats = {name: distance(seen, answer).nats for name, answer in answers.items() if answer is not None}
    return Closeness(
        to_old=nats[CloserTo.OLD],
        to_hybrid=nats.get(CloserTo.HYBRID),
        to_new=nats[CloserTo.NEW],
        closer_to=_nearest(nats, apart=witnesses.apart_nats, threshold=threshold),
    )


def _nearest(nats: dict[CloserTo, float | None], *, apart: float, threshold: float) -> CloserTo | None:
    ranked = sorted((value, name) for name, value in nats.items() if value is not None)
    if len(ranked) < len(nats):
        return None  # one that is not known may be the nearest
    (nearest, name), (second, _) = ranked[0], ranked[1]
    if nearest > max(threshold, WRITTEN_APART_NATS + apart):
        # Without the hybrid at hand, that is what a stale answer is like: nobody can tell it from another release's.
        return CloserTo.UNLIKE if CloserTo.HYBRID in nats else None
    return name if second - nearest > max(threshold, apart) else None


def _witnesses(probe: ProbeEvidence, replica: ReplicaEvidence) -> Witnesses | None:
    """In process where both releases run there, else a baseline and the engine's own clean answer."""
    twin = clean_twin(probe, worst_leg(probe))
    computed = next((one for one in replica.in_process if one.probe == probe.id), None)
    if twin is None:
        return None
    if computed is not None:
        apart = distance(twin, computed.clean).nats
        if apart is None or apart > KERNEL_BOUND_NATS:
            return None  # the engine is not the release that runs in process: `identity` says so
        return Witnesses(old=computed.old, hybrid=computed.stale, new=computed.clean, apart_nats=apart)
    old = next((pair.witness for pair in replica.old_pairs if pair.probe == probe.id), None)
    if old is None:
        return None
    return Witnesses(old=old, new=twin, apart_nats=0.0 if replica.old_is_alike else KERNEL_BOUND_NATS)
