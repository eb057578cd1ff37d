"""Watching a canary: when runs follow each other, what ends them, and what is left behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.cli.watch import LOST_RUNS, Lap, Watched, watch
from kvrelease.errors import ExitCode
from kvrelease.verify.evidence import Evidence
from kvrelease.verify.judge import VerifyReport
from tests import builders
from tests.cli.conftest import Kv
from tests.cli.shell import Releases, after, start
from tests.engines.scripted import Break, ScriptedEngine

FIRST, SECOND = builders.verify(reason="first"), builders.verify(reason="second")


class Time:
    """A clock that only moves when somebody waits, or when a run takes time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def watched(
    laps: Sequence[Lap], *, every_s: float = 60.0, for_s: float | None = None, took_s: float = 10.0
) -> tuple[Watched, Time, int]:
    """How a watch over these runs ends, and how many of them there were."""
    moment, runs = Time(), 0

    def lap(number: int) -> Lap:
        nonlocal runs
        runs += 1
        moment.now += took_s
        return laps[number]

    ended = watch(
        lap, after=lambda found, _: found, every_s=every_s, for_s=for_s, wait=moment.wait, clock=lambda: moment.now
    )
    return ended, moment, runs


PASS = Lap(code=ExitCode.OK, report=FIRST)
UNSURE = Lap(code=ExitCode.INCONCLUSIVE, report=SECOND)
FAIL = Lap(code=ExitCode.FAILED, report=SECOND)
LOST = Lap(code=ExitCode.SERVICE)


def test_a_fail_ends_it_at_once() -> None:
    ended, moment, runs = watched([PASS, FAIL, PASS])
    assert (ended, runs) == (Watched(code=ExitCode.FAILED, report=SECOND), 2)
    assert moment.waits == [50.0]


def test_its_time_ends_it_with_the_last_runs_code() -> None:
    ended, _, runs = watched([PASS, UNSURE, PASS, UNSURE, PASS], for_s=150.0)
    assert (ended.code, runs) == (ExitCode.OK, 3)
    ended, _, runs = watched([PASS, UNSURE, PASS, UNSURE, PASS], for_s=200.0)
    assert (ended.code, runs) == (ExitCode.INCONCLUSIVE, 4)
    assert watched([PASS], for_s=0.0)[2] == 1


def test_a_lost_run_is_a_failed_run_and_not_the_end() -> None:
    ended, _, runs = watched([PASS, LOST, LOST, UNSURE, LOST, PASS], for_s=330.0)
    assert (ended, runs) == (Watched(code=ExitCode.OK, report=FIRST), 6)
    ended, _, _ = watched([PASS, LOST], for_s=100.0)
    assert ended == Watched(code=ExitCode.SERVICE, report=FIRST)


def test_a_run_that_broke_off_with_a_report_is_lost_as_well() -> None:
    broken = Lap(code=ExitCode.SERVICE, report=SECOND)
    ended, _, runs = watched([PASS, broken, LOST, broken])
    assert (ended, runs) == (Watched(code=ExitCode.SERVICE, report=SECOND), 4)


def test_lost_runs_in_a_row_end_it() -> None:
    ended, _, runs = watched([PASS, *[LOST] * LOST_RUNS, PASS])
    assert (ended, runs) == (Watched(code=ExitCode.SERVICE, report=FIRST), 1 + LOST_RUNS)


def test_a_signal_in_a_run_keeps_the_last_whole_report() -> None:
    cut = Lap(code=ExitCode.INTERRUPTED, report=SECOND, was_interrupted=True)
    assert watched([PASS, cut])[0] == Watched(code=ExitCode.INTERRUPTED, report=FIRST)
    assert watched([cut])[0] == Watched(code=ExitCode.INTERRUPTED, report=SECOND, is_cut_short=True)


@pytest.mark.parametrize("when", ["telling", "waiting", "asking"])
def test_ctrl_c_between_runs_or_before_anything_was_measured_keeps_the_last_report(when: str) -> None:
    def lap(number: int) -> Lap:
        if number and when == "asking":
            raise KeyboardInterrupt
        return PASS

    def wait(_: float) -> None:
        if when == "waiting":
            raise KeyboardInterrupt

    def tell(found: Lap, _: int) -> Lap:
        if when == "telling":
            raise KeyboardInterrupt
        return found

    ended = watch(lap, after=tell, every_s=60.0, for_s=None, wait=wait)
    assert ended == Watched(code=ExitCode.INTERRUPTED, report=FIRST)


def test_runs_that_take_longer_than_the_pause_follow_each_other_and_are_warned_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, moment, runs = watched([PASS] * 9, every_s=5.0, for_s=40.0)
    assert (moment.waits, runs) == ([0.0] * 3, 4)
    assert capsys.readouterr().err.count("--watch 5: a run took 10.0 s") == 1


# --- the command -----------------------------------------------------------------------------------------------------

Argv = Callable[..., list[object]]


@pytest.fixture
def server() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(release="new") as engine:
        yield engine


