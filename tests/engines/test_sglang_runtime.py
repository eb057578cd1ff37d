from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Counters
from kvrelease.engines.metrics import Metrics, parse_metrics
from kvrelease.engines.sglang_runtime import by_rank, read_cache, read_counters, read_runtime, started


def page(*lines: str) -> Metrics:
    return parse_metrics("\n".join(lines) + "\n", source="a test")


def realtime(mode: str, value: int, *, rank: int, tp: int = 0, pp: int = 0) -> str:
    return f'sglang:realtime_tokens_total{{dp_rank="{rank}",tp_rank="{tp}",pp_rank="{pp}",mode="{mode}"}} {value}'


RANKS = page(
    "# TYPE sglang:realtime_tokens_total counter",
    realtime("prefill_compute", 100, rank=0),
    realtime("prefill_compute", 100, rank=0, pp=1),
    realtime("prefill_cache", 60, rank=0),
    realtime("prefill_cache", 60, rank=0, pp=1),
    realtime("prefill_compute", 40, rank=1, tp=1),
    realtime("decode", 7, rank=1, tp=1),
    realtime("decode", 9, rank=2, tp=2),
)


def test_stages_of_one_rank_count_the_same_tokens_once() -> None:
    assert by_rank(RANKS, "sglang:realtime_tokens", mode="prefill_cache") == {"0": 60}
    found = read_counters(RANKS)
    assert found == Counters(queried_tokens=200, cached_tokens=60)


def test_a_rank_that_was_never_reached_is_not_known_to_be_warm() -> None:
    """https://github.com/sgl-project/sglang/pull/30748, https://github.com/ai-dynamo/dynamo/pull/11526"""
    assert read_counters(RANKS, rank=0) == Counters(queried_tokens=160, cached_tokens=60)
    assert read_counters(RANKS, rank=1) == Counters(queried_tokens=40, cached_tokens=0)
    assert read_counters(RANKS, rank=2) is None


def test_tiers_are_summed_and_a_store_is_counted_apart() -> None:
    found = read_counters(
        page(
            'sglang:prompt_tokens_total{is_streaming="false"} 900',
            'sglang:prompt_tokens_total{is_streaming="true"} 100',
            'sglang:cached_tokens_total{cache_source="device"} 300',
            'sglang:cached_tokens_total{cache_source="host"} 50',
            'sglang:cached_tokens_total{cache_source="storage"} 20',
            'sglang:num_running_reqs{dp_rank="0"} 2',
            'sglang:num_running_reqs{dp_rank="1"} 3',
        )
    )
    assert found == Counters(queried_tokens=1000, cached_tokens=350, external_cached_tokens=20, running_requests=5)


def test_a_server_that_never_hit_is_told_from_one_that_does_not_count_hits() -> None:
    seen = 'sglang:prompt_tokens_total{is_streaming="false"} 900'
    assert read_counters(page(seen)) is None
    computed = "sglang:uncached_prompt_tokens_histogram_sum 900"
    assert read_counters(page(seen, computed)) == Counters(queried_tokens=900, cached_tokens=0)


def test_a_page_without_its_counters_or_with_no_number_is_not_known() -> None:
    assert read_counters(page("vllm:prefix_cache_hits_total 3")) is None
    assert read_counters(page(realtime("prefill_compute", 0, rank=0).replace(" 0", " NaN"))) is None


def test_the_cache_is_known_only_where_it_is_told() -> None:
    unknown = read_cache(None)
    assert (unknown.block_tokens, unknown.capacity_tokens, unknown.outlives_process, unknown.ranks) == (None,) * 4
    told: JsonObject = {
        "page_size": 64,
        "dcp_size": 2,
        "max_total_num_tokens": 1000,
        "dp_size": 4,
        "hicache_storage_backend": None,
    }
    plain = read_cache(dict(told))
    assert (plain.block_tokens, plain.capacity_tokens, plain.outlives_process, plain.ranks) == (128, 1000, False, 4)
    assert read_cache(told | {"hicache_storage_backend": "file"}).outlives_process
    assert read_cache(told | {"enable_lmcache": True}).outlives_process


def test_settings_that_the_server_leaves_out_are_unread() -> None:
    runtime, unread = read_runtime({"version": "0.5.23", "dtype": "auto", "quantization": "fp8", "page_size": 1})
    assert runtime == {
        "engine": "sglang",
        "version": "0.5.23",
        "dtype": "auto",
        "quantization": "fp8",
        "block_size": "1",
    }
    assert {"kv_cache_dtype", "overrides", "max_model_len"} <= set(unread)


def test_a_start_that_is_not_told_is_none() -> None:
    assert started(None) is None
    assert started({"startup_time": 3.5}) is None
    assert started({"startup_time": {"tokenizer_e2e": 3.5}}) == "startup:3.500000"
