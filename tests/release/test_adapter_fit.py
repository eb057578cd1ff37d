"""Warnings where an adapter fits neither its own configuration nor its base."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvrelease.release.adapter_config import canonical_adapter_config
from kvrelease.release.adapter_fit import misfits_inside, misfits_with_base, split_name
from kvrelease.release.expectation import expected_shapes
from tests.release.adapters import ABSENT, AdapterTensors, adapter_json, adapter_tensors, stored
from tests.release.builders import config_and_rule

CONFIG, RULE = config_and_rule()
BASE_SHAPES = expected_shapes(CONFIG, RULE)


def inside(tensors: AdapterTensors | None = None, **changes: object) -> list[str]:
    config = canonical_adapter_config(adapter_json(**changes), where="-")
    return misfits_inside(config, stored(adapter_tensors() if tensors is None else tensors))


def with_base(tensors: AdapterTensors, *, is_tied: bool = False, **changes: object) -> list[str]:
    return misfits_with_base(
        canonical_adapter_config(adapter_json(**changes), where="-"),
        stored(tensors),
        base_names=BASE_SHAPES.keys(),
        base_shapes=BASE_SHAPES,
        is_tied=is_tied,
    )


@pytest.mark.parametrize(
    ("name", "module", "half"),
    [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj", "A"),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", "model.layers.0.self_attn.q_proj", "B"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "model.embed_tokens", "A"),
        ("base_model.model.model.embed_tokens.base_layer.weight", "model.embed_tokens", None),
        ("base_model.model.model.layers.0.self_attn.k_proj.lora_B.bias", "model.layers.0.self_attn.k_proj", None),
        (
            "base_model.model.model.layers.0.self_attn.k_proj.lora_magnitude_vector",
            "model.layers.0.self_attn.k_proj",
            None,
        ),
        (
            "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
            "model.embed_tokens",
            None,
        ),
        ("base_model.model.lm_head.weight", "lm_head", None),
    ],
)
def test_the_module_of_every_kind_of_tensor(name: str, module: str, half: str | None) -> None:
    assert split_name(name) == (module, half)


def test_an_adapter_that_is_what_it_says_needs_no_warning() -> None:
    assert inside() == []
    assert with_base(adapter_tensors()) == []


def test_a_rank_other_than_the_one_promised_is_named() -> None:
    """https://github.com/vllm-project/vllm-omni/pull/6565, https://github.com/huggingface/diffusers/pull/14409: ranks
    that differ from the configuration's are loaded at another strength.
    """
    (warning,) = inside(r=8)
    assert "6 modules have another rank than adapter_config.json says: 'model.layers.0.self_attn.q_proj'" in warning
    assert "the first has 2, promised 8" in warning


def test_a_rank_pattern_decides_for_the_modules_that_it_matches_first() -> None:
    tensors = adapter_tensors(["self_attn.v_proj"]) | adapter_tensors(["self_attn.q_proj"], rank=4)
    assert inside(tensors, rank_pattern={"q_proj": 4}) == []
    assert inside(tensors, rank_pattern={"layers.0.self_attn.q_proj": 4, "q_proj": 4}) == []
    (warning,) = inside(tensors, rank_pattern={"layers.0.self_attn.q_proj": 4})
    assert "2 modules have another rank" in warning
    assert inside(tensors, rank_pattern={r".*q_proj": 4}) == []  # a pattern that we do not run: nothing is claimed


def test_half_a_product_is_named() -> None:
    tensors = adapter_tensors()
    del tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"]
    (warning,) = inside(tensors)
    assert "1 modules have only one of lora_A and lora_B: 'model.layers.1.self_attn.q_proj'" in warning


def test_factors_that_do_not_multiply_are_named() -> None:
    tensors = adapter_tensors()
    tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"] = np.zeros((8, 3), np.float32)
    (warning,) = inside(tensors)
    assert "do not multiply in 1 modules: 'model.layers.1.self_attn.q_proj'" in warning


def test_targets_without_weights_and_weights_without_a_target_are_named() -> None:
    """A name that was never resolved: https://github.com/MakazhanAlpamys/Soup/issues/392"""
    (warning,) = inside(target_modules=["q_proj", "v_proj", "auto"])
    assert "target_modules names 'auto', for which the adapter has no weights" in warning
    (warning,) = inside(target_modules=["q_proj"])
    assert (
        "3 modules have weights that adapter_config.json does not target: 'model.layers.0.self_attn.v_proj'" in warning
    )
    (warning,) = inside(layers_to_transform=[0, 1])
    assert "2 modules have weights that" in warning
    assert inside(adapter_tensors(layers=[0, 1]), layers_to_transform=[0, 1]) == []
    assert inside(target_modules=r".*\.(q|v)_proj") == []
    assert inside(target_modules=["self_attn.q_proj", "model.layers.0.self_attn.v_proj", "v_proj"]) == []


