"""How far tensors moved, pinned to numpy in float64."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError, MissingExtra
from kvrelease.progress import ProgressEvent
from kvrelease.release import drift, drift_rows, drift_torch
from kvrelease.release.comparison import compare_tensors
from kvrelease.release.drift import measure_drift
from kvrelease.release.drift_figures import Drift, DriftReport, DriftStatus, LayerDrift, Sums
from kvrelease.release.drift_plan import Comparison
from kvrelease.release.loading import load_release
from kvrelease.release.readable import ReadableWeights, readable_weights
from tests.release import gguf_writer
from tests.release.adapters import adapter_tensors, write_adapter
from tests.release.builders import config_json, tensors, write_json, write_release
from tests.release.gguf_writer import small_tensors, write_gguf
from tests.release.numbers import Array, Stored, encode, write_tensors
from tests.release.quantized import quantized_config, quantized_tensors

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors of these tests stand for large ones, each read alone; test_drift_rows.py has small ones."""
    monkeypatch.setattr(drift_rows, "SMALL_ELEMENTS", 0)


def located(directory: Path) -> ReadableWeights:
    found = readable_weights(directory)
    assert found is not None
    return found


def drift_of(old: Path, new: Path, *, jobs: int = 2) -> DriftReport:
    weights = (located(old), located(new))
    before, after = load_release(old), load_release(new)
    return measure_drift(before, after, compare_tensors(before, after), weights=weights, jobs=jobs)


def drift_between(
    tmp_path: Path, old: Mapping[str, Stored], new: Mapping[str, Stored], *, config: JsonObject | None = None
) -> dict[str, Drift]:
    report = drift_of(
        write_tensors(tmp_path / "old", old, config=config), write_tensors(tmp_path / "new", new, config=config)
    )
    return {drift.tensor: drift for drift in report.tensors}


def assert_figures(found: Drift | LayerDrift, old: Array, new: Array) -> None:
    """Against the definitions, in float64."""
    a, b = old.ravel(), new.ravel()
    assert found.relative == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-6)
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-7)
    assert found.largest == pytest.approx(np.abs(b - a).max(), rel=1e-6)
    assert found.changed == np.mean(a != b)


def values(shape: tuple[int, ...], *, seed: int, scale: float = 0.02) -> Array:
    return np.random.default_rng(seed).standard_normal(shape) * scale


FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


@pytest.mark.parametrize("new_dtype", FLOATS)
@pytest.mark.parametrize("old_dtype", FLOATS)
def test_floats_of_every_pair_of_dtypes_are_compared_as_numbers(tmp_path: Path, old_dtype: str, new_dtype: str) -> None:
    before = values((37, 29), seed=1, scale=1.0)
    old, new = encode(before, old_dtype), encode(before + values((37, 29), seed=2), new_dtype)
    found = drift_between(tmp_path, {NAME: old}, {NAME: new})[NAME]
    assert found.status is DriftStatus.MEASURED
    assert found.non_finite == 0
    assert_figures(found, old.numbers, new.numbers)


@pytest.mark.parametrize("dtype", ["I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"])
def test_integers_are_compared_as_numbers(tmp_path: Path, dtype: str) -> None:
    before = np.random.default_rng(1).integers(0, 2 if dtype == "BOOL" else 100, (11, 13)).astype(np.float64)
    after = before.copy()
    after[3, 4] = 1 - after[3, 4] if dtype == "BOOL" else 101
    old, new = encode(before, dtype), encode(after, dtype)
    assert_figures(drift_between(tmp_path, {NAME: old}, {NAME: new})[NAME], before, after)


def test_integers_that_float64_cannot_tell_apart_are_changed(tmp_path: Path) -> None:
    old, new = (Stored("I64", (2,), np.array([2**60 + one, 5]).tobytes()) for one in (0, 1))
    found = drift_between(tmp_path, {NAME: old}, {NAME: new})[NAME]
    assert found.changed == 0.5


