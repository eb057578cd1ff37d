"""`kvrelease reload`, end to end on a scripted vLLM behind the real middleware."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.binding.middleware.serving import NAMESPACE, TOKEN
from tests.binding.reloading.swapping import gated
from tests.cli.shell import Releases, Result

Kv = Callable[..., Result]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTROL", TOKEN)


CONTROL = ("--control-token-env", "CONTROL")


def test_a_release_is_swapped_and_proved_by_its_golden_record(kv: Kv, releases: Releases) -> None:
    with gated(release="new") as staging:
        recorded = ("--release", releases.new, "--prompts", "prompts.yaml", "--engine-url", staging.engine.url)
        assert kv("record", *recorded, "-o", "golden.json").code == 0
    with gated() as replica:
        where = ("--release", releases.directory, "--engine-url", replica.url, *CONTROL)
        asked = ("--golden", "golden.json", "--prompts", "prompts.yaml")
        dry = kv("reload", *where, *asked, "--dry-run", "--format", "json")
        assert (dry.code, json.loads(dry.out)["replicas"][0]["ending"]) == (0, None)
        result = kv("reload", *where, *asked, "--format", "json")
        assert result.code == 0, result.err
        report = json.loads(result.out)
        assert (report["kind"], report["verdict"]) == ("kvrelease/reload", "pass")
        (one,) = report["replicas"]
        assert (one["old_namespace"], one["new_namespace"]) == (NAMESPACE, report["namespace"])
        assert one["steps"][0].keys() == {"step", "outcome", "seconds", "detail"}
        assert one["hold_s"] > 0
        assert replica.front.state()["namespace"] == report["namespace"]
        assert TOKEN not in dry.out + dry.err + result.out + result.err


def test_without_a_golden_record_it_is_inconclusive_and_names_verify(kv: Kv, releases: Releases) -> None:
    with gated() as replica:
        result = kv("reload", "--release", releases.directory, "--engine-url", replica.url, *CONTROL)
    assert result.code == 3
    assert "unproven" in result.out
    assert "kvrelease verify" in result.out


def test_a_swap_that_left_the_old_weights_ends_1_and_says_what_to_do(kv: Kv, releases: Releases) -> None:
    with gated(release="new") as staging:
        recorded = ("--release", releases.new, "--prompts", "prompts.yaml", "--engine-url", staging.engine.url)
        assert kv("record", *recorded, "-o", "golden.json").code == 0
    with gated() as replica:
        replica.engine.loads = "old"
        asked = ("--golden", "golden.json", "--prompts", "prompts.yaml", *CONTROL)
        result = kv("reload", "--release", releases.directory, "--engine-url", replica.url, *asked)
    assert result.code == 1
    assert "nobody: closed" in result.out
    assert "restart the engine" in result.out


def test_another_token_and_none_are_usage(kv: Kv, releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    with gated() as replica:
        where = ("--release", releases.directory, "--engine-url", replica.url)
        assert kv("reload", *where).code == 2
        monkeypatch.setenv("CONTROL", "another token, as long")
        result = kv("reload", *where, *CONTROL)
        assert result.code == 2
        assert "another token" not in result.err
        assert replica.front.client.get("/kvrelease/state").status_code == 401


def test_an_engine_without_the_middleware_is_usage_with_the_next_step(kv: Kv, releases: Releases) -> None:
    with gated() as replica:
        where = ("--release", releases.directory, "--engine-url", replica.engine.url, *CONTROL)
        result = kv("reload", *where)
    assert result.code == 2
    assert "--middleware kvrelease.binding.middleware.Bound" in result.err


def test_golden_without_prompts_is_usage(kv: Kv, releases: Releases, workdir: Path) -> None:
    (workdir / "golden.json").write_text("{}")
    result = kv("reload", "--release", releases.directory, "--golden", "golden.json", *CONTROL)
    assert result.code == 2
    assert "--prompts" in result.err


def test_a_saved_fingerprint_needs_the_path_of_the_weights(kv: Kv, releases: Releases) -> None:
    with gated() as replica:
        where = ("--release", releases.new, "--engine-url", replica.url, *CONTROL)
        assert kv("reload", *where).code == 2
        assert kv("reload", *where, "--weights-path", "/models/new").code == 3
