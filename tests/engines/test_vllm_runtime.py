from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.engines.metrics import Metrics, Sample
from kvrelease.engines.vllm_runtime import read_cache, read_runtime

NOTHING = Metrics(())


def rank(**labels: str) -> Metrics:
    return Metrics([Sample(name="vllm:cache_config_info", labels=labels, value=1.0)])


def test_a_setting_that_is_null_is_none_and_one_that_is_missing_is_unread() -> None:
    info: JsonObject = {"vllm_config": {"model_config": {"quantization": None, "dtype": "torch.float16"}}}
    runtime, unread = read_runtime(info, NOTHING, version=None)
    assert runtime == {"engine": "vllm", "quantization": "none", "dtype": "float16"}
    assert "kv_cache_dtype" in unread
    assert "version" in unread
    assert "quantization" not in unread


def test_overrides_are_spelt_the_same_whatever_their_order() -> None:
    def overrides(value: object) -> str:
        return read_runtime({"vllm_config": {"model_config": {"hf_overrides": value}}}, NOTHING, version=None)[0][
            "overrides"
        ]

    assert overrides({"b": 1, "a": [2]}) == overrides({"a": [2], "b": 1}) == '{"a": [2], "b": 1}'
    assert overrides({}) == overrides(None) == "none"


def test_a_configuration_that_older_releases_print_as_text_is_unread() -> None:
    runtime, unread = read_runtime({"vllm_config": "model='/x', dtype=torch.bfloat16"}, NOTHING, version="0.8.0")
    assert runtime == {"engine": "vllm", "version": "0.8.0"}
    assert "dtype" in unread


def test_the_metrics_page_tells_two_settings_without_development_mode() -> None:
    runtime, _ = read_runtime(None, rank(cache_dtype="fp8", block_size="32"), version="1")
    assert runtime == {"engine": "vllm", "version": "1", "kv_cache_dtype": "fp8", "block_size": "32"}


def test_capacity_is_the_smallest_ranks() -> None:
    ranks = Metrics(
        Sample(name="vllm:cache_config_info", labels={"block_size": "32", "num_gpu_blocks": blocks}, value=1.0)
        for blocks in ("100", "90", "None")
    )
    found = read_cache(None, ranks)
    assert (found.block_tokens, found.capacity_tokens) == (32, 2880)


def test_a_hit_of_a_hybrid_model_aligns_with_both_of_its_blocks() -> None:
    asked = {"block_size": "32", "mamba_block_size": "48", "num_gpu_blocks": "100"}
    assert read_cache(None, rank(**asked, mamba_cache_mode="align")).block_tokens == 96
    assert read_cache(None, rank(**asked, mamba_cache_mode="all")).block_tokens == 32


def test_what_vllm_says_of_its_capacity_goes_before_our_product() -> None:
    found = read_cache(None, rank(block_size="32", num_gpu_blocks="100", kv_cache_size_tokens="3000"))
    assert found.capacity_tokens == 3000


def test_a_closed_page_leaves_the_configuration_and_else_nothing() -> None:
    info: JsonObject = {"vllm_config": {"cache_config": {"block_size": 16, "num_gpu_blocks": 10}}}
    assert read_cache(info, NOTHING).capacity_tokens == 160
    found = read_cache(None, NOTHING)
    assert (found.block_tokens, found.capacity_tokens, found.labels) == (None, None, {})


def test_a_cache_that_is_off_is_labelled() -> None:
    assert read_cache(None, rank(enable_prefix_caching="False")).labels == {"enable_prefix_caching": "false"}


def test_every_place_where_a_connector_keeps_entries_is_told_and_no_key() -> None:
    tiers = [{"type": "fs", "root_dir": "/kv/a"}, {"type": "obj", "prefix": "b", "store_config": {"secret_key": "s"}}]
    extra = {"secondary_tiers": tiers, "cache_prefix": "c"}
    config = {"kv_transfer_config": {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}}
    labels = read_cache({"vllm_config": config}, NOTHING).labels
    assert labels == {"kv_connector": "OffloadingConnector", "kv_store": "c, /kv/a, b"}
