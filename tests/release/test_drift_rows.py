"""Small tensors are read many at once, and each has the sums of its own."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvrelease.errors import InputError
from kvrelease.release import drift_rows
from kvrelease.release.comparison import compare_tensors
from kvrelease.release.drift import sums_of
from kvrelease.release.drift_figures import Sums
from kvrelease.release.drift_plan import Comparison, plan_drift
from kvrelease.release.drift_rows import batches_of
from kvrelease.release.loading import load_release
from kvrelease.release.readable import ReadableWeights, readable_weights
from tests.release.numbers import Stored, encode, write_tensors


def planned(tmp_path: Path, *sides: dict[str, Stored]) -> tuple[tuple[Comparison, ...], list[ReadableWeights]]:
    places = [write_tensors(tmp_path / str(number), side) for number, side in enumerate(sides)]
    old, new = map(load_release, places)
    weights = [found for place in places if (found := readable_weights(place)) is not None]
    changes = compare_tensors(old, new)
    plan = plan_drift(old, new, changes, old_tensors=weights[0].tensors, new_tensors=weights[1].tensors)
    return plan.comparisons, weights


DTYPES = ("F32", "BF16", "F64", "F16", "F8_E4M3", "F8_E5M2", "I32", "BOOL")


def many(seed: int, count: int = 40) -> dict[str, Stored]:
    """Tensors of two sizes and every kind of dtype, two of them with an element that is not finite."""
    generator = np.random.default_rng(seed)
    found = {}
    for number in range(count):
        dtype = DTYPES[number % len(DTYPES)]
        values = generator.standard_normal((5, 7) if number % 3 else 9)
        if dtype in ("I32", "BOOL"):
            values = (values > 0).astype(np.float64)
        elif number in (3, 9) and seed == 2:
            values.ravel()[0] = math.nan
        found[f"layers.{number}.weight"] = encode(values, dtype)
    return found


def test_tensors_of_one_size_and_dtype_are_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons, _ = planned(tmp_path, many(1), many(2))
    kinds = Counter((one.old.tensor.dtype, one.old.tensor.shape) for one in comparisons)
    assert sorted(map(len, batches_of(comparisons))) == sorted(kinds.values())
    assert len(kinds) == 2 * len(DTYPES)
    monkeypatch.setattr(drift_rows, "BATCH_ELEMENTS", 75)
    sizes = [sum(math.prod(comparisons[one].old.tensor.shape) for one in batch) for batch in batches_of(comparisons)]
    assert max(sizes) <= 75
    assert sorted(number for batch in batches_of(comparisons) for number in batch) == list(range(40))
    monkeypatch.setattr(drift_rows, "SMALL_ELEMENTS", 8)
    assert batches_of(comparisons) == []


def test_each_has_the_sums_that_it_has_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons, weights = planned(tmp_path, many(1), many(2))

    def sums(jobs: int) -> dict[str, Sums]:
        return sums_of(comparisons, old_files=weights[0].files, new_files=weights[1].files, jobs=jobs)

    batched = sums(1)
    assert batched == sums(3)
    assert [name for name, one in batched.items() if one.non_finite] == ["layers.3.weight", "layers.9.weight"]
    monkeypatch.setattr(drift_rows, "SMALL_ELEMENTS", 0)
    for name, alone in sums(1).items():
        other = batched[name]
        assert (other.elements, other.changed, other.non_finite) == (alone.elements, alone.changed, alone.non_finite)
        for field in ("old_square", "new_square", "moved_square", "largest"):
            assert getattr(other, field) == pytest.approx(getattr(alone, field), rel=1e-6)


def test_the_bytes_of_a_batch_are_told_and_a_file_that_changed_is_an_error(tmp_path: Path) -> None:
    comparisons, weights = planned(tmp_path, many(1), many(2))
    told: list[tuple[int, int | None]] = []
    old, new = weights[0].files, weights[1].files
    sums_of(
        comparisons,
        old_files=old,
        new_files=new,
        jobs=2,
        progress=lambda event: told.append((event.done, event.total)),
    )
    size_bytes = sum(2 * one.old.tensor.size_bytes for one in comparisons)
    assert told[-1] == (size_bytes, size_bytes)
    moved = msgspec.structs.replace(comparisons[0].old.tensor, offset=10**9)
    beyond = msgspec.structs.replace(comparisons[0], old=msgspec.structs.replace(comparisons[0].old, tensor=moved))
    with pytest.raises(InputError):
        sums_of([beyond], old_files=old, new_files=new, jobs=1)
