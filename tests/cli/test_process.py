"""The program as a process: signals, streams whose reader is gone, and what a shell sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvrelease import __version__, artifacts
from kvrelease.artifacts import Verdict
from kvrelease.prewarm.result import PrewarmReport
from kvrelease.verify.judge import VerifyReport
from kvrelease.verify.record import Record
from tests.cli.conftest import Kv
from tests.cli.shell import COMMAND, Releases, after, finish, start
from tests.engines.scripted import Break, ScriptedEngine
from tests.release.builders import write_release
from tests.release.hub_server import serve_hub

DEADLINE_S = 30.0


def wait_for_generations(server: ScriptedEngine, *, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(server.generations()) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)  # another process: nothing to wait on


def start_command(name: str, server: ScriptedEngine, releases: Releases, **options: object) -> subprocess.Popen[str]:
    engine = ("--release", releases.new, "--engine-url", server.url, "--prompts", "prompts.yaml")
    return start(name, *engine, "-o", "r.json", **options)


@pytest.fixture
def in_the_background() -> Iterator[None]:
    """As after `pytest &` in a script, and under some CI runners: whoever is started ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_cancelled_prewarm_writes_what_it_has_and_ends_130(
    releases: Releases, workdir: Path, number: signal.Signals
) -> None:
    with ScriptedEngine(release="new") as server:
        after(server, answers=3, then=lambda: time.sleep(0.3))  # a slow engine
        process = start_command("prewarm", server, releases)
        wait_for_generations(server, count=4, process=process)
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert (out, "Traceback" in err) == ("", False)
    report = artifacts.read(workdir / "r.json", PrewarmReport)
    assert (report.interrupted, report.verdict) == (True, Verdict.INCONCLUSIVE)
    assert 1 <= report.replicas[0].sent < 12


