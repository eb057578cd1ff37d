"""What an SGLang server tells of its cache, its settings and its counters.

Source: SGLang 0.5.23: `/server_info` (entrypoints/http_server.py, utils/common.py `build_server_info`: the resolved
server arguments with the scheduler's `max_total_num_tokens` and `startup_time`), metric names
(observability/metrics_collector.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Counters
from kvrelease.engines.foreign import as_count, as_number, as_object, as_text, at, label, setting_text
from kvrelease.engines.metrics import Metrics

RANK_LABEL = "dp_rank"

# Our name of each setting, and the server's argument.
_SETTINGS: Mapping[str, str] = {
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "block_size": "page_size",
    "max_model_len": "context_length",
    "overrides": "json_model_override_args",
}
_SHOWN = (
    "disable_radix_cache",
    "enable_cache_report",
    "enable_hierarchical_cache",
    "hicache_storage_backend",
    "hicache_write_policy",
    "enable_lmcache",
    "radix_eviction_policy",
    "allow_auto_truncate",
    "chunked_prefill_size",
    "dp_size",
)
_OFF: tuple[object, ...] = (None, "", {}, "{}", "None")


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache.

    Attributes:
        block_tokens: granularity of a hit (a page), None when not told.
        capacity_tokens: of the device's cache, of one data-parallel rank; None when not told.
        outlives_process: whether a store outside the process (HiCache storage, LMCache) is attached; None when the
            server does not tell.
        ranks: data-parallel ranks, each with a cache of its own; None when not told.
        is_off: the setting that means that no prefix is cached; None where there is none.
        labels: settings of the cache that are worth printing.
    """

    block_tokens: int | None
    capacity_tokens: int | None
    outlives_process: bool | None
    ranks: int | None
    is_off: str | None
    labels: dict[str, str]


def read_cache(info: JsonObject | None) -> CacheFacts:
    """The cache's shape, from `/server_info`; None where that is closed."""
    given = as_object(info)
    page, widening = as_count(given.get("page_size")), as_count(given.get("dcp_size")) or 1
    storage = given.get("hicache_storage_backend") not in _OFF or given.get("enable_lmcache") is True
    return CacheFacts(
        block_tokens=page * widening if page else None,
        capacity_tokens=as_count(given.get("max_total_num_tokens")) or None,
        outlives_process=storage if info is not None else None,
        ranks=as_count(given.get("dp_size")) or None,
        is_off="disable_radix_cache is true" if given.get("disable_radix_cache") is True else None,
        labels={name: text for name in _SHOWN if given.get(name) not in _OFF and (text := label(given[name]))},
    )


def read_runtime(info: JsonObject | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """The settings that change KV's bytes or layout, by our names, and the names of those that are not told."""
    given = as_object(info)
    runtime = {"engine": "sglang"}
    version = as_text(given.get("version"))
    if version is not None:
        runtime["version"] = version
    for name, argument in _SETTINGS.items():
        # A context length of null means the model's own, which is no setting of the runtime.
        if argument in given:
            runtime[name] = "none" if given[argument] in _OFF else setting_text(given[argument])
    return runtime, tuple(name for name in ("version", *_SETTINGS) if name not in runtime)


def started(info: JsonObject | None) -> str | None:
    """What distinguishes this process from its predecessor: how long its start took, told to the microsecond."""
    startup = as_object(at(as_object(info), "startup_time"))
    seconds = [
        value for name in ("scheduler_e2e", "tokenizer_e2e") if (value := as_number(startup.get(name))) is not None
    ]
    return "startup:" + "+".join(f"{value:.6f}" for value in seconds) if seconds else None


def read_counters(metrics: Metrics, *, rank: int | None = None) -> Counters | None:
    """Prompt tokens seen and found in the cache; None without `--enable-metrics`, or before the first request.

    A counter with labels appears with its first increment. So `cached_tokens` missing is either a server that never
    hit, or one that does not count hits; the histogram of uncached tokens, which every request enters, tells which.
    Without either, and for one data-parallel rank, the schedulers' own counters do.

    Args:
        metrics: the page.
        rank: counts that data-parallel rank alone; None for all of them.
    """
    counted = (None if rank is not None else _of_requests(metrics)) or _of_schedulers(metrics, rank=rank)
    if counted is None or not all(math.isfinite(value or 0.0) for value in counted):
        return None
    queried, cached, external = counted
    return Counters(
        queried_tokens=queried,
        cached_tokens=cached,
        external_cached_tokens=external,
        running_requests=_total(by_rank(metrics, "sglang:num_running_reqs"), rank=rank),
        waiting_requests=_total(by_rank(metrics, "sglang:num_queue_reqs"), rank=rank),
    )


def by_rank(metrics: Metrics, name: str, **labels: str) -> dict[str, float]:
    """A scheduler's metric by data-parallel rank; the rank is empty where there is one.

    Every pipeline stage counts the same requests, and every tensor-parallel rank does with
    `--enable-metrics-for-all-schedulers`; what one of them saw is what the rank saw.
    """
    found: dict[str, list[float]] = {}
    for sample in metrics.samples(name):
        if all(sample.labels.get(key) == value for key, value in labels.items()):
            found.setdefault(sample.labels.get(RANK_LABEL, ""), []).append(sample.value)
    return {rank: math.nan if any(map(math.isnan, values)) else max(values) for rank, values in found.items()}


def _of_requests(metrics: Metrics) -> tuple[float, float, float | None] | None:
    """(seen, cached here, cached in a store) of all requests that were answered."""
    seen = metrics.total("sglang:prompt_tokens")
    if seen is None:
        return None
    sources = {sample.labels.get("cache_source", "total"): 0.0 for sample in metrics.samples("sglang:cached_tokens")}
    for sample in metrics.samples("sglang:cached_tokens"):
        sources[sample.labels.get("cache_source", "total")] += sample.value
    if sources:
        external = sources.pop("storage", None)
        return seen, math.fsum(sources.values()), external
    computed = metrics.total("sglang:uncached_prompt_tokens_histogram_sum")
    return None if computed is None else (seen, max(seen - computed, 0.0), None)


def _of_schedulers(metrics: Metrics, *, rank: int | None) -> tuple[float, float, float | None] | None:
    """(seen, cached in any tier, None) as the schedulers count while they prefill."""
    computed = _total(by_rank(metrics, "sglang:realtime_tokens", mode="prefill_compute"), rank=rank)
    cached = _total(by_rank(metrics, "sglang:realtime_tokens", mode="prefill_cache"), rank=rank)
    if computed is None and cached is None:
        return None
    return (computed or 0.0) + (cached or 0.0), cached or 0.0, None


def _total(ranks: Mapping[str, float], *, rank: int | None) -> float | None:
    """Of one rank, or summed over all; None where nothing is told."""
    if rank is not None:
        return ranks.get(str(rank))
    return math.fsum(ranks.values()) if ranks else None
