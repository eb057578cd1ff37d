"""Does the engine still answer as the release before did? All that a baseline alone can tell of identity; pure.

Nobody knows then what the new release would answer. Another answer than the old release's proves nothing of it; the
same answers, on every prompt and to the last candidate, are what weights that were never replaced give. The rule, with
the sizes that it rests on: docs/statistics.md, "Still the old release".
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from kvrelease.engines.base import Observation
from kvrelease.verify.calibration import ALIKE_BOUND_NATS, KERNEL_BOUND_NATS, kernel_distance
from kvrelease.verify.checks import CheckVerdict
from kvrelease.verify.distance import ENOUGH_CANDIDATES, Distance, distance, share_of_few
from kvrelease.verify.evidence import Isolation, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.suspicion import DUST_NATS, threshold_nats

# Answers nearer than this are equal, where the run's own clean answers differ by as much. One step of fine-tuning makes
# a stale answer differ by 0.054 nats in the median, and the new release's own from the old one's four times that.
EQUAL_NATS = 0.02

# On fewer prompts equal answers are no proof: one prompt may be such that a small fine-tune moves nothing.
ENOUGH_PROMPTS = 4

_NEXT = (
    "Restart the engine with the release; where that was done, record what the release answers in a clean, trusted "
    "process (kvrelease record), and name it as --golden"
)


def still_the_old(replica: ReplicaEvidence, *, floor: NoiseFloor) -> tuple[CheckVerdict, str] | None:
    """A failure or a doubt where clean answers are the old release's; None where they are not, or nothing tells."""
    is_elsewhere = replica.isolation is Isolation.REFERENCE
    apart = kernel_distance(replica) if is_elsewhere else 0.0
    found = _distances(replica)
    if apart is None or not found:
        return None
    nats = [one.nats for one in found if one.nats is not None]
    median = statistics.median(nats)
    alike = max(ALIKE_BOUND_NATS, threshold_nats(floor)) if replica.old_is_alike else KERNEL_BOUND_NATS
    share = share_of_few(min(one.candidates for one in found))
    if median > alike * share or apart > KERNEL_BOUND_NATS * share:
        return None
    equal_within = max(DUST_NATS, min(EQUAL_NATS, floor.max or 0.0))
    equal = sum(one <= equal_within for one in nats)
    told = (
        f"{_whose(is_elsewhere, apart)} equal the old release's baseline on {_of_all(equal, len(nats))} prompts that "
        f"were compared (within {equal_within:.4f} nats; median distance {median:.3f})"
    )
    if equal < len(nats) or apart > equal_within:
        return CheckVerdict.INCONCLUSIVE, f"{told}: nearer than other weights are told from noise or kernels. {_NEXT}"
    why_unproven = _why_unproven(replica, found)
    if why_unproven is not None:
        return CheckVerdict.INCONCLUSIVE, f"{told}, and {why_unproven}. {_NEXT}"
    return CheckVerdict.FAIL, f"the engine still answers like the old release: {told}, and the weights differ. {_NEXT}"


def _distances(replica: ReplicaEvidence) -> list[Distance]:
    """[prompts] that both answered, in nats."""
    cold: Mapping[str, Observation] = {one.id: one.cold.observation for one in replica.probes if one.cold is not None}
    found = [distance(cold[pair.probe], pair.witness) for pair in replica.old_pairs if pair.probe in cold]
    return [one for one in found if one.nats is not None]


def _why_unproven(replica: ReplicaEvidence, found: list[Distance]) -> str | None:
    """What keeps equal answers from being a proof; None where nothing does."""
    if replica.weights_differ is None:
        return "it is not known whether the weights of the two releases differ (the baseline names none)"
    if not replica.weights_differ:
        return "the two releases have the same weights, and differ by their configuration alone"
    if len(found) < ENOUGH_PROMPTS:
        return f"{len(found)} prompts are too few to tell: a small fine-tune may move none of them"
    if any(one.candidates < ENOUGH_CANDIDATES for one in found):
        return "the server tells too few candidates of a token to tell weights apart"
    return None


def _whose(is_elsewhere: bool, apart: float) -> str:
    if not is_elsewhere:
        return "its clean answers"
    return f"the reference engine's clean answers, which its own are {apart:.3f} nats from,"


def _of_all(equal: int, compared: int) -> str:
    return f"all {compared}" if equal == compared else f"{equal} of {compared}"
