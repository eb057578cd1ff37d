"""The noise floor: how far apart clean observations of the same prompts are, in this run, on this engine.

An answer is noisy where it is read (other requests in the batch) and where its KV was written (other requests in that
batch): a production entry was written in company, long ago, and answers with the same small difference ever after. So
the floor needs entries that were written more than once, in company, not only one entry read more than once.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Observation
from kvrelease.verify.distance import distance, logit_quantum
from kvrelease.verify.evidence import ProbeEvidence


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The measured distance between clean runs.

    Attributes:
        pairs: how many pairs were compared.
        p50: median distance in nats; None without pairs.
        max: largest distance in nats; None without pairs.
        quantum: step of the server's logits in nats; None when not known.
    """

    pairs: int
    p50: float | None
    max: float | None
    quantum: float | None


def noise_floor(
    probes: Iterable[ProbeEvidence],
    *,
    nonces: Iterable[tuple[Leg, Leg]] = (),
    others: Iterable[tuple[Observation, Observation]] = (),
) -> NoiseFloor:
    """The floor from clean legs: of each probe cold against hit, hit against hit, and entry against entry.

    Args:
        probes: with their reference legs; nonce prompts' count likewise.
        nonces: prompts that nobody else can have cached, a miss and a hit of each; a pair that was not, is left out.
        others: pairs of clean answers of two engines to one prompt.
    """
    probed = [(*((probe.cold,) if probe.cold else ()), *probe.clean, *probe.rewritten) for probe in probes]
    missed_then_hit = [pair for pair in nonces if pair[0].hits_mostly is False and pair[1].hits_mostly]
    distances: list[float] = []
    seen: list[Observation] = []
    for group in (*probed, *missed_then_hit):
        legs = [leg.observation for leg in group]
        seen += legs
        for left, right in itertools.pairwise(legs):
            nats = distance(left, right).nats
            if nats is not None:
                distances.append(nats)
    distances += [nats for pair in others if (nats := distance(*pair).nats) is not None]
    return NoiseFloor(
        pairs=len(distances),
        p50=statistics.median(distances) if distances else None,
        max=max(distances) if distances else None,
        quantum=logit_quantum(tuple(seen)),
    )
