"""The rule for quantised checkpoints, and its oracle: K and V of what the packed tensors stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.impact import Rule, TensorImpact, rule_for, tensor_impact
from kvrelease.release.loading import load_release
from kvrelease.release.model_config import canonical_config
from tests.release import naive
from tests.release.builders import LAYERS
from tests.release.oracle import cached, first_change
from tests.release.quantized import (
    CONFIGURATIONS,
    PROJECTIONS,
    SIZES,
    Stored,
    effective_weights,
    quantized_config,
    quantized_tensors,
    round_trip_error,
    shared_scale,
    write_quantized,
)
from tests.release.tiny_llama import build_tiny

EMULATED = ("gptq", "awq", "fp8", "fp8-block", "pack-quantized")


def rule_of(form: str, **changes: object) -> Rule:
    return rule_for(canonical_config(quantized_config(form, **changes)))


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_every_tensor_of_a_quantised_checkpoint_is_known_and_belongs_to_its_projection(form: str) -> None:
    rule = rule_of(form)
    assert rule.name == "llama.1"
    for name in quantized_tensors(form):
        impact = tensor_impact(name, rule)
        assert impact.is_known, name
        if not name.startswith("model.layers."):
            continue
        layer, part = int(name.split(".")[2]), name.split(".", 3)[3]
        reads_own_kv = part.startswith(("input_layernorm", "self_attn.q", "self_attn.k", "self_attn.v"))
        later = layer + 1 if layer + 1 < LAYERS else None
        assert impact.first_layer == (layer if reads_own_kv else later), name


@pytest.mark.parametrize(
    "parameter", ["qweight", "weight_scale", "weight.absmax", "input_scale", "output_scale", "weight_packed"]
)
def test_the_same_names_are_unknown_where_nothing_says_quantised(parameter: str) -> None:
    rule = rule_of("gptq", quantization_config=None)
    impact = tensor_impact(f"model.layers.1.mlp.up_proj.{parameter}", rule)
    assert impact == TensorImpact(first_layer=0, is_known=False)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.brand_new_scale",
        "model.layers.1.mlp.up_proj.weight.weight_scale",
        "model.layers.1.input_layernorm.weight_scale",  # norms are not quantised: what would it be?
        "model.layers.1.self_attn.R3.weight",
        "model.layers.1.mlp.experts.gate_up_proj_blocks",
        "model.layers.1.self_attn.k_scale.extra",
        "model.layers.3.self_attn.k_scale",  # beyond the model
        "model.norm.weight_scale",
    ],
)
def test_what_the_rule_does_not_know_still_touches_everything(name: str) -> None:
    assert tensor_impact(name, rule_of("gptq")) == TensorImpact(first_layer=0, is_known=False)


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_the_published_names_say_the_same_of_every_tensor(form: str) -> None:
    rule, table = rule_of(form), naive.rule_table("llama.1")
    for name in quantized_tensors(form):
        expected = naive.first_layer(name, table, layers=LAYERS, is_quantized=True)
        assert tensor_impact(name, rule).first_layer == expected, name


@pytest.mark.parametrize("kind", ["int8", "fp8", "nf4_2"])
def test_a_kind_of_bitsandbytes_that_nobody_writes_is_not_known(kind: str) -> None:
    name = f"model.layers.1.mlp.up_proj.weight.quant_state.bitsandbytes__{kind}"
    assert tensor_impact(name, rule_of("bitsandbytes")) == TensorImpact(first_layer=0, is_known=False)


def test_an_output_scale_is_known_in_a_quantised_checkpoint_only() -> None:
    name = "model.layers.1.self_attn.k_proj.output_scale"
    plain = rule_of("gptq", quantization_config=None)
    assert tensor_impact(name, plain) == TensorImpact(first_layer=0, is_known=False)
    assert tensor_impact("model.layers.1.self_attn.k_scale", plain) == TensorImpact(first_layer=1)


def test_a_name_of_a_million_parts_is_only_unknown() -> None:
    assert not tensor_impact("model.layers.1." + "a." * 1_000_000, rule_of("gptq")).is_known


@pytest.mark.parametrize(
    "name",
    [
        "self_attn.k_scale",
        "self_attn.v_scale",
        "self_attn.q_scale",
        "self_attn.kv_scale",
        "self_attn.attn.k_scale",
        "self_attn.attn.v_zero_point",
        "self_attn.k_proj.k_scale",
        "self_attn.v_proj.v_scale",
        "self_attn.qkv_proj.k_scale",
        "self_attn.k_proj.output_scale",
        "self_attn.v_proj.output_scale",
        "self_attn.prob_output_scale",
        "self_attn.qkv_proj.v_scale",
        "self_attn.k_proj.act_global_scale",
        "self_attn.v_proj.input_scale_ub",
    ],
)
def test_a_kv_scale_counts_from_its_own_layer_on(name: str) -> None:
    """https://github.com/vllm-project/vllm/issues/54623 (calibrated scales that are part of KV, and of no weight);
    both notations of one scale: https://github.com/vllm-project/compressed-tensors/pull/133
    """
    assert tensor_impact(f"model.layers.1.{name}", rule_of("pack-quantized")) == TensorImpact(first_layer=1)
    assert tensor_impact(f"model.layers.2.{name}", rule_of("pack-quantized")) == TensorImpact(first_layer=2)


def test_quantised_embeddings_and_output_layer() -> None:
    tied, untied = rule_of("gptq", tie_word_embeddings=True), rule_of("gptq")
    assert tensor_impact("model.embed_tokens.weight_packed", untied) == TensorImpact(first_layer=0)
    assert tensor_impact("lm_head.qweight", untied) == TensorImpact(first_layer=None)
    assert tensor_impact("lm_head.qweight", tied) == TensorImpact(first_layer=0)


class Oracle:
    """Keys and values of a tiny model with quantised weights, computed by transformers."""

    def __init__(self, form: str, stored: Stored) -> None:
        self.form = form
        self.stored = stored
        self.model = build_tiny(**SIZES)
        self.weights = effective_weights(stored, form)
        self._load(self.weights)

    def after(self, name: str, tensor: torch.Tensor) -> list[Any]:
        """What is cached when one stored tensor is another; weights not beside it stay as they were read."""
        changed = self.stored | {name: tensor}
        parent = name.rpartition(".")[0].rpartition(".")[0]
        beside = {one: values for one, values in changed.items() if not parent or one.startswith(f"{parent}.")}
        others = effective_weights(beside, self.form)
        self._load(others)
        try:
            return self.keys_and_values(changed)
        finally:
            self._load({module: self.weights[module] for module in others})

    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for module, weight in weights.items():
                self.model.get_submodule(module).weight.copy_(weight)

    def keys_and_values(self, stored: Stored) -> list[Any]:
        """One tensor per layer: what a cache would hold, divided by the KV scales where there are any."""
        hooks = self._static_activations(stored) if self.form == "fp8" else []
        try:
            states = cached(self.model)
        finally:
            for hook in hooks:
                hook.remove()
        for layer, pair in enumerate(states):
            for index, side in enumerate("kv"):
                scale = stored.get(f"model.layers.{layer}.self_attn.{side}_scale")
                if scale is not None:
                    pair[index] /= scale.float()
        return states

    def _static_activations(self, stored: Stored) -> list[Any]:
        modules: dict[str, Stored] = {}
        for name, tensor in stored.items():
            module, _, parameter = name.rpartition(".")
            modules.setdefault(module, {})[parameter] = tensor

        def quantize_input(scale: torch.Tensor) -> Any:
            def hook(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
                return ((arguments[0] / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale,)

            return hook

        projections = [name for name in modules if name.rpartition(".")[2] in PROJECTIONS]
        return [
            self.model.get_submodule(name).register_forward_pre_hook(
                quantize_input(shared_scale(name, modules, "input_scale"))
            )
            for name in projections
        ]


def moved(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Another plausible value of a tensor."""
    if name.endswith("g_idx"):
        return tensor.flip(0).contiguous()
    if tensor.dtype == torch.int32:
        return tensor ^ 0x11111111
    if tensor.dtype == torch.float8_e4m3fn:
        return (tensor.float() * 0.5).to(tensor.dtype)
    return (tensor.float() * 1.5).to(tensor.dtype)


