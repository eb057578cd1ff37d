"""Distances are computed once: what makes thousands of judged runs affordable, and changes nothing in the judge.

The judge asks for the same distances several times in a run, and in thousands of runs drawn from one pool. Observations
are told apart by identity, and held meanwhile, so that no other takes a place in memory that a figure is kept for.
"""

from __future__ import annotations

import sys

from kvrelease.engines.base import Observation
from kvrelease.verify import distance
from kvrelease.verify.distance import Distance

_DISTANCES: dict[tuple[int, int], Distance] = {}
_GAPS: dict[int, float | None] = {}
_HELD: dict[int, Observation] = {}
_exact, _exact_gap = distance.distance, distance._finest_gap


def remember_distances() -> None:
    """From now on in this process, which does nothing else, every module of the gate asks here first."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kvrelease.verify.") and getattr(module, "distance", None) is _exact:
            setattr(module, "distance", _distance)  # noqa: B010 - mypy knows it as a function of the module
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
