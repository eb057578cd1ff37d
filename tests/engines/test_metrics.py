from __future__ import annotations

import math

import pytest

from kvrelease.engines.metrics import parse_metrics
from kvrelease.errors import UnexpectedReply

PAGE = """\
# HELP vllm:prefix_cache_hits_total Prefix cache hits
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 32.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 64.0
# TYPE vllm:prefix_cache_hits_created gauge
vllm:prefix_cache_hits_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:gpu_prefix_cache_queries counter
vllm:gpu_prefix_cache_queries{engine="0"} 100
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",engine="0"} 1.0
# TYPE broken gauge
broken NaN
"""


def test_ranks_add_up_with_or_without_the_suffix() -> None:
    metrics = parse_metrics(PAGE, source="page")
    assert metrics.total("vllm:prefix_cache_hits") == 96.0
    assert metrics.total("vllm:prefix_cache_hits_total") == 96.0
    assert metrics.total("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries") == 100.0


def test_what_is_missing_or_not_a_number_is_unknown_and_never_zero() -> None:
    metrics = parse_metrics(PAGE, source="page")
    assert metrics.total("vllm:external_prefix_cache_hits") is None
    assert metrics.total("broken") is None
    assert parse_metrics("", source="page").total("anything") is None


def test_an_info_metric_gives_its_labels() -> None:
    metrics = parse_metrics(PAGE, source="page")
    assert metrics.labels("vllm:cache_config_info") == ({"block_size": "32", "engine": "0"},)
    assert metrics.labels("nothing") == ()


@pytest.mark.parametrize("text", ["<html><body>Hello</body></html>", '{"a": 1}', "x{y 1\n"])
def test_another_format_is_an_error(text: str) -> None:
    with pytest.raises(UnexpectedReply):
        parse_metrics(text, source="page")


def test_infinities_are_numbers() -> None:
    assert parse_metrics("# TYPE a gauge\na +Inf\n", source="page").total("a") == math.inf


def test_a_counter_is_told_apart_by_a_label_of_one_rank_or_of_all() -> None:
    text = "# TYPE a_total counter\n" + "".join(
        f'a_total{{engine="{rank}",source="{source}"}} {value}\n'
        for rank, source, value in ((0, "device", 3), (0, "disk", 4), (1, "disk", 5))
    )
    metrics = parse_metrics(text, source="page")
    assert metrics.totals_by("source", "a") == {"device": 3.0, "disk": 9.0}
    assert metrics.totals_by("source", "a", only={"engine": "0"}) == {"device": 3.0, "disk": 4.0}
    assert metrics.totals_by("source", "b") == {}
    broken = parse_metrics(text.replace("} 4", "} NaN"), source="page")
    assert broken.totals_by("source", "a") == {}