@pytest.mark.parametrize("form", EMULATED)
def test_the_emulated_packing_is_that_of_real_weights(form: str) -> None:
    assert round_trip_error(form) < 0.1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("form", EMULATED)
def test_prediction_meets_the_first_layer_that_really_changes(form: str) -> None:
    stored = quantized_tensors(form)
    oracle, rule = Oracle(form, stored), rule_of(form)
    before = oracle.keys_and_values(stored)
    wrong = {}
    for name, tensor in stored.items():
        if name.endswith("weight_shape"):
            continue  # another shape is another model, and loads nowhere
        measured = first_change(before, oracle.after(name, moved(name, tensor)))
        predicted = tensor_impact(name, rule).first_layer
        # The query counts as K, which only fused kernels need; everything else is predicted sharply.
        is_careful = ".q_proj." in name and measured in (None, predicted, (predicted or 0) + 1)
        if predicted != measured and not is_careful:
            wrong[name] = (predicted, measured)
    assert wrong == {}
    assert first_change(before, oracle.keys_and_values(stored)) is None, "the model did not become what it was"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("parameter", ["weight_scale", "input_scale"])
def test_a_fused_fp8_query_really_reaches_its_own_layers_keys(parameter: str) -> None:
    """Why `q_proj` counts as K in quantised checkpoints."""
    stored = quantized_tensors("fp8")
    oracle = Oracle("fp8", stored)
    before = oracle.keys_and_values(stored)
    name = f"model.layers.1.self_attn.q_proj.{parameter}"
    assert first_change(before, oracle.after(name, stored[name] * 11)) == 1
    assert tensor_impact(name, rule_of("fp8")) == TensorImpact(first_layer=1)


