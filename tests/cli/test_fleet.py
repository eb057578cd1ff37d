"""Commands on several replicas, one of which cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Kv
from tests.cli.shell import Releases
from tests.engines.scripted import Break, ScriptedEngine


def test_prewarm_warms_the_others_and_names_the_one_that_cannot_be_asked(
    kv: Kv, releases: Releases, workdir: Path
) -> None:
    with ScriptedEngine(release="new") as good, ScriptedEngine(release="new") as bad:
        bad.break_with(Break.HTML, path="/v1/models")
        (workdir / "replicas.txt").write_text(f"{bad.url}  # the old rack\n{good.url}\n")
        argv = ("--release", releases.new, "--prompts", "prompts.yaml", "--engine", "vllm", "--format", "json")
        result = kv("prewarm", *argv, "--replicas", "replicas.txt")
    assert result.code == 5
    report = json.loads(result.out)
    assert [one["url"] for one in report["replicas"]] == [good.url]
    assert report["replicas"][0]["hit_rate_after"] == 1.0
    assert report["verdict"] == "inconclusive"
    assert bad.url in report["reason"]
    assert [(fault["where"], fault["exit_code"]) for fault in report["faults"]] == [(bad.url, 5)]
    assert "HTML" in result.err


def test_a_kind_that_the_engine_says_it_is_not_is_refused_before_anything_is_sent(kv: Kv, releases: Releases) -> None:
    with ScriptedEngine(release="new") as engine:
        argv = (
            "--release",
            releases.new,
            "--prompts",
            "prompts.yaml",
            "--engine-url",
            engine.url,
            "--engine",
            "sglang",
        )
        for command in ("prewarm", "record", "verify"):
            result = kv(command, *argv)
            assert result.code == 2, result.err
            assert "lists its models as those of vllm, and --engine names sglang" in result.err
            assert "next: leave --engine out, or name vllm" in result.err
        waited = kv("prewarm", *argv, "--wait", 30)
        assert waited.code == 2, "it is not waited for"
        assert engine.generations() == []


def test_verify_judges_the_others_and_does_not_pass(kv: Kv, releases: Releases) -> None:
    with ScriptedEngine(release="new") as good, ScriptedEngine(release="new") as bad:
        bad.break_with(Break.HTML, path="/v1/models")
        argv = ("--release", releases.new, "--prompts", "prompts.yaml", "--engine", "vllm", "--stale-below", "0.25")
        urls = ("--engine-url", good.url, "--engine-url", bad.url)
        result = kv("verify", *argv, *urls, "--probes", "2", "--format", "json")
        assert result.code == 5
        assert good.generations()
        assert not bad.generations()
    report = json.loads(result.out)
    assert report["verdict"] == "inconclusive"
    assert bad.url in result.err


def test_record_observes_one_replica(kv: Kv, releases: Releases) -> None:
    argv = ("--release", releases.new, "--prompts", "prompts.yaml", "--engine", "vllm")
    with ScriptedEngine(release="new") as one, ScriptedEngine(release="new") as other:
        result = kv("record", *argv, "--engine-url", one.url, "--engine-url", other.url)
        assert not one.generations() + other.generations()
    assert result.code == 2
    assert "one replica" in result.err
