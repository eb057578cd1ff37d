"""Figures are computed once: what makes thousands of judged runs affordable, and changes nothing in the judge.

The judge asks for the same distances several times in a run, and in thousands of runs drawn from one pool. Observations
are told apart by identity, and held meanwhile, so that no other takes a place in memory that a figure is kept for. The
permutation test of a suspect is asked for whenever the suspect is weighed; its distances tell it from others.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from kvrelease.engines.base import Observation
from kvrelease.verify import distance, permutation
from kvrelease.verify.distance import Distance

_DISTANCES: dict[tuple[int, int], Distance] = {}
_GAPS: dict[int, float | None] = {}
_HELD: dict[int, Observation] = {}
_exact, _exact_gap, _exact_p = distance.distance, distance._finest_gap, permutation.exchange_p

# Tests of one run that are asked for again in it: of at most six suspects, and a few more.
_TESTS_HELD = 32


def remember_distances() -> None:
    """From now on in this process, which does nothing else, every module of the gate asks here first."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kvrelease.verify.") and getattr(module, "distance", None) is _exact:
            setattr(module, "distance", _distance)  # noqa: B010 - mypy knows it as a function of the module
        if name.startswith("kvrelease.verify.") and getattr(module, "exchange_p", None) is _exact_p:
            setattr(module, "exchange_p", _p)  # noqa: B010
    setattr(distance, "_finest_gap", _gap)  # noqa: B010


def forget_distances() -> None:
    """Before other observations come."""
    _DISTANCES.clear()
    _GAPS.clear()
    _HELD.clear()


def _distance(left: Observation, right: Observation) -> Distance:
    key = (id(left), id(right))
    if key not in _DISTANCES:
        _HELD[key[0]], _HELD[key[1]] = left, right
        _DISTANCES[key] = _exact(left, right)
    return _DISTANCES[key]


def _gap(observation: Observation) -> float | None:
    key = id(observation)
    if key not in _GAPS:
        _HELD[key] = observation
        _GAPS[key] = _exact_gap(observation)
    return _GAPS[key]


def _p(distances: Sequence[Sequence[float]], *, production: int) -> float:
    return _p_of(tuple(map(tuple, distances)), production)


@functools.lru_cache(maxsize=_TESTS_HELD)
def _p_of(distances: tuple[tuple[float, ...], ...], production: int) -> float:
    return _exact_p(distances, production=production)