def test_a_changed_k_scale_invalidates_kv_from_that_layer_on_though_no_weight_changed(tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm/issues/54623, https://github.com/kekzl/imp/pull/1189"""
    stored = quantized_tensors("pack-quantized")
    old = load_release(write_quantized(tmp_path / "old", "pack-quantized", stored))
    name = "model.layers.1.self_attn.k_scale"
    new = load_release(write_quantized(tmp_path / "new", "pack-quantized", stored | {name: stored[name] * 2}))
    assert (old.warnings, new.warnings) == ((), ())
    found = diff_fingerprints(old, new)
    assert (found.kv.status, found.kv.first_invalid_layer, found.kv.valid_layers) == (KvStatus.INVALID, 1, 1)
    assert found.tensors.changed == (name,)
    assert old.release.kv_name != new.release.kv_name


def test_another_kv_cache_scheme_invalidates_every_layer(tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm/issues/54623"""
    quantization = CONFIGURATIONS["pack-quantized"]
    scheme = {**quantization, "kv_cache_scheme": {"num_bits": 4, "type": "float", "dynamic": False}}
    old = load_release(write_quantized(tmp_path / "old", "pack-quantized"))
    new = load_release(write_quantized(tmp_path / "new", "pack-quantized", quantization_config=scheme))
    kv = diff_fingerprints(old, new).kv
    assert (kv.status, kv.valid_layers) == (KvStatus.INVALID, 0)
    assert "'quantization_config'" in kv.reasons[0]


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_a_requantised_pack_of_equal_sizes_is_another_release(tmp_path: Path, form: str) -> None:
    """Under an old name a new pack looks like a bad one: https://github.com/osaurus-ai/osaurus/pull/1989,
    https://github.com/magicnight/Mac-MLX/pull/99
    """
    first, second = quantized_tensors(form, seed=0), quantized_tensors(form, seed=1)
    old = load_release(write_quantized(tmp_path / "old", form, first))
    new = load_release(write_quantized(tmp_path / "new", form, second))
    assert old.files == new.files  # names and sizes
    assert old.release.kv_name != new.release.kv_name