@pytest.fixture
def argv(releases: Releases, server: ScriptedEngine) -> Argv:
    common = ["--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml"]
    return lambda *more: ["verify", *common, "--stale-below", "0.25", *more]


def test_a_watch_writes_history_metrics_numbered_observations_and_the_report(kv: Kv, argv: Argv, workdir: Path) -> None:
    result = kv(
        *argv("--watch", "60", "--watch-for", "0", "--metrics-file", "kv.prom", "--observations", "seen.json"),
        *("--format", "json"),
    )
    assert result.code == 0, result.err
    report = artifacts.from_json(result.out.encode(), VerifyReport, source="stdout")
    assert f"run 1, {report.created:%Y-%m-%d %H:%M:%S} UTC: PASS, 0 stale and 0 suspect of 11 probes" in result.err
    assert report.reason in result.err
    artifacts.read(workdir / "seen-0001.json", Evidence)
    assert "kvrelease_verify_verdict{" in (workdir / "kv.prom").read_text()
    assert sorted(path.name for path in workdir.iterdir()) == ["kv.prom", "prompts.yaml", "seen-0001.json"]


def test_a_dirty_canary_ends_the_watch_with_1_and_its_output_is_the_last_report(
    kv: Kv, argv: Argv, server: ScriptedEngine, workdir: Path, releases: Releases
) -> None:
    server.release = "old"
    kv("record", "--release", releases.old, "--engine-url", server.url, "--prompts", "prompts.yaml", "-o", "old.json")
    server.reload("new")
    result = kv(*argv("--probes", "2", "--watch", "3600", "-o", "r.json", "--metrics-file", "kv.prom"))
    assert (result.code, result.out) == (1, "")
    assert artifacts.read(workdir / "r.json", VerifyReport).verdict == "fail"
    assert "exit_code" in (workdir / "kv.prom").read_text()


def test_metrics_of_a_single_run_that_nobody_answered_say_so(
    kv: Kv, argv: Argv, server: ScriptedEngine, workdir: Path
) -> None:
    server.break_with(Break.UNAUTHORIZED, path="/")
    result = kv(*argv("--metrics-file", "kv.prom"))
    assert (result.code, len(result.errors)) == (5, 1)
    lines = (workdir / "kv.prom").read_text().splitlines()
    (code,) = (line for line in lines if line.startswith("kvrelease_verify_exit_code{"))
    assert code.endswith(" 5.0")
    assert [line for line in lines if line.startswith("kvrelease_verify_verdict{") and line.endswith(" 1.0")] == []


def test_an_engine_that_stays_away_ends_the_watch_with_5(
    kv: Kv, argv: Argv, server: ScriptedEngine, workdir: Path
) -> None:
    server.break_with(Break.UNAUTHORIZED, path="/")
    result = kv(*argv("--watch", "0.001", "--metrics-file", "kv.prom"))
    assert (result.code, result.out) == (5, "")
    assert [line for line in result.err.splitlines() if line.startswith("run ")] == [
        f"run {number}: no engine could be asked (exit code 5)" for number in (1, 2, 3)
    ]
    assert "kvrelease_verify_runs{" in (workdir / "kv.prom").read_text()


def test_each_run_draws_other_probes(kv: Kv, argv: Argv, server: ScriptedEngine, workdir: Path) -> None:
    """The second run breaks off after two probes, and so do the next ones: which ends the watch."""
    with ScriptedEngine(release="new") as other:
        alone = [other.url if part == server.url else part for part in argv("--probes", "3")]
        assert kv(*alone).code == 3
        after(server, answers=len(other.generations()) + 2, then=lambda: Break.UNAUTHORIZED)
    result = kv(*argv("--probes", "3", "--watch", "0.001", "--observations", "seen.json"))
    assert result.code == 5
    runs = [artifacts.read(workdir / f"seen-000{number}.json", Evidence) for number in (1, 2)]
    first, second = ([probe.id for probe in run.replicas[0].probes] for run in runs)
    assert (len(first), len(second)) == (3, 2)
    assert first[:2] != second


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--watch-for", "60"], "--watch-for says how long to watch"),
        (["--watch", "60", "--expect-cold"], "--watch and --expect-cold exclude each other"),
        (["--metrics-file", "kv.txt"], "the textfile collector reads files that end in .prom"),
        (["--metrics-file", "nowhere/kv.prom"], "no such directory"),
        (["--watch", "0"], "--watch"),
        (["--watch", "nan"], "not a finite number"),
    ],
)
def test_options_that_contradict_each_other_are_told_before_work_starts(
    kv: Kv, argv: Argv, server: ScriptedEngine, options: list[str], words: str
) -> None:
    result = kv(*argv(*options))
    assert result.code == 2
    assert words in result.err
    assert server.requests == []


def test_sigterm_while_waiting_ends_130_with_the_last_report(argv: Argv) -> None:
    process = start(*argv("--probes", "1", "--watch", "3600", "--format", "json"))
    assert process.stderr is not None
    line = next(line for line in process.stderr if line.startswith("run 1, "))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False), err
    assert json.loads(out)["reason"] in line
