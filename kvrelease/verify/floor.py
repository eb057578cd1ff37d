"""The noise floor that one replica is judged by, and its probes judged by that."""

from __future__ import annotations

from kvrelease.verify.calibration import FOREIGN_BOUND_NATS, kernel_pairs, usable
from kvrelease.verify.consistency import ProbeJudgement, judge_probes
from kvrelease.verify.evidence import Isolation, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor, noise_floor
from kvrelease.verify.suspicion import widened


def judging_floor(replica: ReplicaEvidence) -> NoiseFloor:
    """The floor of a run, with what the kernels of a second engine add where that gave the reference legs.

    Where nothing measured what they add, and the reference is another kind or version of engine, it is wide.
    """
    if replica.isolation is not Isolation.REFERENCE:
        return noise_floor(replica.probes, nonces=replica.noise)
    own = [(one.engine[0], one.engine[1]) for one in usable(replica.calibration) if len(one.engine) > 1]
    pairs = kernel_pairs(replica.calibration)
    floor = noise_floor(replica.probes, nonces=(*replica.noise, *own), others=pairs)
    if not pairs and _differs_in_kind(replica):
        return widened(floor, to_threshold=FOREIGN_BOUND_NATS)
    return floor


def judged_by_floor(replica: ReplicaEvidence) -> tuple[NoiseFloor, tuple[ProbeJudgement, ...]]:
    """The floor of evidence that may still be coming in, and [probes] judgements by it."""
    floor = judging_floor(replica)
    identity = replica.identity
    judged = judge_probes(replica.probes, floor=floor, replica=identity.shown, capacity_tokens=identity.capacity_tokens)
    return floor, judged


def _differs_in_kind(replica: ReplicaEvidence) -> bool:
    reference = replica.reference
    return reference is not None and (
        (reference.kind, reference.version) != (replica.identity.kind, replica.identity.version)
    )
