"""`kvrelease verify` where its options decide what is done to an engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.evidence import Evidence, Isolation
from kvrelease.verify.judge import VerifyReport
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, Result
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


# --- the release before ----------------------------------------------------------------------------------------------


@pytest.fixture
def clean(releases: Releases) -> Iterator[ScriptedEngine]:
    with ScriptedEngine(release="new") as engine:
        yield engine


def against(kv: Kv, releases: Releases, engine: ScriptedEngine, old: object, *more: object) -> Result:
    """What the gate says of an engine, beside a release before."""
    common = ("--release", releases.new, "--engine-url", engine.url, "--prompts", "prompts.yaml")
    return kv("verify", *common, "--stale-below", "0.25", "--old-release", old, *more)


def test_a_release_that_is_said_to_be_the_one_before_itself_is_refused(
    kv: Kv, releases: Releases, clean: ScriptedEngine, workdir: Path
) -> None:
    shutil.copytree(releases.directory, workdir / "copy")
    for same in (releases.new, releases.directory, workdir / "copy"):
        result = against(kv, releases, clean, same)
        assert result.code == 2, result.err
        assert "--old-release and --release are one release" in result.errors[0]
        assert "name the release that was served before" in result.err
    assert clean.generations() == []


def test_a_release_before_that_is_not_there_is_told_and_not_passed_over(
    kv: Kv, releases: Releases, clean: ScriptedEngine
) -> None:
    result = against(kv, releases, clean, "models/v1.2")
    assert result.code == 4
    assert "models/v1.2" in result.errors[0]


def test_releases_that_make_the_same_kv_leave_nothing_to_be_stale_and_that_is_said(
    kv: Kv, releases: Releases, clean: ScriptedEngine, workdir: Path
) -> None:
    """Another chat template: another release, and its KV is the old one's."""
    shutil.copytree(releases.directory, workdir / "before")
    (workdir / "before" / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    for more in ((), ("--require-power",)):
        result = against(kv, releases, clean, workdir / "before", *more, "-o", "r.json", "--observations", "seen.json")
        assert result.code == 0, result.err
        report = artifacts.read(workdir / "r.json", VerifyReport)
        (power,) = [check for check in report.checks if check.id is CheckId.POWER]
        assert power.verdict is CheckVerdict.NOTE
        assert "old KV is valid under this release" in power.detail
        assert [one for one in report.not_covered if "KV of any release but before" in one]
    assert kv("verify", "--from", "seen.json").code == 0


def test_another_release_before_is_asked_about_as_ever(
    kv: Kv, releases: Releases, clean: ScriptedEngine, workdir: Path
) -> None:
    assert against(kv, releases, clean, releases.old, "-o", "r.json").code == 0
    report = artifacts.read(workdir / "r.json", VerifyReport)
    assert "power unknown" in next(check.detail for check in report.checks if check.id is CheckId.POWER)
    assert against(kv, releases, clean, releases.old, "--require-power").code == 3


def test_the_next_step_after_too_few_probes_is_one_that_passes(
    kv: Kv, releases: Releases, clean: ScriptedEngine
) -> None:
    argv = ("verify", "--release", releases.new, "--engine-url", clean.url, "--prompts", "prompts.yaml")
    told = " ".join(kv(*argv).out.split())
    claim = told.partition("Next: ")[2].partition("the same command with ")[2].split()[:2]
    assert claim[0] == "--stale-below"
    assert kv(*argv, claim[0], claim[1].rstrip(",")).code == 0


def test_the_next_step_without_isolation_is_one_that_decides(
    kv: Kv, releases: Releases, clean: ScriptedEngine, stale: ScriptedEngine
) -> None:
    argv = (
        "verify",
        "--release",
        releases.new,
        "--engine-url",
        stale.url,
        "--prompts",
        "prompts.yaml",
        "--probes",
        "3",
    )
    unsure = kv(*argv)
    assert unsure.code == 3
    assert "the same command with --reference URL" in " ".join(unsure.out.split())
    assert kv(*argv, "--reference", clean.url).code == 1
