"""The canonical form of what says how a checkpoint is quantised."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.canonical import same_value
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.digests import config_digest
from kvrelease.release.expectation import disagreements
from kvrelease.release.impact import TensorImpact, rule_for, tensor_impact
from kvrelease.release.loading import load_release
from kvrelease.release.model_config import canonical_config
from kvrelease.release.quantization import (
    SIDE_FILES,
    canonical_quantization,
    is_quantized,
    promises_kv_scales,
)
from kvrelease.release.release_file import FileRole
from tests.release.builders import config_json, write_json, write_release
from tests.release.quantized import CONFIGURATIONS, KV_SCHEME, quantized_config

GPTQ, PACKED = CONFIGURATIONS["gptq"], CONFIGURATIONS["pack-quantized"]


def same(left: JsonObject, right: JsonObject) -> bool:
    return same_value(canonical_quantization(left), canonical_quantization(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (GPTQ, GPTQ | {"damp_percent": 0.05, "dataset": ["a", "b"], "tokenizer": "acme/base", "batch_size": 4}),
        (
            CONFIGURATIONS["awq"],
            CONFIGURATIONS["awq"] | {"damp_percent": 0.1, "true_sequential": True, "dataset": None},
        ),
        (GPTQ, GPTQ | {"act_group_aware": False, "true_sequential": True, "cache_block_outputs": True}),
        (GPTQ, GPTQ | {"backend": None, "meta": None, "dynamic": {}, "modules_to_not_convert": []}),
        (
            GPTQ | {"meta": {"quantizer": ["gptqmodel:1.9.0"], "damp_percent": 0.1}},
            GPTQ | {"meta": {"quantizer": ["gptqmodel:2.0"], "damp_percent": 0.1}},
        ),
        (GPTQ | {"meta": {"quantizer": "optimum:1"}}, GPTQ | {"meta": {"quantizer": "optimum:2"}}),
        (PACKED, PACKED | {"global_compression_ratio": None, "version": "0.9.0", "transform_config": {}}),
        (PACKED | {"ignore": ["a", "lm_head", "re:b"]}, PACKED | {"ignore": ["re:b", "lm_head", "a", "a"]}),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 8}, {"quant_method": "awq", "bits": 4, "group_size": 8}),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["b", "a"]}},
            {
                "producer": {"name": "modelopt", "version": "0.33.0"},
                "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["a", "b"]},
            },
        ),
    ],
)
def test_what_every_engine_reads_alike_is_one_configuration(left: JsonObject, right: JsonObject) -> None:
    assert same(left, right)


@pytest.mark.parametrize(
    "other",
    [
        GPTQ | {"bits": 8},
        GPTQ | {"desc_act": False},
        GPTQ | {"sym": True},
        GPTQ | {"checkpoint_format": "gptq"},
        GPTQ | {"brand_new_key": 1},
        GPTQ | {"meta": {"quantizer": ["gptqmodel:1.0"]}},
        GPTQ | {"meta": {"quantizer": ["optimum:1.0"]}},
        GPTQ | {"producer": {"name": "other"}},
        GPTQ | {"dynamic": {"-:.*mlp.*": {}}},
        {"quant_method": "awq", **{key: value for key, value in GPTQ.items() if key != "quant_method"}},
    ],
)
def test_what_may_change_a_product_is_another_configuration(other: JsonObject) -> None:
    assert not same(GPTQ, other)


CALIBRATION: JsonObject = {
    "act_group_aware": True,
    "batch_size": 4,
    "cache_block_outputs": True,
    "damp_auto_increment": 0.0025,
    "damp_percent": 0.05,
    "dataset": "c4",
    "model_seqlen": 2048,
    "module_name_preceding_first_block": ["model.embed_tokens"],
    "pad_token_id": 0,
    "tokenizer": "acme/base",
    "true_sequential": True,
}


@pytest.mark.parametrize("key", CALIBRATION)
def test_what_only_calibration_read_counts_for_no_method_that_calibrates(key: str) -> None:
    for form in ("gptq", "awq"):
        assert same(CONFIGURATIONS[form], CONFIGURATIONS[form] | {key: CALIBRATION[key]})
    assert not same(CONFIGURATIONS["fp8"], CONFIGURATIONS["fp8"] | {key: CALIBRATION[key]})


@pytest.mark.parametrize("key", ["exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert"])
def test_lists_of_modules_that_stay_as_they_are_are_sets_and_empty_ones_absent(key: str) -> None:
    plain: JsonObject = {"quant_method": "fp8"}
    assert same(plain | {key: ["lm_head", "a", "a"]}, plain | {key: ["a", "lm_head"]})
    assert same(plain | {key: []}, plain)
    assert not same(plain | {key: ["a"]}, plain)


@pytest.mark.parametrize("key", ["dynamic", "sparsity_config", "transform_config"])
def test_an_empty_block_of_settings_is_an_absent_one(key: str) -> None:
    assert same(PACKED | {key: {}}, PACKED)
    assert not same(PACKED | {key: {"a": {}}}, PACKED)


@pytest.mark.parametrize(
    ("name", "first_layer"),
    [
        ("self_attn.k_proj.input_scale_ub", 1),
        ("self_attn.v_proj.act_global_scale", 1),
        ("mlp.up_proj.act_global_scale", 2),
        ("mlp.down_proj.input_scale_ub", 2),
        ("self_attn.qkv_proj.k_scale", 1),
        ("self_attn.qkv_proj.v_scale", 1),
        ("self_attn.attn.kv_scale", 1),
        ("self_attn.prob_output_scale", 1),
    ],
)
def test_scales_of_every_method_reach_what_they_scale(name: str, first_layer: int) -> None:
    rule = rule_for(canonical_config(quantized_config("fp8")))
    assert tensor_impact(f"model.layers.1.{name}", rule) == TensorImpact(first_layer=first_layer)


def test_the_order_of_overlapping_rules_counts() -> None:
    """The first key that matches a module wins, so two orders of the same rules are two models."""
    rules: JsonObject = {"+:.*k_proj": {"bits": 8}, "-:.*proj": {}}
    assert not same(GPTQ | {"dynamic": rules}, GPTQ | {"dynamic": dict(reversed(rules.items()))})
    groups: JsonObject = {"a": {"targets": ["re:.*k_proj"]}, "b": {"targets": ["Linear"]}}
    assert not same(PACKED | {"config_groups": groups}, PACKED | {"config_groups": dict(reversed(groups.items()))})


def test_awq_keeps_the_version_that_is_a_layout() -> None:
    awq = CONFIGURATIONS["awq"]
    assert not same(awq, awq | {"version": "gemv"})


def test_an_empty_scheme_deep_inside_is_not_an_absent_one() -> None:
    """In compressed-tensors an empty `weights` means eight-bit integers, an absent one no quantisation."""

    def groups(scheme: JsonObject) -> JsonObject:
        return PACKED | {"config_groups": {"group_0": {"targets": ["Linear"], **scheme}}}

    assert not same(groups({"weights": {}}), groups({}))
    assert same(groups({"weights": None}), groups({}))


def test_compression_config_is_a_quantization_config() -> None:
    old = config_json(compression_config=PACKED)
    assert canonical_config(old).entries == canonical_config(config_json(quantization_config=PACKED)).entries
    both = canonical_config(config_json(compression_config=PACKED, quantization_config=GPTQ)).entries
    assert both["compression_config"] == PACKED  # one of the two wins in each engine: both count


@pytest.mark.parametrize(
    ("block", "promised"),
    [
        ({"kv_cache_scheme": KV_SCHEME}, True),
        ({"kv_cache_scheme": {**KV_SCHEME, "dynamic": True}}, False),
        ({"kv_cache_scheme": None}, False),
        ({"kv_cache_scheme": "fp8"}, True),
        ({"kv_cache_quant_algo": "FP8"}, True),
        ({"kv_cache_quant_algo": None}, False),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, True),
        ({}, False),
    ],
)
def test_where_calibrated_kv_scales_are_announced(block: JsonObject, promised: bool) -> None:
    for key in ("quantization_config", *SIDE_FILES):
        entries: JsonObject = {key: canonical_quantization(block)}
        assert promises_kv_scales(entries) is promised
        assert is_quantized(entries)
    assert not is_quantized({"hidden_size": 8})


@pytest.mark.parametrize("side_file", SIDE_FILES)
def test_a_configuration_beside_config_json_counts(tmp_path: Path, side_file: str) -> None:
    """Legacy checkpoints of ModelOpt, AutoGPTQ and AutoAWQ say there how they are quantised; engines differ in whether
    they look: https://github.com/intel/auto-round/pull/168, https://github.com/vllm-project/vllm/pull/25706
    """
    plain = load_release(write_release(tmp_path / "plain"))
    directory = write_release(tmp_path / "model")
    write_json(directory / side_file, {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}})
    before = load_release(directory)
    assert before.rule.is_quantized
    assert side_file in {file.path for file in before.files if file.role is FileRole.CONFIG}
    assert before.release.kv_name != plain.release.kv_name
    write_json(directory / side_file, {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}})
    after = load_release(directory)
    kv = diff_fingerprints(before, after).kv
    assert (kv.status, kv.valid_layers) == (KvStatus.INVALID, 0)
    assert kv.reasons == (
        f"{side_file} changed (quantization.quant_algo FP8 → NVFP4), on which KV depends: every layer is invalid",
    )
    (directory / side_file).write_text("[]")
    with pytest.raises(DamagedFile, match=f"{side_file}: expected a JSON object"):
        load_release(directory)


def test_other_model_types_are_canonicalised_too() -> None:
    """gpt-oss in MXFP4: no rule, so every tensor counts; a harmless edit of its quantisation still changes nothing."""
    mxfp4: JsonObject = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]}
    reordered = {"modules_to_not_convert": ["lm_head", "model.embed_tokens"], "quant_method": "mxfp4"}
    left = canonical_config(config_json("gpt_oss", quantization_config=mxfp4))
    right = canonical_config(config_json("gpt_oss", quantization_config=reordered))
    assert same_value(left.entries, right.entries)
    rule = rule_for(left)
    for name in ("gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "gate_up_proj_bias"):
        impact = tensor_impact(f"model.layers.0.mlp.experts.{name}", rule)
        assert (impact.first_layer, impact.is_known) == (0, False)


def test_a_quantization_config_that_is_no_object_is_kept_and_counts() -> None:
    config = canonical_config(quantized_config("gptq", quantization_config="awq"))
    assert config.entries["quantization_config"] == "awq"
    assert rule_for(config).is_quantized


def test_whatever_the_values_are_the_configuration_is_read() -> None:
    """Seeded: any JSON value under any key that we know, at the top and inside."""
    rng = random.Random(12)
    leaves: list[object] = [None, False, 0, 2.5, "", "gptq", "lm_head", [], {}, ["b", "a", "a"], ["a", 1], {"b": None}]
    keys = [
        *(
            "quant_method",
            "kv_cache_scheme",
            "kv_cache_quant_algo",
            "quantization",
            "ignore",
            "dynamic",
            "config_groups",
        ),
        *("w_bit", "bits", "exclude_modules", "transform_config", "damp_percent"),
    ]

    def block(depth: int = 0) -> JsonObject:
        chosen = rng.sample(keys, k=rng.randint(0, 5))
        return {key: block(depth + 1) if depth < 3 and rng.random() < 0.2 else rng.choice(leaves) for key in chosen}

    for _ in range(3000):
        raw = config_json(quantization_config=rng.choice([block(), rng.choice(leaves)]), compression_config=block())
        config = canonical_config(
            raw, beside={side: canonical_quantization(block()) for side in rng.sample(SIDE_FILES, k=1)}
        )
        again = canonical_config(json.loads(json.dumps(raw)), beside={})
        promises_kv_scales(config.entries)
        rule = rule_for(config)
        assert rule.is_quantized
        config_digest(again.entries, {}, rule)
        disagreements(config, rule, {})
