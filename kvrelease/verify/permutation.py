"""Are two groups of answers to one prompt drawn from the same noise? An exact permutation test on their distances.

Under the null hypothesis, that a production leg answers as a clean hit does, which of the legs are called production is
arbitrary: every choice of as many legs is as likely. The statistic is the energy of the two groups: by how much legs of
different groups lie farther apart than legs of one group. Only distances are used, so nothing is assumed about the
noise but that it treats both kinds of leg alike; where the legs take turns, noise that drifts does so too.

Source: Székely and Rizzo, "Energy statistics: a class of statistics based on distances", Journal of Statistical
Planning and Inference 143 (2013), sections 4 and 6.
"""

# ruff: noqa: PLC0415 - numpy and scipy are imported late: they cost 300 ms

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Two sums of the same distances in another order differ by rounding; they are equal all the same.
_ROUNDING = 1e-9

# Tests that are kept: a suspect is weighed several times, and at most six are asked again on a replica.
_TESTS_HELD = 32

# Ten legs against ten: what takes a second, and says more than any run asks for.
MAX_LABELLINGS = 184_756


def exchange_p(distances: Sequence[Sequence[float]], *, production: int) -> float:
    """The share of labellings of the legs under which the groups lie at least as far apart as observed.

    Args:
        distances: [legs][legs] nats, symmetric, zero on the diagonal; production legs first.
        production: how many legs are production's, at least 2, and at least 2 less than all.

    Returns:
        the p-value, exact; at least one divided by the number of labellings, twice that for groups of one size.
    """
    return _exchange_p(tuple(map(tuple, distances)), production)


@functools.lru_cache(maxsize=_TESTS_HELD)
def _exchange_p(distances: tuple[tuple[float, ...], ...], production: int) -> float:
    import numpy as np

    legs = len(distances)
    clean = legs - production
    assert min(production, clean) >= 2, (production, clean)
    matrix = np.asarray(distances, dtype=np.float64)
    marks = _labellings(legs, production)
    # Sums over ordered pairs: within the first group, within the second, and across.
    towards = marks @ matrix
    within_first = np.einsum("ij,ij->i", towards, marks)
    across = towards.sum(axis=1) - within_first
    within_second = matrix.sum() - within_first - 2 * across
    energy = (
        2 * across / (production * clean)
        - within_first / (production * (production - 1))
        - within_second / (clean * (clean - 1))
    )
    # The first of the combinations is the observed labelling.
    return float(np.mean(energy >= energy[0] - _ROUNDING * (1.0 + abs(float(matrix.max())))))


@functools.lru_cache(maxsize=8)
def _labellings(legs: int, production: int) -> NDArray[np.float64]:
    """[labellings][legs] 1 for a leg that is called production, 0 for the others; the observed labelling first.

    Of two groups of one size, a labelling and the one that swaps them have the same energy: one of each two is enough.
    """
    import numpy as np

    count = math.comb(legs, production)
    assert count <= MAX_LABELLINGS, f"{production} of {legs} legs can be labelled in {count} ways"
    labellings: Iterable[tuple[int, ...]] = itertools.combinations(range(legs), production)
    if 2 * production == legs:
        labellings, count = itertools.takewhile(lambda chosen: chosen[0] == 0, labellings), count // 2
    chosen = np.fromiter(itertools.chain.from_iterable(labellings), dtype=np.intp).reshape(count, production)
    marks = np.zeros((count, legs))
    np.put_along_axis(marks, chosen, 1.0, axis=1)
    return marks
