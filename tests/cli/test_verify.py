"""`kvrelease verify` where its options decide what is done to an engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.verify.evidence import Evidence, Isolation
from kvrelease.verify.judge import VerifyReport
from tests.cli.conftest import Kv
from tests.cli.shell import Releases
from tests.engines.scripted import ScriptedEngine

Argv = Callable[..., list[object]]


@pytest.fixture
def stale(kv: Kv, releases: Releases) -> Iterator[ScriptedEngine]:
    """An engine that neither salts nor bypasses isolate, whose users' cache is the old release's."""
    with ScriptedEngine(release="old", ignores_salt=True, honours_bypass=False) as engine:
        kv(
            *("record", "--release", releases.old, "--engine-url", engine.url, "--prompts", "prompts.yaml"),
            *("-o", "old.json", "--no-ledger"),
        )
        engine.reload("new")
        yield engine


@pytest.fixture
def argv(releases: Releases, stale: ScriptedEngine) -> Argv:
    common = ["--release", releases.new, "--engine-url", stale.url, "--prompts", "prompts.yaml", "--probes", "3"]
    return lambda *more: ["verify", *common, *more]


def test_an_allowed_flush_is_announced_saved_before_and_told_after(kv: Kv, argv: Argv, workdir: Path) -> None:
    result = kv(*argv("--allow-flush", "-o", "r.json", "--observations", "seen.json"))
    assert result.code == 1, result.err
    assert "a cache is about to be emptied; what was observed so far is in seen.json" in result.err
    assert artifacts.read(workdir / "r.json", VerifyReport).isolation[0].used is Isolation.FLUSH
    (replica,) = artifacts.read(workdir / "seen.json", Evidence).replicas
    assert replica.flush is not None
    assert replica.flush.is_proved


def test_observations_that_nobody_asked_for_are_kept_whole_because_no_run_can_observe_them_again(
    kv: Kv, argv: Argv, workdir: Path
) -> None:
    result = kv(*argv("--allow-flush", "-o", "r.json"))
    kept = Path(result.err.split("what was observed so far is in ")[1].split(" ")[0])
    assert kept.parent == workdir.parent / "state" / "kvrelease"
    (replica,) = artifacts.read(kept, Evidence).replicas
    assert replica.flush is not None
    assert replica.flush.is_proved, "what came after the flush is there too"
    assert f"before the flush and after it, is in {kept}" in result.err
    assert kv("verify", "--from", kept, "-o", "again.json").code == result.code == 1


def test_what_cannot_be_kept_is_not_flushed_and_runs_do_not_share_the_file(
    kv: Kv, argv: Argv, stale: ScriptedEngine, workdir: Path
) -> None:
    kv(*argv("--allow-flush", "-o", "r.json"))
    stale.reload("old")
    kv(*argv("--allow-flush", "-o", "r.json"))
    state = workdir.parent / "state" / "kvrelease"
    assert len(list(state.glob("*-flushed-*.json"))) == 2
    shutil.rmtree(state)
    state.write_text("in the way")
    flushed = len([seen for seen in stale.requests if seen.path == "/reset_prefix_cache"])
    assert kv(*argv("--allow-flush", "-o", "r.json", "--no-ledger")).code == 4
    assert len([seen for seen in stale.requests if seen.path == "/reset_prefix_cache"]) == flushed


def test_a_flush_is_neither_repeated_by_a_watch_nor_allowed_where_the_engine_has_none(
    kv: Kv, argv: Argv, stale: ScriptedEngine
) -> None:
    assert "exclude each other" in kv(*argv("--allow-flush", "--watch", "60")).err
    stale.has_dev_routes = False
    refused = kv(*argv("--allow-flush"))
    assert refused.code == 2
    assert "cannot empty its cache on request" in refused.err
    assert "VLLM_SERVER_DEV_MODE=1" in refused.err
