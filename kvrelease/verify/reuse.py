"""Does a hit answer as the same prompt does when it is computed?

Release against release is not asked here: both legs are this release's own. Where they lie farther apart than any two
kernels do, what the cache gives back is not what was put in: scales of a quantised cache that were lost, a layout that
changed with the engine's version, recurrent state that is not restored where a hit ends. Users who hit get that, and a
comparison of hits with hits cannot see it.
"""

from __future__ import annotations

import statistics

from kvrelease.engines.base import Observation
from kvrelease.verify.calibration import FOREIGN_BOUND_NATS, KERNEL_BOUND_NATS
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import Isolation, ReplicaEvidence


def check_reuse(replica: ReplicaEvidence) -> Check | None:
    """What hits of the replica's own entries answer, against the same prompts computed; None where nothing is amiss."""
    found = [nats for cold, hit in _pairs(replica) if (nats := distance(cold, hit).nats) is not None]
    median = statistics.median(found) if found else None
    if median is None or median <= KERNEL_BOUND_NATS:
        return None
    far = f"{median:.3f} nats (median of {len(found)}) from what was computed"
    is_broken = median > FOREIGN_BOUND_NATS
    return Check(
        id=CheckId.REUSE,
        verdict=CheckVerdict.FAIL if is_broken else CheckVerdict.NOTE,
        detail=f"hits of this run's own entries answer {far}, {_BROKEN if is_broken else _COARSE}",
        replica=replica.identity.shown,
    )


_COARSE = "as far as KV in eight bits does; what differs by less does not show"
_BROKEN = (
    f"above any bound between kernels ({FOREIGN_BOUND_NATS} nats): the cache does not give back what was put in. Look "
    "at scales of a quantised KV cache, at the connector, and at engine versions that share a store; until then switch "
    "prefix caching off"
)


def _pairs(replica: ReplicaEvidence) -> list[tuple[Observation, Observation]]:
    """[prompts] a miss and a hit of each: the control, and reference legs that found nothing at all.

    Most reference legs find the system prompt that an earlier one left.
    """
    legs = [replica.control.legs] if replica.control is not None else []
    if replica.isolation is not Isolation.REFERENCE:  # else these legs are another engine's
        legs += [(probe.cold, probe.clean[0]) for probe in replica.probes if probe.cold is not None and probe.clean]
    return [(miss.observation, hit.observation) for miss, hit in legs if miss.cached_tokens == 0 and hit.cached_tokens]
