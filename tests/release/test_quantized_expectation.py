"""Warnings about quantised checkpoints that are not whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kvrelease.artifacts import JsonObject
from kvrelease.release.loading import load_release
from tests.release.builders import LAYERS
from tests.release.quantized import CONFIGURATIONS, KV_SCHEME, Stored, quantized_tensors, write_quantized

PACKED = CONFIGURATIONS["pack-quantized"]


def warnings(directory: Path, form: str, stored: Stored | None = None, **changes: object) -> tuple[str, ...]:
    return load_release(write_quantized(directory, form, stored, **changes)).warnings


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_a_whole_checkpoint_needs_no_warning(tmp_path: Path, form: str) -> None:
    assert warnings(tmp_path / form, form) == ()


@pytest.mark.parametrize(
    ("form", "scale"),
    [("gptq", "scales"), ("awq", "scales"), ("pack-quantized", "weight_scale"), ("fp8-block", "weight_scale_inv")],
)
def test_values_without_their_scale_are_named(tmp_path: Path, form: str, scale: str) -> None:
    stored = quantized_tensors(form)
    del stored[f"model.layers.1.self_attn.k_proj.{scale}"]
    (warning,) = warnings(tmp_path / "model", form, stored)
    assert "1 quantised weights have no scale beside them: 'model.layers.1.self_attn.k_proj." in warning


def test_an_absent_projection_is_named(tmp_path: Path) -> None:
    stored = {key: value for key, value in quantized_tensors("awq").items() if "layers.2.mlp.up_proj" not in key}
    (warning,) = warnings(tmp_path / "model", "awq", stored)
    assert "1 projections that config.json promises are absent: 'model.layers.2.mlp.up_proj'" in warning


def without_scales(*layers: int, sides: Sequence[str] = ("k", "v")) -> Stored:
    names = {f"model.layers.{layer}.self_attn.{side}_scale" for layer in layers for side in sides}
    return {key: value for key, value in quantized_tensors("pack-quantized").items() if key not in names}


@pytest.mark.parametrize("sides", [("k",), ("v",), ("k", "v")])
def test_promised_kv_scales_that_are_absent_are_named(tmp_path: Path, sides: tuple[str, ...]) -> None:
    """An engine takes 1.0 in their place and says so in a log line at best:
    https://github.com/vllm-project/vllm/issues/54623
    """
    (warning,) = warnings(tmp_path / "model", "pack-quantized", without_scales(1, sides=sides))
    assert "promises calibrated KV scales, and 1 layers lack those of K or V: 'model.layers.1'" in warning
    assert "scale 1.0" in warning


def test_kv_scales_that_nobody_announces_are_named(tmp_path: Path) -> None:
    """Scales in the file, no scheme read, an unscaled cache: https://github.com/sgl-project/sglang/pull/35455"""
    silent = {key: value for key, value in PACKED.items() if key != "kv_cache_scheme"}
    (warning,) = warnings(tmp_path / "model", "pack-quantized", quantization_config=silent)
    assert f"{LAYERS} layers bring KV scales that no kv_cache_scheme announces" in warning


@pytest.mark.parametrize(
    "rename",
    [
        "model.layers.{layer}.self_attn.{side}_proj.{side}_scale",
        "model.layers.{layer}.self_attn.{side}_proj.output_scale",
        "model.layers.{layer}.self_attn.attn.{side}_scale",
        "model.layers.{layer}.self_attn.kv_scale",
    ],
)
def test_every_notation_of_kv_scales_keeps_the_promise(tmp_path: Path, rename: str) -> None:
    """https://github.com/vllm-project/compressed-tensors/pull/133 moved them; older checkpoints keep theirs."""
    stored = without_scales(*range(LAYERS))
    for layer in range(LAYERS):
        for side in "kv":
            stored[rename.format(layer=layer, side=side)] = torch.tensor([0.5])
    found = load_release(write_quantized(tmp_path / "model", "pack-quantized", stored))
    assert found.warnings == ()


def test_dynamic_scales_need_none_in_the_checkpoint(tmp_path: Path) -> None:
    dynamic: JsonObject = PACKED | {"kv_cache_scheme": {**KV_SCHEME, "dynamic": True}}
    stored = without_scales(*range(LAYERS))
    assert warnings(tmp_path / "model", "pack-quantized", stored, quantization_config=dynamic) == ()
