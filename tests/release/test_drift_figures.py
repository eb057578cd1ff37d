"""Figures of tensors and layers, made of sums alone."""

from __future__ import annotations

import math

import pytest

from kvrelease.release.drift_figures import Drift, DriftStatus, LayerDrift, Sums, equal, layer_of, measured, roll_up

UP, DOWN, NORM = (f"model.layers.3.{part}.weight" for part in ("mlp.up_proj", "mlp.down_proj", "input_layernorm"))


def sums(**changes: object) -> Sums:
    plain: dict[str, object] = {
        "elements": 100,
        "old_square": 4.0,
        "new_square": 4.0,
        "moved_square": 1.0,
        "largest": 0.5,
        "changed": 10,
        "non_finite": 0,
    }
    return Sums(**{**plain, **changes})  # type: ignore[arg-type]


def incomparable(tensor: str) -> Drift:
    return Drift(tensor=tensor, status=DriftStatus.INCOMPARABLE, layer=layer_of(tensor)[1], reason="packed")


def layer(*drifts: Drift) -> LayerDrift:
    (found,) = roll_up(drifts, {drift.tensor: sums() for drift in drifts})
    return found


@pytest.mark.parametrize("which", ["old_square", "new_square", "moved_square"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_one_sum_beyond_float64_leaves_no_figures(which: str, value: float) -> None:
    found = measured(UP, sums(**{which: value}))
    assert (found.status, found.relative, found.cosine, found.largest) == (DriftStatus.NON_FINITE, None, None, None)
    assert found.reason == "the squares of its elements are beyond float64"


def test_a_layer_has_the_figures_of_what_moved_in_it_though_some_of_it_has_none() -> None:
    found = layer(measured(UP, sums()), incomparable(DOWN))
    assert (found.moved, found.without_figures) == (1, 1)
    assert (found.relative, found.largest) == (0.5, 0.5)
    assert found.changed is None  # of elements that nobody compared


def test_a_layer_without_any_figure_has_none() -> None:
    for drift in (incomparable(DOWN), measured(UP, sums(non_finite=1))):
        found = layer(drift, equal(NORM, elements=8))
        assert (found.moved, found.equal, found.without_figures) == (0, 1, 1)
        assert (found.relative, found.cosine, found.largest, found.changed) == (None, None, None, None)


def test_a_layer_of_equal_tensors_moved_by_nothing() -> None:
    found = layer(equal(UP, elements=8), equal(NORM, elements=8))
    assert (found.relative, found.cosine, found.largest, found.changed) == (0.0, 1.0, 0.0, 0.0)