def test_pieces_and_threads_add_up_to_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = values((300, 77), seed=1)
    old, new = (encode(before + change, "BF16") for change in (0.0, values((300, 77), seed=2, scale=1e-4)))
    directories = write_tensors(tmp_path / "old", {NAME: old}), write_tensors(tmp_path / "new", {NAME: new})
    monkeypatch.setattr(drift_torch, "PIECE_ELEMENTS", 100)
    monkeypatch.setattr("kvrelease.release.drift.SEGMENT_ELEMENTS", 1000)
    reports = [drift_of(*directories, jobs=jobs) for jobs in (1, 3)]
    assert reports[0] == reports[1]
    assert_figures(reports[0].tensors[0], old.numbers, new.numbers)


def test_a_small_drift_keeps_its_digits(tmp_path: Path) -> None:
    """1 - cosine of 5e-11 is the difference of two numbers near 1, and a float32 sum has seven digits."""
    before = values((1000, 900), seed=1)
    old = encode(before, "F32")
    new = encode(old.numbers * (1 + 1e-5 * np.sign(values((1000, 900), seed=2))), "F32")
    found = drift_between(tmp_path, {NAME: old}, {NAME: new})[NAME]
    a, b = old.numbers.ravel().astype(np.longdouble), new.numbers.ravel().astype(np.longdouble)
    exact = 1 - a @ b / np.sqrt(a @ a) / np.sqrt(b @ b)
    assert found.cosine is not None
    assert 1 - found.cosine == pytest.approx(float(exact), rel=1e-3)
    assert_figures(found, old.numbers, new.numbers)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("scale", [1e-30, 1e30], ids=["small", "large"])
def test_squares_that_float32_cannot_hold_are_summed_in_float64(tmp_path: Path, scale: float, dtype: str) -> None:
    before = values((20, 30), seed=1, scale=scale)
    old, new = encode(before, dtype), encode(before + values((20, 30), seed=2, scale=scale / 100), dtype)
    assert_figures(drift_between(tmp_path, {NAME: old}, {NAME: new})[NAME], old.numbers, new.numbers)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_a_change_too_small_for_a_square_in_float32_keeps_its_digits(tmp_path: Path, dtype: str) -> None:
    """Among elements whose own squares float32 holds."""
    before = np.ones(600)
    before[77] = 1e-25
    after = before.copy()
    after[77] = 2e-25
    old, new = encode(before, dtype), encode(after, dtype)
    found = drift_between(tmp_path, {NAME: old}, {NAME: new})[NAME]
    exact = np.linalg.norm(new.numbers - old.numbers) / np.linalg.norm(old.numbers)
    assert found.relative == pytest.approx(exact, rel=1e-6, abs=0)
    assert found.largest == pytest.approx(new.numbers[77] - old.numbers[77], rel=1e-6, abs=0)
    assert found.changed == 1 / 600


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_an_element_that_is_not_finite_leaves_no_figures_and_is_told(tmp_path: Path, dtype: str, value: float) -> None:
    before = values((20, 30), seed=1)
    after = before + 0.01
    after[3, 3] = value
    for side, (old, new) in enumerate(((before, after), (after, before))):
        old_dtype, new_dtype = encode(old, dtype), encode(new, dtype)
        found = drift_between(tmp_path / str(side), {NAME: old_dtype}, {NAME: new_dtype})[NAME]
        assert (found.status, found.non_finite) == (DriftStatus.NON_FINITE, 1)
        assert (found.relative, found.cosine, found.largest) == (None, None, None)
        assert "1 of 600 elements are NaN or infinite" in str(found.reason)


def test_the_same_nan_on_both_sides_is_no_change(tmp_path: Path) -> None:
    before = np.array([math.nan, 1.0, 2.0, 3.0])
    found = drift_between(
        tmp_path, {NAME: encode(before, "F32")}, {NAME: encode(np.array([math.nan, 1.0, 2.0, 4.0]), "F32")}
    )[NAME]
    assert (found.changed, found.status) == (0.25, DriftStatus.NON_FINITE)


