"""The demo on the shipped pair: what its table promises, and that the commands it prints do what it says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.cli.app import run
from kvrelease.config import MIN_DEMO_REQUESTS
from kvrelease.demo.figures import DemoReport, Kept, Strategy
from kvrelease.engines.block_files import BlockFiles
from kvrelease.release.diff_record import KvStatus
from kvrelease.report.demo import demo_document
from kvrelease.report.document import Commands


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "kept"


@pytest.fixture(scope="module")
def report(kept: Path) -> DemoReport:
    output = kept.parent / "demo.json"
    assert run(["demo", "--requests", str(MIN_DEMO_REQUESTS), "--keep", str(kept), "--output", str(output)]) == 0
    return artifacts.read(output, DemoReport)


def test_keys_of_tokens_only_answer_wrongly_at_a_high_hit_rate(report: DemoReport) -> None:
    tokens_only, _ = report.strategies
    assert tokens_only.name is Strategy.TOKENS_ONLY
    assert tokens_only.consistency < 0.8
    assert tokens_only.hit_rate_new > 0.5


def test_bound_keys_answer_as_the_new_release_does(report: DemoReport) -> None:
    _, bound = report.strategies
    assert bound.name is Strategy.BOUND
    assert bound.consistency == 1.0
    assert bound.hit_rate_new > 0.5


def test_the_example_shows_three_answers(report: DemoReport) -> None:
    assert report.example is not None
    assert report.example.stale != report.example.clean != report.example.old
    assert report.example.cached_tokens > 0


def test_the_gate_fails_the_one_and_passes_the_other(report: DemoReport) -> None:
    assert [(gate.strategy, gate.verdict) for gate in report.gates] == [
        (Strategy.TOKENS_ONLY, Verdict.FAIL),
        (Strategy.BOUND, Verdict.PASS),
    ]
    assert report.impact.status is KvStatus.INVALID


def test_the_figures_are_of_the_whole_run(report: DemoReport) -> None:
    assert (report.questions, report.different) == (40, 38)
    assert all(row.key_us > 0 for row in report.strategies)
    assert report.ttft_requests > MIN_DEMO_REQUESTS / 3
    assert report.moved == 4 + 20
    assert report.stale == round((1 - report.strategies[0].consistency) * report.moved)
    assert 0 < report.stale_of_neither <= report.stale


def test_every_command_it_prints_does_what_the_page_says(
    report: DemoReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    commands = next(block for block in demo_document(report).blocks if isinstance(block, Commands))
    codes = [run(shlex.split(line)[1:]) for line in commands.lines]
    assert codes == [0, 0, 1, 0], capsys.readouterr()
    # Once more, with an earlier run in the ledger: looking at a store changes nothing about it.
    assert run(shlex.split(commands.lines[-1])[1:]) == 0, capsys.readouterr()


def test_the_bound_entries_are_judged_and_not_an_empty_key_space(
    report: DemoReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    commands = next(block for block in demo_document(report).blocks if isinstance(block, Commands))
    assert run([*shlex.split(commands.lines[-1])[1:], "--format", "json"]) == 0
    checks = {check["id"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["first-touch"]["verdict"] == "note"
    assert "origin is unknown" in checks["first-touch"]["detail"]


def test_pair_and_store_are_kept_as_the_traffic_left_them(report: DemoReport, kept: Path) -> None:
    assert report.kept == Kept(old=str(kept / "v1"), new=str(kept / "v2"), store=str(kept / "store"))
    assert not BlockFiles(kept / "store").is_empty()
    assert report.faults == ()
