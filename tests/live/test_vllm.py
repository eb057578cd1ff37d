"""The incident and its end on real vLLM: v1.2 is served, v1.3 is loaded in place, the prefix cache stays.

One server tells one story; each step runs once, in a module fixture, and each test states one promise about it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.conftest import Operator, Pair, Run, checks, detail
from tests.live.proxy import gateway
from tests.live.servers import VLLM_ENVIRONMENT, Server, installed, vllm_server

# Eleven probes prove a stale share below 25 %; a dozen requests is what a CI machine affords.
CLAIM = ("--stale-below", "0.25")


@pytest.fixture(scope="module")
def bound(pair: Pair, operator: Operator) -> dict[str, Any]:
    """The old release's namespace, and how to bind vLLM to it."""
    operator.configure()
    return operator.run("namespace", pair.old, "--engine", "vllm").expect(0).json


@pytest.fixture(scope="module")
def server(pair: Pair, bound: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """vLLM, started as `kvrelease namespace` says."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    settings = bound["settings"]
    with vllm_server(
        pair.old, served_model_name="smollm2", log_path=log, extra_args=settings["flags"], env=settings["env"]
    ) as running:
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


def test_an_engine_that_was_started_as_told_says_that_it_is_bound(
    server: Server, bound: dict[str, Any], pair: Pair, operator: Operator
) -> None:
    assert f"PYTHONHASHSEED={bound['settings']['env']['PYTHONHASHSEED']}".encode() in environment_of(server.pid)
    report = operator.run("namespace", pair.old, "--engine", "vllm", "--check", server.url).expect(0).json
    assert report["verdict"] == "pass"
    found = {finding["id"]: finding["answer"] for finding in report["checked"]["findings"]}
    assert found == {"key-space": "yes", "label": "yes", "store": "yes", "hash-root": "unknown"}


def test_an_engine_of_another_release_says_that_it_is_not_bound(server: Server, pair: Pair, operator: Operator) -> None:
    report = operator.run("namespace", pair.new, "--engine", "vllm", "--check", server.url).expect(1).json
    assert "label" in report["reason"]


def test_pods_with_the_root_as_given_hash_blocks_alike_and_other_releases_otherwise(
    bound: dict[str, Any], pair: Pair, operator: Operator
) -> None:
    other = operator.run("namespace", pair.new, "--engine", "vllm").expect(0).json
    one, another, foreign = (first_block_hash(settings["settings"]["env"]) for settings in (bound, bound, other))
    assert one == another != foreign


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def first_block_hash(env: dict[str, str]) -> str:
    """What a process of vLLM's names the same block of tokens, without a salt."""
    code = (
        "from vllm.utils.hashing import sha256\n"
        "from vllm.v1.core import kv_cache_utils as utils\n"
        "utils.init_none_hash(sha256)\n"
        "print(utils.hash_block_tokens(sha256, None, list(range(16))).hex())\n"
    )
    python = str(installed("vllm-python"))
    environment = {**os.environ, **VLLM_ENVIRONMENT, **env}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


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
