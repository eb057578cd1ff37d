"""The noise floor by which one replica is judged."""

from __future__ import annotations

from kvrelease.verify.consistency import widened
from kvrelease.verify.evidence import Isolation, ReplicaEvidence
from kvrelease.verify.identity import FOREIGN_BOUND_NATS
from kvrelease.verify.noise import NoiseFloor, noise_floor


def judging_floor(replica: ReplicaEvidence) -> NoiseFloor:
    """The floor of the run; where another kind of engine gave the reference legs, kernels differ on top of it."""
    floor = noise_floor(replica.probes, nonces=replica.noise)
    if replica.isolation is Isolation.REFERENCE and _differs_in_kind(replica):
        return widened(floor, to_threshold=FOREIGN_BOUND_NATS)
    return floor


def _differs_in_kind(replica: ReplicaEvidence) -> bool:
    reference = replica.reference
    return reference is not None and (
        (reference.kind, reference.version) != (replica.identity.kind, replica.identity.version)
    )