@pytest.mark.parametrize(
    ("key", "is_idle"),
    [
        ("q_proj", False),
        ("self_attn.q_proj", False),
        ("model.layers.0.self_attn.q_proj", False),
        ("^model.layers.0.self_attn.q_proj", False),
        ("^q_proj", True),
        ("proj", True),
        ("base_model.model.model.layers.0.self_attn.q_proj", True),
        ("k_proj", True),
        (".*q_proj", False),  # not run, so nothing is claimed
        ("(a+)+$", False),
    ],
)
def test_a_pattern_that_matches_no_module_is_named(key: str, is_idle: bool) -> None:
    """Dropped without a word, so that the default applies: https://github.com/huggingface/peft/issues/3582"""
    found = inside(alpha_pattern={key: 100})
    assert (found != []) is is_idle
    if is_idle:
        assert f"alpha_pattern names {key!r}, which matches no module of the adapter" in found[0]


def test_no_pattern_from_outside_is_run() -> None:
    """Each of these takes a regular expression engine longer than the universe has been there."""
    evil = {"(a+)+$": 4, "(.*.*.*.*)*x": 4, "([a-z_.]+)+[0-9]": 4}
    tensors = adapter_tensors() | {f"base_model.model.{'a' * 5000}!.lora_A.weight": np.zeros((2, 8), np.float32)}
    started = time.monotonic()
    inside(tensors, rank_pattern=evil, alpha_pattern=evil, target_modules="(a+)+$")
    assert time.monotonic() - started < 5


def test_hostile_sizes_are_only_long() -> None:
    """Names of a million parts, and as many keys as modules."""
    many = {f"base_model.model.m{number}.lora_A.weight": np.zeros((2, 8), np.float32) for number in range(20_000)}
    deep: AdapterTensors = {f"base_model.model.{'a.' * 500_000}x.lora_A.weight": np.zeros((2, 8), np.float32)}
    keys = {f"n{number}": 4 for number in range(20_000)}
    started = time.monotonic()
    assert inside(many | deep, rank_pattern=keys, alpha_pattern=keys, target_modules=list(keys)) != []
    assert with_base(many | deep) != []
    assert time.monotonic() - started < 10


def test_an_adapter_of_another_model_is_named() -> None:
    """https://github.com/vllm-project/vllm/issues/34186, https://github.com/vllm-project/vllm/issues/48019,
    https://github.com/vllm-project/vllm/issues/34591: accepted, and answered by the base alone.
    """
    (warning,) = with_base(adapter_tensors(prefix="base_model.model.model.language_model"))
    assert "no module of the adapter is one of the base: 'model.language_model.layers.0.self_attn.q_proj'" in warning
    (warning,) = with_base(adapter_tensors(layers=[2, 3]))
    assert "2 modules of the adapter are not in the base: 'model.layers.3.self_attn.q_proj'" in warning


def test_other_sizes_than_the_bases_are_named() -> None:
    tensors = adapter_tensors()
    tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"] = np.zeros((16, 2), np.float32)
    (warning,) = with_base(tensors)
    assert "1 modules of the adapter have other sizes than those of the base" in warning
    embeddings: AdapterTensors = {
        "base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((2, 32), np.float32),
        "base_model.model.model.embed_tokens.lora_embedding_B": np.zeros((8, 2), np.float32),
    }
    assert with_base(embeddings) == []


def test_a_tied_output_layer_needs_no_tensor_of_its_own() -> None:
    tensors: AdapterTensors = adapter_tensors() | {"base_model.model.lm_head.weight": np.zeros((32, 8), np.float32)}
    names = BASE_SHAPES.keys() - {"lm_head.weight"}
    config = canonical_adapter_config(adapter_json(), where="-")

    def misfits(*, is_tied: bool) -> list[str]:
        return misfits_with_base(config, stored(tensors), base_names=names, base_shapes={}, is_tied=is_tied)

    assert misfits(is_tied=True) == []
    assert "'lm_head'" in misfits(is_tied=False)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"use_qalora": True},
        {"use_bdlora": {"nblocks": 2}},
        {"target_modules": ABSENT, "target_parameters": ["mlp.experts.gate_up_proj"]},
    ],
)
def test_variants_that_pack_their_factors_otherwise_are_not_judged_by_shape(changes: dict[str, object]) -> None:
    tensors = adapter_tensors()
    tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"] = np.zeros((6, 4), np.float32)
    assert inside(tensors, **changes) == []
    assert with_base(tensors, is_tied=False, **changes) == []


def test_layers_that_the_adapter_replicates_are_no_strangers() -> None:
    assert with_base(adapter_tensors(layers=[2, 3]), layer_replication=[[0, 3], [1, 3]]) == []


def test_other_kinds_of_adapters_are_not_judged() -> None:
    assert inside(r=8, peft_type="LOHA") == []
