"""What a vLLM server tells of the settings that its KV depends on.

Source: vLLM 0.32.0: `/server_info?config_format=json` (entrypoints/serve/dev/server_info), and the labels of
`vllm:cache_config_info` (config/cache.py, `metrics_info`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.foreign import as_list, as_object, as_text, at, label, setting_text
from kvrelease.engines.metrics import Metrics

_CACHE_INFO = "vllm:cache_config_info"
RANK_LABEL = "engine"
# Speculative decoders that read the target's hidden states (config/speculative.py, `use_eagle`).
_READS_HIDDEN_STATES = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})

# Our name of each setting, and where the configuration has it.
_SETTINGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "dtype": (("model_config", "dtype"),),
    "kv_cache_dtype": (("cache_config", "cache_dtype"),),
    "quantization": (("model_config", "quantization"),),
    "tensor_parallel_size": (("parallel_config", "tensor_parallel_size"),),
    "pipeline_parallel_size": (("parallel_config", "pipeline_parallel_size"),),
    "block_size": (("cache_config", "block_size"),),
    "max_model_len": (("model_config", "max_model_len"),),
    # Releases before `hf_overrides` had the rope settings of their own.
    "overrides": (("model_config", "hf_overrides"), ("model_config", "rope_scaling")),
}
_METRIC_LABELS = {"kv_cache_dtype": "cache_dtype", "block_size": "block_size"}


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The device prefix cache.

    Attributes:
        block_tokens: granularity of a hit, None when not told.
        lost_tokens: of the end of every hit, given up for a speculative decoder that reads hidden states; told in
            development mode only.
        capacity_tokens: of the smallest rank, None when not told.
        is_off: what says that prefixes are not cached; None where nothing does.
        labels: settings of the cache that are worth printing.
    """

    block_tokens: int | None
    lost_tokens: int
    capacity_tokens: int | None
    is_off: str | None
    labels: dict[str, str]


def read_cache(info: JsonObject | None, metrics: Metrics, *, rank: int | None = None) -> CacheFacts:
    """The cache's shape, from the metrics page or, behind a closed one, from the server's configuration.

    Args:
        info: the answer of `/server_info`, None without it.
        metrics: the metrics page.
        rank: of which data-parallel rank; None for what holds for every one.
    """
    every = [dict(found) for found in metrics.labels(_CACHE_INFO)]
    ranks = [one for one in every if rank is None or one.get(RANK_LABEL) == str(rank)] or every or _configured(info)
    capacities = [capacity for rank in ranks if (capacity := _capacity(rank)) is not None]
    first = ranks[0] if ranks else {}
    shown = ("enable_prefix_caching", "prefix_caching_hash_algo", "mamba_cache_mode", "sliding_window")
    block = _block(first)
    caches = (first.get("enable_prefix_caching") or "").lower()
    return CacheFacts(
        block_tokens=block,
        lost_tokens=block if block is not None and _gives_up_a_block(info) else 0,
        capacity_tokens=min(capacities, default=None),
        is_off="enable_prefix_caching is false" if caches == "false" else None,
        labels={name: first[name].lower() for name in shown if first.get(name) not in (None, "None")} | _store(info),
    )


# Where connectors keep entries, and what sets entries apart in a store that is named by text.
_PLACES = ("shared_storage_path", "root_dir", "cache_prefix", "hf3fs_storage_path")
_TIER_PLACES = ("root_dir", "prefix")
STORE_SEPARATOR = ", "


def _store(info: JsonObject | None) -> dict[str, str]:
    """The connector to a store outside the process, and where that lies; of its settings, which may hold keys, no more.

    Source: vLLM 0.32.0, config/kv_transfer.py; the connectors' own settings in distributed/kv_transfer/kv_connector/v1,
    those of tiers in v1/kv_offload/tiering.
    """
    given = as_object(at(as_object(info), "vllm_config", "kv_transfer_config"))
    extra = as_object(given.get("kv_connector_extra_config"))
    tiers = [as_object(tier) for tier in as_list(extra.get("secondary_tiers"))]
    named = [extra.get(name) for name in _PLACES] + [tier.get(name) for tier in tiers for name in _TIER_PLACES]
    places = STORE_SEPARATOR.join(text for place in named if (text := as_text(place)))
    found = {"kv_connector": as_text(given.get("kv_connector")), "kv_store": places}
    return {name: value for name, value in found.items() if value}


def read_runtime(
    info: JsonObject | None, metrics: Metrics, *, version: str | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The settings that change KV's bytes or layout, by our names, and the names of those that are not told."""
    config = as_object(as_object(info).get("vllm_config"))
    labels = next(iter(metrics.labels(_CACHE_INFO)), {})
    runtime = {"engine": "vllm"}
    if version is not None:
        runtime["version"] = version
    for name, places in _SETTINGS.items():
        value = _setting(config, places)
        if value is None and name in _METRIC_LABELS:
            value = labels.get(_METRIC_LABELS[name])
        if value is not None:
            runtime[name] = value
    return runtime, tuple(name for name in ("version", *_SETTINGS) if name not in runtime)


def _setting(config: JsonObject, places: tuple[tuple[str, str], ...]) -> str | None:
    """A setting as text, `none` where the configuration says null; None where it does not have the key."""
    for section, key in places:
        if key in as_object(config.get(section)):
            value = at(config, section, key)
            return "none" if value in (None, {}, "") else setting_text(value)
    return None


def _configured(info: JsonObject | None) -> list[dict[str, str]]:
    cache = as_object(at(as_object(info), "vllm_config", "cache_config"))
    found = {name: text for name, value in cache.items() if (text := label(value)) is not None}
    return [found] if found else []


def _block(rank: Mapping[str, str]) -> int | None:
    """Granularity of a hit. Some set-ups tell it themselves; elsewhere it is the coarsest that a hit must align to."""
    told = _integer(rank.get("cache_hit_alignment_tokens")) or _integer(rank.get("prefix_match_unit"))
    if told is not None:
        return told
    attention = _integer(rank.get("effective_attention_block_size")) or _integer(rank.get("block_size"))
    # The state of recurrent layers is kept at multiples of a block of its own.
    recurrent = _integer(rank.get("mamba_block_size")) if rank.get("mamba_cache_mode") == "align" else None
    return attention if attention is None or recurrent is None else math.lcm(attention, recurrent)


def _gives_up_a_block(info: JsonObject | None) -> bool:
    speculative = as_object(at(as_object(info), "vllm_config", "speculative_config"))
    return speculative.get("method") in _READS_HIDDEN_STATES and speculative.get("disable_eagle_block_drop") is not True


def _capacity(rank: Mapping[str, str]) -> int | None:
    told = _integer(rank.get("kv_cache_size_tokens"))
    blocks, size = _integer(rank.get("num_gpu_blocks")), _integer(rank.get("block_size"))
    if told is not None:
        return told
    return blocks * size if blocks is not None and size is not None else None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None