def test_a_tensor_that_was_zero_has_no_relative_drift(tmp_path: Path) -> None:
    zero, one = encode(np.zeros((4, 4)), "F32"), encode(np.ones((4, 4)), "F32")
    came = drift_between(tmp_path / "a", {NAME: zero}, {NAME: one})[NAME]
    assert (came.relative, came.cosine, came.largest, came.changed) == (None, None, 1.0, 1.0)
    went = drift_between(tmp_path / "b", {NAME: one}, {NAME: zero})[NAME]
    assert (went.relative, went.cosine, went.largest, went.changed) == (1.0, None, 1.0, 1.0)


def test_equal_tensors_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = drift.sums_of

    def sums_of(comparisons: Sequence[Comparison], **options: Any) -> dict[str, Sums]:
        read.extend(one.name for one in comparisons)
        return original(comparisons, **options)

    monkeypatch.setattr(drift, "sums_of", sums_of)
    old, new = tensors(1), tensors(1)
    new[NAME] = new[NAME] + 0.5
    report = drift_of(write_release(tmp_path / "old", old), write_release(tmp_path / "new", new))
    assert read == [NAME]
    by_name = {drift.tensor: drift for drift in report.tensors}
    assert by_name.keys() == old.keys()
    other = by_name["model.norm.weight"]
    assert (other.status, other.relative, other.cosine, other.largest, other.changed) == ("equal", 0.0, 1.0, 0.0, 0.0)


def test_layers_are_rolled_up(tmp_path: Path) -> None:
    old, new = tensors(1), tensors(1)
    changed = ["model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.gate_proj.weight", "model.norm.weight"]
    for name in changed:
        new[name] = new[name] + 0.25
    report = drift_of(write_release(tmp_path / "old", old, shards=2), write_release(tmp_path / "new", new))
    layers = {layer.name: layer for layer in report.layers}
    assert list(layers) == ["", "model.layers.0", "model.layers.1", "model.layers.2"]
    assert [layer.layer for layer in report.layers] == [None, 0, 1, 2]
    one = layers["model.layers.1"]
    assert (one.tensors, one.moved, one.equal, one.without_figures) == (9, 2, 7, 0)
    moved = [np.concatenate([side[name].ravel() for name in changed[:2]]).astype(np.float64) for side in (old, new)]
    assert one.relative == pytest.approx(np.linalg.norm(moved[1] - moved[0]) / np.linalg.norm(moved[0]), rel=1e-6)
    assert one.cosine == pytest.approx(moved[0] @ moved[1] / np.prod([np.linalg.norm(side) for side in moved]))
    everything = sum(old[name].size for name in old if name.startswith("model.layers.1."))
    assert one.changed == moved[0].size / everything
    unchanged = layers["model.layers.0"]
    assert (unchanged.relative, unchanged.cosine, unchanged.largest, unchanged.changed) == (0.0, 1.0, 0.0, 0.0)


def test_a_renamed_tensor_did_not_move(tmp_path: Path) -> None:
    old = tensors(1)
    new = {name.removeprefix("model."): tensor for name, tensor in old.items()}
    report = drift_of(write_release(tmp_path / "old", old), write_release(tmp_path / "new", new))
    assert {drift.status for drift in report.tensors} == {DriftStatus.EQUAL}
    assert next(drift.was for drift in report.tensors if drift.tensor == "norm.weight") == "model.norm.weight"


