"""How large noise and staleness are in a pool: over all of its prompts, and without any judge."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import msgspec

from benchmarks.gate.pool import Pool
from kvrelease.verify.distance import distance
from kvrelease.verify.suspicion import SUSPECT_RATIO

# Where the median staleness is more than so many times the threshold that the pool's own noise makes, the four prompts
# that `power` is measured on have hardly a median below it.
CLEARLY = 2.0


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Of one pool.

    Attributes:
        noise: largest distance of two clean answers to one prompt, over entries written alone and in company, nats.
        staleness: median distance that the old release's keys and values make of an answer, in process, nats.
    """

    noise: float
    staleness: float

    @property
    def threshold(self) -> float:
        """What a run whose noise floor were this one's would let pass as noise, nats."""
        return SUSPECT_RATIO * self.noise

    @property
    def is_visible(self) -> bool:
        """Whether a gate that cannot see this staleness is too blind, and no noise excuses it."""
        return self.staleness > CLEARLY * self.threshold


def sizes_of(pool: Pool) -> Sizes:
    """The sizes of a pool."""
    seen = pool.observations()

    def nats(pairs: Iterator[tuple[int, int]]) -> list[float]:
        found = [distance(seen[one], seen[other]).nats for one, other in pairs]
        return [gap for gap in found if gap is not None]

    noise = nats(_clean_pairs(pool))
    staleness = nats((one.stale_in_process, one.clean_in_process) for one in pool.prompts)
    return Sizes(noise=max(noise, default=float("inf")), staleness=statistics.median(staleness) if staleness else 0.0)


def _clean_pairs(pool: Pool) -> Iterator[tuple[int, int]]:
    """What the noise floor of a run compares: a miss with a hit, and an entry with those that were written again."""
    for prompt in pool.prompts:
        reference = prompt.alone[0][0]
        yield prompt.cold[0], reference
        for entry in (*prompt.company, *prompt.again):
            # The second of two reads, where an entry stands for several, is not the same answer again.
            yield reference, entry[-1]
