"""Does the engine run the release that was fingerprinted? Told by its answers; labels are hints, and never decide."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from kvrelease.engines.base import Observation
from kvrelease.verify.calibration import (
    ALIKE_BOUND_NATS,
    FOREIGN_BOUND_NATS,
    KERNEL_BOUND_NATS,
    clean_answers,
    kernel_distance,
)
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.distance import candidates_told, distance, share_of_few
from kvrelease.verify.evidence import Isolation, ReferencePair, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.suspicion import threshold_nats
from kvrelease.verify.unchanged import still_the_old

# How much closer to the old release an answer must lie to say that the old weights run: releases may differ by less
# than kernels do, and then either can be the closer one by chance.
MUCH_CLOSER = 2


def _median_distance(pairs: Iterable[ReferencePair], answers: Mapping[str, Observation]) -> float | None:
    found = [distance(answers[pair.probe], pair.witness).nats for pair in pairs if pair.probe in answers]
    known = [nats for nats in found if nats is not None]
    return statistics.median(known) if known else None


_WITNESSES = {"golden": "the golden record", "release": "the release run in process"}


def check_identity(replica: ReplicaEvidence, *, floor: NoiseFloor) -> Check:
    """Is this the release we fingerprinted?"""
    labels = ", ".join(f"{name}={value}" for name, value in sorted(replica.identity.labels.items())) or "none"
    verdict, found = _identity(replica, floor=floor)
    return Check(
        id=CheckId.IDENTITY,
        verdict=verdict,
        detail=f"{found}; labels (hints only): {labels}",
        replica=replica.identity.shown,
    )


def _identity(replica: ReplicaEvidence, *, floor: NoiseFloor) -> tuple[CheckVerdict, str]:
    answers = clean_answers(replica)
    to_new = _median_distance(replica.identity_pairs, answers)
    to_reference = kernel_distance(replica) if replica.isolation is Isolation.REFERENCE else None
    if to_new is None:
        return (
            still_the_old(replica, floor=floor)
            or _by_way_of_the_reference(replica, to_reference, floor=floor)
            or (CheckVerdict.NOTE, _why_unproven(replica))
        )
    witness = _WITNESSES[replica.identity_source]
    compared = sum(pair.probe in answers for pair in replica.identity_pairs)
    found = f"median distance of {compared} clean answers to {witness} {to_new:.3f} nats"
    to_old = _median_distance(replica.old_identity_pairs, answers)
    if to_old is not None and _is_much_closer(to_old, to_new) and to_new - to_old > _apart_nats(replica, floor):
        advice = "The engine runs the old weights: load the new release, then verify again"
        return CheckVerdict.FAIL, f"{found}, to the old release's from the same source {to_old:.3f}. {advice}"
    if to_new > FOREIGN_BOUND_NATS:
        advice = "The engine runs other weights than the release: check what was loaded"
        return CheckVerdict.FAIL, f"{found}, above any bound between kernels ({FOREIGN_BOUND_NATS} nats). {advice}"
    bound, name = _kernel_bound(replica, floor), "the bound between kernels"
    if replica.identity_is_alike:
        alike = ALIKE_BOUND_NATS * share_of_few(_candidates(replica, floor))
        bound, name = max(alike, threshold_nats(floor)), "the bound between runs of one engine"
    verdict, remark = _nuance(
        to_new, floor=floor, bound=bound, to_old=to_old, to_baseline=_median_distance(replica.old_pairs, answers)
    )
    if verdict is CheckVerdict.PASS and to_reference is not None and to_reference > FOREIGN_BOUND_NATS:
        verdict = CheckVerdict.INCONCLUSIVE
        remark = f". But to the reference engine it is {to_reference:.3f}: that runs other weights. Name a clean one"
    return verdict, f"{found}; {name} is {bound:.2f} nats{remark}"


def _is_much_closer(to_old: float, to_new: float) -> bool:
    return MUCH_CLOSER * to_old < to_new


def _apart_nats(replica: ReplicaEvidence, floor: NoiseFloor) -> float:
    """By how much an answer must be nearer to the old release's before noise and settings do not explain it.

    In process both releases run in one way. Two records were made by two processes, and what those were started with
    (dtype, quantisation) differs by as much as kernels do.
    """
    settings = ALIKE_BOUND_NATS if replica.identity_source == "release" else KERNEL_BOUND_NATS
    return max(settings, threshold_nats(floor))


def _kernel_bound(replica: ReplicaEvidence, floor: NoiseFloor) -> float:
    """Up to so many nats an answer is the release's: fewer where few candidates are told, which weights move less."""
    return KERNEL_BOUND_NATS * share_of_few(_candidates(replica, floor))