def test_other_shapes_and_other_kinds_of_numbers_are_incomparable(tmp_path: Path) -> None:
    old = {
        "a": encode(np.ones((2, 3)), "F32"),
        "b": encode(np.ones((4,)), "F32"),
        "c": Stored("F4", (4,), b"\1\2"),
        "d": encode(np.ones((2,)), "F32"),
    }
    new = {
        "a": encode(np.ones((3, 2)), "F32"),
        "b": encode(np.ones((4,)), "I32"),
        "c": Stored("F4", (4,), b"\1\3"),
        "e": encode(np.ones((2,)), "F16"),
    }
    directories = write_tensors(tmp_path / "old", old), write_tensors(tmp_path / "new", new)
    report = drift_of(*directories)
    reasons = {drift.tensor: drift.reason for drift in report.tensors}
    assert {drift.status for drift in report.tensors} == {DriftStatus.INCOMPARABLE}
    assert reasons == {
        "a": "the shapes differ: [2, 3] and [3, 2]",
        "b": "one is of integers and the other is not: F32 and I32",
        "c": "elements of dtype F4 are not read as numbers here",
    }
    assert report.notes == (
        "only in the new release: 1 tensor; only in the old one: 1 tensor; nothing is there to compare them with",
    )
    (layer,) = report.layers
    assert (layer.without_figures, layer.relative, layer.changed) == (3, None, None)


def test_an_empty_tensor_moved_by_nothing(tmp_path: Path) -> None:
    found = drift_between(tmp_path, {NAME: Stored("F32", (0, 3), b"")}, {NAME: Stored("F16", (0, 3), b"")})[NAME]
    assert (found.relative, found.changed, found.elements) == (0.0, 0.0, 0)


# --- quantised ---

W = "model.layers.1.mlp.up_proj.weight"
FP8: JsonObject = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS: JsonObject = {**FP8, "weight_block_size": [8, 4]}


def scaled(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], *, seed: int, suffix: str = "_scale", dtype: str = "F8_E4M3"
) -> tuple[dict[str, Stored], Array]:
    """A quantised weight with random scales, and what it stands for, element by element."""
    generator = np.random.default_rng(seed)
    stored = encode(generator.standard_normal(shape) * 20, dtype)
    scale = encode(generator.uniform(0.001, 0.01, scale_shape), "F32")
    full = scale.numbers.reshape((1,) * (len(shape) - len(scale_shape)) + scale_shape if scale_shape else (1,))
    if scale_shape == shape[:1] and len(scale_shape) == 1:
        full = scale.numbers.reshape(-1, 1)
    exact = np.empty(shape)
    for index in np.ndindex(*shape):
        place = (
            tuple(
                0 if scales == 1 else position if scales == elements else position // block
                for position, elements, scales, block in zip(
                    index, shape, full.shape, (1,) * (len(shape) - 2) + (8, 4), strict=True
                )
            )
            if full.ndim == len(shape)
            else (0,)
        )
        exact[index] = stored.numbers[index] * full[place]
    return {W: stored, W + suffix: scale}, exact


@pytest.mark.parametrize(
    ("shape", "scale_shape", "suffix", "dtype"),
    [
        ((24, 12), (), "_scale", "F8_E4M3"),
        ((24, 12), (1,), "_scale", "F8_E5M2"),
        ((24, 12), (24, 1), "_scale", "F8_E4M3"),
        ((24, 12), (24,), "_scale", "I8"),
        ((24, 12), (3, 3), "_scale_inv", "F8_E4M3"),
        ((21, 11), (3, 3), "_scale_inv", "F8_E4M3"),
        ((5, 16, 8), (5, 2, 2), "_scale_inv", "F8_E4M3"),
        ((5, 16, 8), (5, 1, 1), "_scale", "F8_E4M3"),
    ],
)
@pytest.mark.parametrize("other", ["quantised too", "bfloat16"])
def test_a_weight_with_scales_is_multiplied_with_them(  # noqa: PLR0917 - each a parameter
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    scale_shape: tuple[int, ...],
    suffix: str,
    dtype: str,
    other: str,
) -> None:
    monkeypatch.setattr(drift_torch, "PIECE_ELEMENTS", 7)  # parts of rows
    old, before = scaled(shape, scale_shape, seed=1, suffix=suffix, dtype=dtype)
    config = config_json(quantization_config=BLOCKS)
    if other == "bfloat16":
        bf16 = encode(before + values(shape, seed=3, scale=0.001), "BF16")
        new, after = {W: bf16}, bf16.numbers
    else:
        new, after = scaled(shape, scale_shape, seed=2, suffix=suffix, dtype=dtype)
    found = drift_between(tmp_path, old, new, config=config)
    assert found[W].status is DriftStatus.MEASURED
    assert f"multiplied with '{W}{suffix}'" in str(found[W].reason)
    assert_figures(found[W], before, after)
    if other != "bfloat16":
        assert found[W + suffix].status is DriftStatus.FOLDED