def test_a_cancelled_record_keeps_its_observations_though_told_twice(releases: Releases, workdir: Path) -> None:
    """CI runners send SIGINT, then SIGTERM."""
    with ScriptedEngine(release="new") as server:
        after(server, answers=2, then=lambda: Break.HANG)
        process = start_command("record", server, releases)
        wait_for_generations(server, count=3, process=process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert len(artifacts.read(workdir / "r.json", Record).observations) == 2


@pytest.mark.usefixtures("in_the_background")
def test_a_cancelled_verify_is_no_pass(releases: Releases, workdir: Path) -> None:
    with ScriptedEngine(release="new") as server:
        after(server, answers=5, then=lambda: Break.HANG)
        process = start_command("verify", server, releases)
        wait_for_generations(server, count=6, process=process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    report = artifacts.read(workdir / "r.json", VerifyReport)
    assert (report.verdict, len(report.probes)) == (Verdict.INCONCLUSIVE, 5)


def test_sigterm_stops_a_background_job_whose_shell_ignores_ctrl_c(releases: Releases, workdir: Path) -> None:
    with ScriptedEngine(release="new") as server:
        server.break_with(Break.HANG)
        ignores = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        process = start_command("record", server, releases, **ignores)
        wait_for_generations(server, count=1, process=process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert artifacts.read(workdir / "r.json", Record).interrupted


def test_a_store_that_hangs_keeps_nobody_waiting(workdir: Path) -> None:
    """Threads wait for a server that never answers; neither Ctrl-C nor SIGTERM waits for them."""
    weights = {f"model.layers.0.{name}.weight": np.ones((512, 512), np.float32) for name in "abcdef"}
    environment = {**os.environ, "HF_HUB_CACHE": str(workdir / "hub"), "NO_PROXY": "127.0.0.1"}
    with serve_hub() as hub:
        hub.push("acme/support", write_release(workdir / "m", weights))
        hub.stalls = True
        environment["HF_ENDPOINT"] = hub.endpoint
        processes = [start("fingerprint", "hf:acme/support", "--jobs", "3", env=environment) for _ in range(2)]
        try:
            for _ in range(2 * 3):
                assert hub.stalled.acquire(timeout=DEADLINE_S), [process.poll() for process in processes]
            told = time.monotonic()
            for process, number in zip(processes, (signal.SIGINT, signal.SIGTERM), strict=True):
                process.send_signal(number)
            results = [process.communicate(timeout=DEADLINE_S) for process in processes]
            assert time.monotonic() - told < 5.0  # half a second, on a machine that does nothing else
        finally:
            for process in processes:
                process.kill()
    assert [process.returncode for process in processes] == [130, 130], results
    assert [(out, err.splitlines()[-1], "Traceback" in err) for out, err in results] == [("", "interrupted", False)] * 2


@pytest.mark.usefixtures("in_the_background")
def test_a_second_signal_ends_the_program_at_once_whatever_it_is_doing() -> None:
    code = (
        "import os, signal, threading\n"
        "from kvrelease.cli.interrupt import treat_termination_as_interrupt\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "treat_termination_as_interrupt()\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    print('first', flush=True)\n"
        "try:\n    signal.raise_signal(signal.SIGTERM)\n"
        "finally:\n    print('never')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "first\n", "")


@pytest.mark.parametrize("module", ["typer", "kvrelease.cli.console", "yaml"])
def test_a_signal_while_modules_are_being_read_ends_130_without_a_traceback(workdir: Path, module: str) -> None:
    """A pod is stopped in its first half second."""
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == sys.argv[-1]:\n"
        "            sys.argv.pop()\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from kvrelease.cli.app import main\n"
        "main()\n"
    )
    (workdir / "kvrelease.yaml").write_text("{}")
    argv = [sys.executable, "-c", code, "fingerprint", "nothing", module]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_reader_that_went_away_changes_no_verdict(releases: Releases) -> None:
    """`kvrelease diff … --fail-on kv | head -0`: 1, as without the pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    result = finish("diff", releases.old, releases.new, "--fail-on", "kv", stdout=writer)
    os.close(writer)
    assert (result.code, result.err) == (1, "")


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["verify", "--help"]])
def test_help_into_a_closed_pipe_is_quiet(argv: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = finish(*argv, stdout=writer)
    os.close(writer)
    assert (result.code, result.err) == (0, "")


def test_nobody_reads_stderr(releases: Releases) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = finish("namespace", releases.new, "--engine", "vllm", "--no-ledger", stderr=writer)
    os.close(writer)
    assert result.code == 0
    assert "cache_salt" in result.out


def test_a_full_disk_behind_stdout_is_an_input_error(releases: Releases) -> None:
    with Path("/dev/full").open("w") as full:
        result = finish("fingerprint", releases.new, stdout=full)
    assert result.code == 4
    assert "No space left on device" in result.err
    assert "Traceback" not in result.err


def test_a_full_disk_behind_stdout_does_not_hide_a_failed_gate(releases: Releases) -> None:
    with Path("/dev/full").open("w") as full:
        result = finish("diff", releases.old, releases.new, "--fail-on", "kv", stdout=full)
    assert result.code == 1


@pytest.mark.parametrize(("closed", "code"), [("1>&-", 4), ("2>&-", 0)])
def test_a_closed_stream_is_no_crash(releases: Releases, closed: str, code: int) -> None:
    words = " ".join([*COMMAND, "fingerprint", str(releases.new)])
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_an_output_that_is_a_device_is_not_replaced(kv: Kv, releases: Releases) -> None:
    assert kv("fingerprint", releases.new, "-o", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()
    to_stdout = finish("fingerprint", releases.new, "-o", "/dev/stdout", "--format", "json")
    assert '"kind": "kvrelease/fingerprint"' in to_stdout.out


def test_json_is_utf8_whatever_the_locale(releases: Releases, workdir: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    argv = ("diff", releases.old, releases.new)
    assert finish(*argv, "--format", "json", env=environment).code == 0
    text = finish(*argv, env=environment, encoding="utf-8")
    assert "→" in text.out


def test_a_directory_whose_name_is_not_utf8(releases: Releases, workdir: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(workdir) + b"/m\xff"))
    directory.symlink_to(releases.directory)
    text = finish("fingerprint", directory)
    assert text.code == 0
    assert "m\\udcff" in text.out
    as_json = finish("fingerprint", directory, "--format", "json")
    assert as_json.code == 4
    assert "not valid UTF-8" in as_json.err


def test_the_version(releases: Releases) -> None:
    assert finish("--version").out == f"kvrelease {__version__}\n"
    command = Path(sys.executable).parent / "kvrelease"
    if command.exists():
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"kvrelease {__version__}\n"
