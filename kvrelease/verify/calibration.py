"""How far a second engine's clean answers lie from the engine's own: other kernels, on prompts nobody can have cached.

Where reference legs come from another engine (`--reference`), they differ from production's by what kernels, precision
and version do, besides what staleness does. So unique prompts are asked of both: what they differ by is part of the
noise floor. If the engine runs other weights, they differ by that as well: so this floor never decides `identity`,
which has a bound of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from kvrelease.engines.base import Observation
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import Calibration, Isolation, ReplicaEvidence

# Up to so many nats two engines run the same weights, above the second they do not; in between nothing is proved.
# docs/statistics.md, "identity": bfloat16 against float32 kernels 0.09, an output layer left at the old weights 0.21,
# old weights 0.78.
KERNEL_BOUND_NATS = 0.15
FOREIGN_BOUND_NATS = 0.35

# The first bound, where a record comes from the same kind and version of engine: the largest distance seen between
# clean runs of one engine under load.
ALIKE_BOUND_NATS = 0.06


def kernel_distance(replica: ReplicaEvidence) -> float | None:
    """Median distance of the engine's own answers to the reference's, nats; None where it was not measured."""
    found = [distance(*pair).nats for pairs in kernel_pairs(replica.calibration) for pair in pairs]
    known = [nats for nats in found if nats is not None]
    return statistics.median(known) if known else None


def clean_answers(replica: ReplicaEvidence) -> dict[str, Observation]:
    """By probe or unique prompt, what the engine itself answers without reading anything that was cached."""
    if replica.isolation is Isolation.REFERENCE:
        return {one.name: one.engine[0].observation for one in usable(replica.calibration)}
    return {probe.id: probe.cold.observation for probe in replica.probes if probe.cold is not None}


def usable(calibration: Iterable[Calibration]) -> tuple[Calibration, ...]:
    """Those that hit nothing at first, on neither engine; what a chat template puts first may be cached rightly."""
    return tuple(
        one for one in calibration if one.engine[0].hits_mostly is False and one.reference[0].hits_mostly is False
    )


def kernel_pairs(calibration: Iterable[Calibration]) -> tuple[tuple[tuple[Observation, Observation], ...], ...]:
    """[prompts][1 or 2] a miss of the engine with one of the reference, and a hit with a hit.

    Both pairs of a prompt read the same two entries: what happened when those were written, they tell once.
    """
    return tuple(_pairs_of(one) for one in usable(calibration))


def _pairs_of(one: Calibration) -> tuple[tuple[Observation, Observation], ...]:
    misses = (one.engine[0].observation, one.reference[0].observation)
    if len(one.engine) > 1 and len(one.reference) > 1 and one.engine[1].hits_mostly:
        return misses, (one.engine[1].observation, one.reference[1].observation)
    return (misses,)