def test_a_scale_beside_a_zero_point_is_not_all_that_is_needed(tmp_path: Path) -> None:
    config = config_json(quantization_config=BLOCKS)
    sides = []
    for seed in (1, 2):
        stored, _ = scaled((24, 12), (24,), seed=seed, suffix="_scale", dtype="I8")
        sides.append({**stored, f"{W}_zero_point": encode(np.ones(24), "I8")})
    found = drift_between(tmp_path, *sides, config=config)[W]
    assert found.status is DriftStatus.INCOMPARABLE
    assert found.reason == "it is quantised (I8), and a zero point, which is not applied here, lies beside it"


def test_a_scale_that_multiplies_nothing_is_compared_for_itself(tmp_path: Path) -> None:
    """Its weight has another shape; or is not quantised on one side; or another scale is its."""
    config = config_json(quantization_config=FP8)
    scales = {W + "_scale": encode(np.array([0.5]), "F32")}, {W + "_scale": encode(np.array([0.75]), "F32")}
    weights = [encode(values((24, 12), seed=seed, scale=20), "F8_E4M3") for seed in (1, 2)]
    reshaped = encode(values((12, 24), seed=2, scale=20), "F8_E4M3")
    plain = encode(values((24, 12), seed=2), "BF16")
    for number, weight in enumerate((reshaped, plain)):
        old, new = {W: weights[0], **scales[0]}, {W: weight, **scales[1]}
        found = drift_between(tmp_path / str(number), old, new, config=config)[W + "_scale"]
        assert (found.status, found.relative) == (DriftStatus.MEASURED, 0.5)
    inverse = W + "_scale_inv"
    sides = [{W: weights[side], **scales[side], inverse: encode(np.array([1.0 + side]), "F32")} for side in (0, 1)]
    both = drift_between(tmp_path / "both", *sides, config=config)
    assert (both[W].status, both[W + "_scale"].status) == (DriftStatus.MEASURED, DriftStatus.FOLDED)
    assert (both[inverse].status, both[inverse].relative) == (DriftStatus.MEASURED, 1.0)


def test_an_equal_weight_under_an_equal_scale_is_not_read(tmp_path: Path) -> None:
    stored, _ = scaled((24, 12), (24, 1), seed=1)
    found = drift_between(tmp_path, stored, stored, config=config_json(quantization_config=FP8))
    assert {drift.status for drift in found.values()} == {DriftStatus.EQUAL}


