"""The exact permutation test: pinned to scipy's and to counts by hand, and its size by simulation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from kvrelease.verify.permutation import exchange_p
from kvrelease.verify.repeats import ALPHA, MAX_REPEATED, REPEATS


def apart(*values: float) -> list[list[float]]:
    """Distances of points on a line."""
    return [[abs(one - other) for other in values] for one in values]


@pytest.mark.parametrize("legs", [2, 3, 4, 8])
def test_groups_that_are_wholly_apart_have_the_least_p_value(legs: int) -> None:
    labellings = math.comb(2 * legs, legs)
    assert exchange_p(apart(*[1.0] * legs, *[0.0] * legs), production=legs) == pytest.approx(2 / labellings)


def test_groups_of_other_sizes_can_be_told_from_their_mirror() -> None:
    assert exchange_p(apart(1.0, 1.0, 0.0, 0.0, 0.0), production=2) == pytest.approx(1 / 10)


def test_equal_legs_prove_nothing() -> None:
    assert exchange_p(apart(*[0.5] * 8), production=4) == 1.0


def test_it_is_the_permutation_test_of_scipy_on_the_same_statistic() -> None:
    source = random.Random(5)
    for _ in range(5):
        values = [source.gauss(0.0, 1.0) for _ in range(4)] + [source.gauss(0.8, 1.0) for _ in range(5)]

        def energy(first: np.ndarray, second: np.ndarray, axis: int = -1) -> np.ndarray:
            assert axis == -1
            across = np.abs(first[..., :, None] - second[..., None, :]).mean(axis=(-1, -2))
            within = [
                np.abs(one[..., :, None] - one[..., None, :]).sum(axis=(-1, -2)) / (one.shape[-1] * (one.shape[-1] - 1))
                for one in (first, second)
            ]
            result: np.ndarray = 2 * across - within[0] - within[1]
            return result

        theirs = stats.permutation_test(
            (values[:4], values[4:]), energy, vectorized=True, n_resamples=np.inf, alternative="greater"
        )
        assert exchange_p(apart(*values), production=4) == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy tails"])
def test_under_the_null_hypothesis_small_p_values_are_as_rare_as_they_say(heavy: bool) -> None:
    source = random.Random(11)
    found = []
    for _ in range(400):
        values = [source.gauss(0.0, 1.0) / (source.random() if heavy else 1.0) for _ in range(8)]
        found.append(exchange_p(apart(*values), production=4))
    for alpha in (0.05, 0.2, 0.5):
        hits = sum(p <= alpha for p in found)
        assert stats.binomtest(hits, len(found), alpha, alternative="greater").pvalue > 0.001, alpha


def test_noise_that_drifts_does_not_look_like_a_difference_where_legs_take_turns() -> None:
    source = random.Random(13)
    found = []
    for _ in range(200):
        level, legs = 0.0, []
        for _ in range(8):
            level += source.gauss(0.0, 1.0)
            pair = [level + source.gauss(0.0, 0.1) for _ in range(2)]
            legs.append(pair)
        values = [pair[0] for pair in legs] + [pair[1] for pair in legs]
        found.append(exchange_p(apart(*values), production=8))
    assert sum(p <= 0.05 for p in found) <= 10


def test_as_many_legs_as_are_asked_again_can_prove_a_difference_and_one_fewer_cannot() -> None:
    least = [exchange_p(apart(*[0.0] * legs, *[1.0] * legs), production=legs) for legs in (REPEATS - 1, REPEATS)]
    assert least[0] > ALPHA / MAX_REPEATED >= least[1]
