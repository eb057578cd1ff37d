"""May a suspect be let go, whose difference did not show again? Pure.

A suspicious leg is one answer, and the legs that are asked again may have met something else: its entries were evicted
or ran out and were computed anew since, another data-parallel rank or process took the request, a store below answered
once. Then they say nothing of what users met. So a suspect is let go only where its fresh legs hit as much as the
suspicious one did, and as much that is foreign, and where noise of that size was seen in the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kvrelease.binding.observe import Leg
from kvrelease.verify.distance import distance

# Up to twice the threshold, six times the largest distance between clean answers of the run, noise explains a leg that
# stands alone. Beyond it, and wherever the clean answers agree to the last digit, something else answered.
NOISE_MARGIN = 2.0


def largest_among(clean: Sequence[Leg]) -> float:
    """The largest distance between fresh clean legs that provably hit what this run computed, nats: noise as well."""
    own = [leg.observation for leg in clean if leg.foreign_tokens == 0]
    return max((distance(*pair).nats or 0.0 for pair in itertools.combinations(own, 2)), default=0.0)


def met_the_same(fresh: Leg, suspicious: Leg) -> bool:
    """Whether a leg that was asked again hit what the suspicious one did, as far as anybody tells.

    What is computed on top of a foreign hit is foreign ever after: so of the same entries a later leg never hits less.
    Where it is not known what either hit, or whose that is, it is not known to be the same.
    """
    hits = (fresh.cached_tokens, suspicious.cached_tokens), (fresh.foreign_tokens, suspicious.foreign_tokens)
    if any(now is None or before is None or now < before for now, before in hits):
        return False
    return fresh.observation.rank == suspicious.observation.rank


def legs_of_the_same(fresh: Sequence[Leg], suspicious: Sequence[Leg]) -> int:
    """How many of the fresh legs hit what every suspicious one did."""
    return sum(all(met_the_same(one, leg) for leg in suspicious) for one in fresh)
