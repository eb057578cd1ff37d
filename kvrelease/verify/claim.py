"""What a number of clean probes proves.

Source: the exact one-sided bound for zero events in n trials (Clopper and Pearson, Biometrika 26, 1934): the upper
limit p solves (1 - p)^n = 1 - confidence. "Rule of three" is its approximation.
"""

from __future__ import annotations

import functools
import math


def probes_needed(*, stale_below: float, confidence: float) -> int:
    """Clean probes that prove a stale share below `stale_below`: 59 for 5 %, 299 for 1 %, 11 for 25 %, at 95 %."""
    assert 0 < stale_below < 1, stale_below
    assert 0 < confidence < 1, confidence
    return math.ceil(math.log(1 - confidence) / math.log(1 - stale_below))


def provable_share(*, clean_probes: int, confidence: float) -> float:
    """The stale share that so many clean probes, and no stale one, exclude; 1 for none."""
    return 1.0 if clean_probes == 0 else 1 - (1 - confidence) ** (1 / clean_probes)


@functools.lru_cache(maxsize=256)  # a few figures, asked for in every one of thousands of judged runs
def stale_interval(*, stale: int, probes: int, confidence: float) -> tuple[float, float]:
    """The Clopper-Pearson interval of the stale share: one-sided for no stale probe, two-sided otherwise."""
    if probes == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest  # noqa: PLC0415 - late: scipy costs 300 ms

    sided = "less" if stale == 0 else "two-sided"
    interval = binomtest(stale, probes, alternative=sided).proportion_ci(confidence_level=confidence, method="exact")
    return float(interval.low), float(interval.high)
