"""The incident and its end on real vLLM: v1.2 is served, v1.3 is loaded in place, the prefix cache stays.

One server tells one story; each step runs once, in a module fixture, and each test states one promise about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.conftest import Operator, Pair, Run, checks, detail
from tests.live.proxy import gateway
from tests.live.servers import Server, vllm_server

# Eleven probes prove a stale share below 25 %; a dozen requests is what a CI machine affords.
CLAIM = ("--stale-below", "0.25")


@pytest.fixture(scope="module")
def server(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with vllm_server(pair.old, served_model_name="smollm2", log_path=log) as running:
        yield running


class Story:
    """What happened, step by step."""

    recorded: Run
    unsalted: Run
    prewarmed_unsalted: Run
    prewarmed: Run
    unsalted_after_prewarm: Run
    salted: Run
    blind: Run
    counted: Run


@pytest.fixture(scope="module")
def story(server: Server, pair: Pair, operator: Operator, prompts: Path) -> Story:
    told = Story()
    asked = ("--prompts", prompts)
    engine = ("--engine-url", server.url)
    baseline = operator.directory / "baseline.json"
    operator.configure()
    told.recorded = operator.run("record", "--release", pair.old, *engine, *asked)
    baseline.write_text(told.recorded.stdout)

    reply = httpx.post(
        f"{server.url}/collective_rpc",
        json={"method": "reload_weights", "kwargs": {"weights_path": str(pair.new)}},
        timeout=120,
    )
    assert reply.status_code == 200, reply.text

    release = ("--release", pair.new)
    both = (*release, "--old-release", pair.old, "--baseline", baseline)
    told.unsalted = operator.run("verify", *both, *engine, *asked, *CLAIM)
    told.prewarmed_unsalted = operator.run("prewarm", *release, *engine, *asked)

    operator.configure(salt="release")
    told.prewarmed = operator.run("prewarm", *release, *engine, *asked)
    operator.configure()
    told.unsalted_after_prewarm = operator.run("verify", *release, *engine, *asked, *CLAIM)
    operator.configure(salt="release")
    told.salted = operator.run("verify", *both, *engine, *asked, *CLAIM)
    with gateway(server.url, hides_metrics=True) as url:
        told.blind = operator.run("verify", *release, "--engine-url", url, *asked, *CLAIM)
    with gateway(server.url, hides_metrics=False) as url:
        # Another URL is another replica to the ledger, so it starts in a key space of its own.
        told.counted = operator.run("prewarm", *release, "--engine-url", url, *asked, "--namespace", "counted")
    return told


def test_the_old_release_is_recorded_clean(story: Story) -> None:
    record = story.recorded.expect(0).json
    assert record["foreign_tokens"] == 0
    assert len(record["observations"]) == 12
    assert record["engine"]["kind"] == "vllm"


def test_unsalted_users_get_the_old_kv_and_verify_fails(story: Story) -> None:
    report = story.unsalted.expect(1).json
    assert report["verdict"] == "fail"
    assert checks(report)["consistency"] == "fail"
    assert "consistency" in report["reason"]


def test_the_stale_probes_are_listed_by_prefix(story: Story) -> None:
    report = story.unsalted.json
    stale = [probe for probe in report["probes"] if probe["verdict"] == "stale"]
    assert {probe["prefix"] for probe in stale} == {
        "system:returns-desk",
        "system:billing-desk",
        "system:technical-desk",
    }
    assert all(probe["cached_tokens"] >= 512 for probe in stale)
    assert all(probe["foreign_tokens"] == probe["cached_tokens"] for probe in stale)


def test_the_report_says_that_the_releases_own_namespace_would_be_clean(story: Story) -> None:
    exposure = detail(story.unsalted.json, "exposure")
    assert "the release's own namespace, which would be clean" in exposure
    assert "production does not use" in exposure


def test_the_in_process_release_proves_who_answers(story: Story) -> None:
    for run in (story.unsalted, story.salted):
        assert checks(run.json)["identity"] == "pass"
        assert run.json["power"]["status"] == "sufficient"


def test_prewarming_a_dirty_cache_fails_and_says_what_to_do(story: Story) -> None:
    report = story.prewarmed_unsalted.expect(1).json
    assert report["replicas"][0]["foreign_tokens"] > 0
    assert "--allow-flush" in report["reason"]


def test_prewarming_the_namespace_warms_it(story: Story) -> None:
    replica = story.prewarmed.expect(0).json["replicas"][0]
    assert replica["foreign_tokens"] == 0
    assert replica["hit_rate_before"] == 0
    assert replica["hit_rate_after"] >= 0.9


def test_unsalted_users_are_still_stale_after_somebody_prewarmed_the_salted_namespace(story: Story) -> None:
    report = story.unsalted_after_prewarm.expect(1).json
    assert checks(report)["consistency"] == "fail"
    own = next(one for one in report["exposure"] if one["key_space"] == report["namespace"])
    assert own["verdict"] == "clean"
    assert own["cached_tokens"] > 0


def test_bound_production_passes_with_binding_proved(story: Story) -> None:
    report = story.salted.expect(0).json
    assert report["binding"]["bound"] is True
    assert checks(report)["binding"] == "pass"
    assert checks(report)["first-touch"] == "pass"
    assert report["stale"]["count"] == 0
    assert len(report["probes"]) == 11


def test_what_nobody_witnessed_is_inconclusive_and_never_zero(story: Story) -> None:
    report = story.blind.expect(3).json
    assert report["verdict"] == "inconclusive"
    assert all(probe["cached_tokens"] is None for probe in report["probes"])


def test_counters_witness_where_usage_says_nothing(story: Story) -> None:
    replica = story.counted.expect(0).json["replicas"][0]
    assert replica["witness"] == "counters"
    assert replica["hit_rate_after"] >= 0.9


def test_the_engine_is_up_to_the_last_step(story: Story, server: Server) -> None:
    models: dict[str, Any] = httpx.get(f"{server.url}/v1/models", timeout=10).json()
    assert [model["id"] for model in models["data"]] == ["smollm2"]
    assert Path(server.log_path).stat().st_size > 0