def _candidates(replica: ReplicaEvidence, floor: NoiseFloor) -> int | None:
    """How many candidates of a token the engine and its witness both tell; None where neither tells any."""
    told = (floor.candidates, candidates_told(pair.witness for pair in replica.identity_pairs))
    return min((one for one in told if one is not None), default=None)


def _by_way_of_the_reference(
    replica: ReplicaEvidence, to_reference: float | None, *, floor: NoiseFloor
) -> tuple[CheckVerdict, str] | None:
    """What a second engine says, whose own answers are like the witness's, or not; None where there is none.

    Only fixed bounds count here: a floor that was measured between the two engines holds their weights' difference too.
    """
    if to_reference is None:
        return None
    found = f"median distance of unique prompts to the reference engine {to_reference:.3f} nats"
    to_witness = _median_distance(
        replica.identity_pairs, {one.id: one.cold.observation for one in replica.probes if one.cold is not None}
    )
    if to_witness is not None:
        found += f", of that to {_WITNESSES[replica.identity_source]} {to_witness:.3f}"
    bound = _kernel_bound(replica, floor)
    if to_reference > bound:
        if to_reference > FOREIGN_BOUND_NATS and to_witness is not None and to_witness <= bound:
            return CheckVerdict.FAIL, f"{found}. The engine runs other weights than the release: check what was loaded"
        return CheckVerdict.INCONCLUSIVE, (
            f"{found}; the bound between kernels is {bound:.2f} nats. One of the two engines runs other "
            "weights than the release, or weights loaded in part: name --golden, or --release as a directory, to tell "
            "which"
        )
    if to_witness is None:
        return CheckVerdict.NOTE, f"unproven: it runs what the reference engine runs, whatever that is; {found}"
    if to_witness > FOREIGN_BOUND_NATS:
        return CheckVerdict.FAIL, f"{found}. Both engines run other weights than the release: check what was loaded"
    verdict = CheckVerdict.PASS if to_witness <= bound else CheckVerdict.INCONCLUSIVE
    return verdict, f"{found}; the bound between kernels is {bound:.2f} nats"


def _why_unproven(replica: ReplicaEvidence) -> str:
    why = "no golden record and no release to run in process"
    if replica.identity_pairs:
        why = f"no clean answer can be compared with {_WITNESSES[replica.identity_source]}"
    if replica.identity_failure:
        why = f"the release did not run in process ({replica.identity_failure})"
    to_baseline = _median_distance(replica.old_pairs, clean_answers(replica))
    aside = "" if to_baseline is None else f"; median distance to the old release's baseline {to_baseline:.3f} nats"
    return f"unproven: {why}{aside}"


def _nuance(
    to_new: float, *, floor: NoiseFloor, bound: float, to_old: float | None, to_baseline: float | None
) -> tuple[CheckVerdict, str]:
    """What a distance says that neither the old release nor any bound rules out."""
    if to_new > bound:
        return CheckVerdict.INCONCLUSIVE, (
            ". Other weights, or weights loaded in part (a reload in place may leave repacked layers behind), or a "
            "quantised engine: restart it with the release, or record a --golden from a clean process of the same kind"
        )
    if to_old is not None and _is_much_closer(to_old, to_new) and to_new - to_old > threshold_nats(floor):
        return CheckVerdict.INCONCLUSIVE, (
            f". To the old release it is {to_old:.3f}, which is nearer by no more than settings and noise make: "
            "record a --golden with this engine and its flags"
        )
    if to_old is not None and to_old < to_new:
        return CheckVerdict.NOTE, f". Unproven: to the old release it is {to_old:.3f}, so kernels differ by as much"
    if to_old is None and to_baseline is not None and _is_much_closer(to_baseline, to_new):
        return CheckVerdict.INCONCLUSIVE, (
            f". To the old release's baseline it is {to_baseline:.3f}: name --old-release too, or record a --golden, "
            "to tell kernels from weights"
        )
    return CheckVerdict.PASS, ""