def groups(*blocks: object) -> JsonObject:
    """As compressed-tensors says block sizes."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {
            f"group_{number}": {"weights": {"block_structure": block}} for number, block in enumerate(blocks)
        },
    }


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (BLOCKS, None),
        (groups([8, 4]), None),
        (groups([8, 4], [8, 4]), None),
        (groups([8, 4], None), None),
        (groups([8, 4], [4, 8]), "no block size"),
        (groups(), "no block size"),
        ({**BLOCKS, "weight_block_size": [8, 0]}, "no block size"),
        ({**BLOCKS, "weight_block_size": [8, 4, 1]}, "no block size"),
        ({**BLOCKS, "weight_block_size": [4, 8]}, "blocks of [4, 8]"),
        ({**BLOCKS, "weight_block_size": [8, 4], **groups([4, 8])}, "no block size"),
    ],
)
def test_blocks_are_those_that_the_whole_configuration_agrees_on(
    tmp_path: Path, config: JsonObject, told: str | None
) -> None:
    sides = [scaled((24, 12), (3, 3), seed=seed) for seed in (1, 2)]
    (old, before), (new, after) = sides
    found = drift_between(tmp_path, old, new, config=config_json(quantization_config=config))[W]
    if told is None:
        exact = np.linalg.norm(after - before) / np.linalg.norm(before)
        assert found.relative == pytest.approx(exact, rel=1e-6)
    else:
        assert found.status is DriftStatus.INCOMPARABLE
        assert f"(config.json tells {told})" in str(found.reason)


def test_equal_elements_under_another_scale_moved(tmp_path: Path) -> None:
    old, before = scaled((24, 12), (), seed=1)
    new = {**old, W + "_scale": encode(np.array(0.02), "F32")}
    found = drift_between(tmp_path, old, new, config=config_json(quantization_config=FP8))
    assert_figures(found[W], before, old[W].numbers * float(np.float32(0.02)))


@pytest.mark.parametrize(
    ("scale", "config", "reason"),
    [
        (
            (3, 3),
            FP8,
            "its scale '{w}_scale' of shape [3, 3] does not say which of the elements [24, 12] it belongs to",
        ),
        ((5,), BLOCKS, "(config.json tells blocks of [8, 4])"),
        (None, FP8, "it is quantised (F8_E4M3), and no weight_scale or weight_scale_inv lies beside it"),
    ],
)
def test_a_scale_that_says_nothing_makes_its_weight_incomparable(
    tmp_path: Path, scale: tuple[int, ...] | None, config: JsonObject, reason: str
) -> None:
    sides = []
    for seed in (1, 2):
        side = {W: encode(values((24, 12), seed=seed, scale=20), "F8_E4M3")}
        if scale is not None:
            side[W + "_scale"] = encode(np.ones(scale), "F32")
        sides.append(side)
    found = drift_between(tmp_path, *sides, config=config_json(quantization_config=config))[W]
    assert found.status is DriftStatus.INCOMPARABLE
    assert reason.format(w=W) in str(found.reason)


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("gptq", "GPTQ or AWQ"),
        ("awq", "GPTQ or AWQ"),
        ("pack-quantized", "a pack of compressed-tensors"),
        ("mxfp4", "a pack of compressed-tensors"),
        ("nvfp4", "NVFP4"),
        ("bitsandbytes", "bitsandbytes"),
    ],
)
def test_packed_weights_are_incomparable_and_the_reason_names_the_form(tmp_path: Path, form: str, word: str) -> None:
    for name, seed in (("old", 1), ("new", 2)):
        (tmp_path / name).mkdir()
        save_file(quantized_tensors(form, seed=seed), tmp_path / name / "model.safetensors")
        write_json(tmp_path / name / "config.json", quantized_config(form))
    report = drift_of(tmp_path / "old", tmp_path / "new")
    projections = [drift for drift in report.tensors if "_proj" in drift.tensor and drift.status != DriftStatus.EQUAL]
    assert projections
    assert {drift.status for drift in projections} == {DriftStatus.INCOMPARABLE}
    assert all(f"in the form {word}, which is not unpacked here" in str(drift.reason) for drift in projections)
    norms = [drift for drift in report.tensors if "norm" in drift.tensor]
    assert {drift.status for drift in norms} == {DriftStatus.MEASURED}


def test_a_weight_that_became_packed_is_incomparable(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    save_file(quantized_tensors("gptq"), tmp_path / "new" / "model.safetensors")
    write_json(tmp_path / "new" / "config.json", quantized_config("gptq"))
    old = write_tensors(tmp_path / "old", {W: encode(np.ones((16, 16)), "BF16")})
    (found,) = [drift for drift in drift_of(old, tmp_path / "new").tensors if drift.tensor == W]
    assert found.reason == (
        "the new release has 'model.layers.1.mlp.up_proj' in the form GPTQ or AWQ, which is not unpacked here"
    )


# --- other forms of releases ---


def test_plain_tensors_of_gguf_files_are_compared_and_blocks_are_not(tmp_path: Path) -> None:
    old = write_gguf(tmp_path / "old.gguf", tensors=small_tensors(1))
    blocks = gguf_writer.Tensor("blk.0.attn_k.weight", (32, 1), 2, bytes(range(2, 20)))
    new = write_gguf(tmp_path / "new.gguf", tensors=[*(t for t in small_tensors(3) if "blk" not in t.name), blocks])
    found = {drift.tensor: drift for drift in drift_of(old, new).tensors}
    assert found["token_embd.weight"].status is DriftStatus.MEASURED
    assert found["token_embd.weight"].relative
    assert found["blk.0.attn_k.weight"].reason == "elements of dtype Q4_0 are not read as numbers here"
    assert found["blk.0.attn_k.weight"].layer == 0


def test_a_conversion_is_compared_with_nothing_and_says_so(tmp_path: Path) -> None:
    report = drift_of(write_release(tmp_path / "old"), write_gguf(tmp_path / "new.gguf"))
    assert report.tensors == ()
    assert "a conversion renames tensors" in report.notes[0]


def test_two_adapters_are_compared_factor_by_factor(tmp_path: Path) -> None:
    old, new = adapter_tensors(seed=1), adapter_tensors(seed=1)
    name = sorted(old)[0]
    new[name] = new[name] * 2
    report = drift_of(write_adapter(tmp_path / "old", old), write_adapter(tmp_path / "new", new))
    assert {drift.tensor: drift.relative for drift in report.tensors} == dict.fromkeys(old, 0.0) | {name: 1.0}


# --- the outside world ---


def test_a_file_that_changes_after_it_was_located_is_told(tmp_path: Path) -> None:
    old, new = write_release(tmp_path / "old", tensors(1)), write_release(tmp_path / "new", tensors(2))
    weights = (located(old), located(new))
    before, after = load_release(old), load_release(new)
    write_release(new, tensors(3))
    with pytest.raises(InputError, match="changed while it was read"):
        measure_drift(before, after, compare_tensors(before, after), weights=weights)


@pytest.mark.parametrize("side", [0, 1], ids=["old", "new"])
def test_a_tensor_that_is_in_no_file_any_more_is_told_not_passed_over(tmp_path: Path, side: int) -> None:
    places = write_release(tmp_path / "old", tensors(1)), write_release(tmp_path / "new", tensors(2))
    before, after = (load_release(place) for place in places)
    fewer = tensors(side + 1)
    del fewer[NAME]
    write_release(places[side], fewer)
    with pytest.raises(InputError, match=rf"'{NAME}' is in its fingerprint, and in no file of it"):
        measure_drift(before, after, compare_tensors(before, after), weights=(located(places[0]), located(places[1])))


def test_a_progress_that_raises_stops_every_thread(tmp_path: Path) -> None:
    """As Ctrl-C does: what is raised comes through, and the number of torch's own threads is what it was."""
    old, new = write_release(tmp_path / "old", tensors(1)), write_release(tmp_path / "new", tensors(2))
    weights = (located(old), located(new))
    before, after = load_release(old), load_release(new)
    threads = torch.get_num_threads()

    def stop(_event: ProgressEvent) -> None:
        raise KeyboardInterrupt

    torch.set_num_threads(2)  # where tests run beside each other it is one before and while drift is measured
    try:
        with pytest.raises(KeyboardInterrupt):
            measure_drift(before, after, compare_tensors(before, after), weights=weights, jobs=3, progress=stop)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_progress_counts_the_bytes_of_both_sides(tmp_path: Path) -> None:
    old, new = write_release(tmp_path / "old", tensors(1)), write_release(tmp_path / "new", tensors(2))
    weights = (located(old), located(new))
    before, after = load_release(old), load_release(new)
    events: list[ProgressEvent] = []
    measure_drift(before, after, compare_tensors(before, after), weights=weights, progress=events.append)
    assert events[-1].done == events[-1].total == before.bytes + after.bytes
    assert {event.stage for event in events} == {"measuring drift"}


def test_without_torch_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    drift = importlib.import_module("kvrelease.release.drift")
    with pytest.raises(MissingExtra, match="--drift needs the Python module 'torch'") as raised:
        drift.require_torch()
    assert "kvrelease[local]" in str(raised.value.hint)
