"""Numbers of probes and intervals, pinned to R and SciPy."""

from __future__ import annotations

import pytest

from kvrelease.verify.claim import probes_needed, provable_share, stale_interval


# R: for (p in c(.05, .01, .25, .001, .9)) ceiling(log(.05) / log(1 - p)), each checked with pbinom(0, n, p) <= .05
@pytest.mark.parametrize(("below", "needed"), [(0.05, 59), (0.01, 299), (0.25, 11), (0.001, 2995), (0.9, 2)])
def test_the_claim_takes_as_many_clean_probes_as_the_exact_bound_says(below: float, needed: int) -> None:
    assert probes_needed(stale_below=below, confidence=0.95) == needed
    assert (1 - below) ** needed <= 0.05 < (1 - below) ** (needed - 1)


def test_what_clean_probes_prove() -> None:
    # R: binom.test(0, 59, alternative = "less")$conf.int[2]
    assert provable_share(clean_probes=59, confidence=0.95) == pytest.approx(0.0495071, abs=1e-6)
    assert provable_share(clean_probes=58, confidence=0.95) > 0.05
    assert provable_share(clean_probes=1, confidence=0.95) == pytest.approx(0.95)
    assert provable_share(clean_probes=0, confidence=0.95) == 1.0


# R: binom.test(x, n)$conf.int, and alternative = "less" for x = 0
@pytest.mark.parametrize(
    ("stale", "probes", "lower", "upper"),
    [
        (0, 59, 0.0, 0.0495071),
        (1, 12, 0.0021076, 0.3847962),
        (3, 12, 0.0548606, 0.5718585),
        (12, 12, 0.7353515, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_interval_of_the_stale_share_is_clopper_and_pearsons(
    stale: int, probes: int, lower: float, upper: float
) -> None:
    found = stale_interval(stale=stale, probes=probes, confidence=0.95)
    assert list(found) == pytest.approx([lower, upper], abs=1e-6)
