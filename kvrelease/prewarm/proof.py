"""What the requests of one pass showed, added up as they are answered: two witnesses of hits, and times; pure.

Nothing of a request is kept but numbers, so that 200 replicas of 200 prompts take no more memory than their times.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Mapping, Sequence

from kvrelease.binding.hits import Unattributed
from kvrelease.binding.observe import Leg, Witness
from kvrelease.binding.usage import counted_since
from kvrelease.engines.base import Counters
from kvrelease.prewarm.result import Percentiles, SecondWitness, StoreUse, TimeWitness

# Two times to the first token, of which one is at most this part of the other, are no coincidence of a quiet machine:
# two identical arms differed by up to 18 % (docs/benchmarks.md).
LIKELY_WARM_RATIO = 0.5
# The fewest pairs of which a median says anything.
MIN_TIME_PAIRS = 3


class Tally:
    """The sums over the requests of one pass. A sum is None as soon as one of its parts is not known."""

    def __init__(self) -> None:
        self.answered = 0
        self.retries = 0
        self.evicted = 0
        self.witness = Witness.NOBODY
        self.cold_s = array("d")
        self.times_s = array("d")
        self._prompt_tokens: int | None = 0
        self._cacheable_tokens: int | None = 0
        self._cached_tokens: int | None = 0
        self._foreign_known = 0
        self._foreign_unknown = 0
        self.doubts: set[Unattributed] = set()

    def add(self, leg: Leg) -> None:
        """Adds one answered request."""
        if not self.answered:
            self.witness = leg.witness
        self.answered += 1
        self.retries += leg.observation.retries
        self._prompt_tokens = _plus(self._prompt_tokens, leg.prompt_tokens)
        self._cacheable_tokens = _plus(self._cacheable_tokens, leg.cacheable_tokens)
        self._cached_tokens = _plus(self._cached_tokens, leg.cached_tokens)
        self._foreign_known += leg.foreign_tokens or 0
        self._foreign_unknown += leg.foreign_tokens is None
        if leg.doubt is not None:
            self.doubts.add(leg.doubt)
        self.evicted += leg.hits_mostly is False
        if leg.observation.ttft_s is not None:
            self.times_s.append(leg.observation.ttft_s)
            if leg.hits_mostly is False:
                self.cold_s.append(leg.observation.ttft_s)

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of all prompts; None when one is not told, or nothing was asked."""
        return self._prompt_tokens if self.answered else None

    @property
    def cached_tokens(self) -> int | None:
        """Of these, from a cache; None likewise."""
        return self._cached_tokens if self.answered else None

    @property
    def computed_tokens(self) -> int | None:
        """Of these, computed; None likewise."""
        prompt, cached = self.prompt_tokens, self.cached_tokens
        return None if prompt is None or cached is None else prompt - cached

    @property
    def is_dirty(self) -> bool:
        """One foreign hit is proof, whatever is not known beside it."""
        return self._foreign_known > 0

    @property
    def foreign_tokens(self) -> int | None:
        """Cached tokens that nothing explains; None when there is no such hit and some cannot be told."""
        if self._foreign_known:
            return self._foreign_known
        return None if self._foreign_unknown or not self.answered else 0

    @property
    def hit_rate(self) -> float | None:
        """Cached tokens per cacheable token; None when either is not known, or nothing is cacheable."""
        return self.rate_of(self.cached_tokens)

    def rate_of(self, tokens: int | None) -> float | None:
        """Tokens per cacheable token; None when either is not known, or nothing is cacheable."""
        if tokens is None or not self._cacheable_tokens or not self.answered:
            return None
        return tokens / self._cacheable_tokens


def sample(order: Sequence[str], *, weights: Mapping[str, float], size: int) -> tuple[str, ...]:
    """Prompts that stand for a plan: half of them the heaviest, half spread evenly over the rest, the end included.

    The heaviest alone were touched last, and are there when all the others are gone.

    Args:
        order: ids of the plan.
        weights: traffic weight by prompt id.
        size: how many, at most.
    """
    if len(order) <= size:
        return tuple(sorted(order, key=lambda prompt_id: -weights[prompt_id]))
    heaviest = sorted(order, key=lambda prompt_id: -weights[prompt_id])[: size - size // 2]
    rest = [prompt_id for prompt_id in order if prompt_id not in frozenset(heaviest)]
    spread = [rest[(number + 1) * len(rest) // (size // 2) - 1] for number in range(size // 2)]
    return (*heaviest, *spread)


def foreign_of(passes: Sequence[Tally]) -> int | None:
    """Foreign tokens of several passes, as `Tally.foreign_tokens`; those that nothing was asked in say nothing."""
    told = [one for one in passes if one.answered]
    known = sum(one.foreign_tokens or 0 for one in told)
    if known:
        return known
    return None if not told or any(one.foreign_tokens is None for one in told) else 0


def second_witness(tally: Tally, *, before: Counters | None, after: Counters | None) -> SecondWitness:
    """What the counters say of a pass, beside its usage.

    A reset (a smaller number than before) makes them unknown, and so does a step that is not ours alone: the counters
    are of all clients. Source: reference rows c25, b10.

    Args:
        tally: of the pass.
        before: the counters just before its first request; None where there are none.
        after: just after its last answer.
    """
    usage = tally.cached_tokens if tally.witness is Witness.USAGE else None
    asked = tally.prompt_tokens
    if before is None or after is None or asked is None:
        return SecondWitness(usage_tokens=usage, counter_tokens=None)
    moved = counted_since(before, after)
    if moved is None or moved.queried_tokens != asked or moved.all_cached_tokens > asked:
        is_shared = moved is not None and moved.queried_tokens > asked
        return SecondWitness(usage_tokens=usage, counter_tokens=None, is_shared=is_shared)
    return SecondWitness(usage_tokens=usage, counter_tokens=round(moved.all_cached_tokens))


def store_use(counters: Counters | None) -> StoreUse | None:
    """What was asked of a store outside the process; None where nothing was, or nobody tells."""
    if counters is None or not counters.external_queried_tokens or counters.external_cached_tokens is None:
        return None
    return StoreUse(
        queried_tokens=round(counters.external_queried_tokens), cached_tokens=round(counters.external_cached_tokens)
    )


def time_witness(cold_s: Sequence[float], warm_s: Sequence[float]) -> TimeWitness:
    """The median of warm by cold, pair by pair."""
    ratios = [warm / cold for cold, warm in zip(cold_s, warm_s, strict=True) if cold > 0]
    return TimeWitness(pairs=len(ratios), ratio=statistics.median(ratios) if ratios else None)


def is_likely_warm(times: TimeWitness | None) -> bool:
    """Whether times alone suggest that prompts are resident; a suggestion, no proof."""
    return (
        times is not None
        and times.ratio is not None
        and times.pairs >= MIN_TIME_PAIRS
        and times.ratio <= LIKELY_WARM_RATIO
    )


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """p50 and p95 by the nearest-rank method."""
    if not seconds:
        return Percentiles(p50=None, p95=None)
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(1000 * ordered[math.ceil(share * len(ordered)) - 1], 1)

    return Percentiles(p50=at(0.50), p95=at(0.95))


def _plus(sum_: int | None, part: int | None) -> int | None:
    return None if sum_ is None or part is None else sum_ + part
