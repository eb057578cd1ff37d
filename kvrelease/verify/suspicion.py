"""Which probes are suspect: whose production leg lies farther from its clean twin than noise explains. Pure."""

from __future__ import annotations

import msgspec

from kvrelease.engines.base import Observation
from kvrelease.verify.distance import Distance, distance
from kvrelease.verify.evidence import ProbeEvidence, untainted
from kvrelease.verify.noise import NoiseFloor

# With a dozen probes against two dozen clean pairs, one production distance in three runs would top the largest clean
# one by chance alone; three times the largest was topped in none of the clean runs of docs/statistics.md.
SUSPECT_RATIO = 3.0

# Floating-point dust of the JSON round trip; a floor below it is zero.
DUST_NATS = 1e-6

# The largest distance seen between clean answers of one engine, whose entries were written in other company
# (docs/statistics.md): an entry differs for good by how it was written, so a smaller difference under one prefix alone
# is no proof, however often it shows.
WRITTEN_APART_NATS = 0.06


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
