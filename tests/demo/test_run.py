"""The demo on the shipped pair: what its table promises, and that the commands it prints do what it says."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from kvrelease.artifacts import Verdict, from_json, to_json
from kvrelease.cli.app import run
from kvrelease.demo.figures import DemoReport, Strategy
from kvrelease.demo.pair import keep_pair, pair_in, shipped_pair
from kvrelease.demo.run import DEFAULT_REQUESTS, MIN_REQUESTS, demo
from kvrelease.engines.block_files import BlockFiles
from kvrelease.errors import InputError, UsageError
from kvrelease.release.diff import KvStatus
from kvrelease.report.demo import demo_document
from kvrelease.report.document import Commands


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "kept"


@pytest.fixture(scope="module")
def report(kept: Path) -> DemoReport:
    pair = shipped_pair(seen_from=Path("/nowhere"))
    return asyncio.run(demo(pair, requests=MIN_REQUESTS, keep=kept))


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


def test_the_figures_are_the_artifact(report: DemoReport) -> None:
    assert from_json(to_json(report).encode(), DemoReport, source="demo") == report
    assert 0 <= report.ttft_spread < 1
    assert 0 <= report.ttft_gap < 1
    assert report.moved == 4 + 20


def test_every_command_it_prints_does_what_the_page_says(
    report: DemoReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    commands = next(block for block in demo_document(report).blocks if isinstance(block, Commands))
    codes = [run(shlex.split(line)[1:]) for line in commands.lines]
    assert codes == [0, 0, 1, 0], capsys.readouterr()
    # Once more: what the run before left in the store is our own, and the ledger knows it.
    assert run(shlex.split(commands.lines[-1])[1:]) == 0, capsys.readouterr()


def test_the_store_is_kept_as_the_traffic_left_it(report: DemoReport, kept: Path) -> None:
    assert report.kept == str(kept / "store")
    assert not BlockFiles(kept / "store").is_empty()


def test_a_directory_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        keep_pair(shipped_pair(seen_from=tmp_path), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="keeping the demo in"):
        keep_pair(shipped_pair(seen_from=tmp_path), tmp_path / "file" / "below")


def test_a_damaged_installation_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        pair_in(tmp_path)
    assert str(raised.value.hint).startswith("install kvrelease again")


def test_paths_below_the_working_directory_are_short() -> None:
    package = Path(__file__).parents[2]
    assert shipped_pair(seen_from=package).old == Path("kvrelease/data/demo/v1")
    assert shipped_pair(seen_from=Path("/nowhere")).old.is_absolute()


def test_the_command_offers_what_the_demo_takes() -> None:
    from kvrelease.cli.commands import demo as command

    assert (command._REQUESTS, command._MIN_REQUESTS) == (DEFAULT_REQUESTS, MIN_REQUESTS)
