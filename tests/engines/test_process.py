from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from kvrelease.engines.address import parse_address
from kvrelease.engines.process import is_another_process, listening_process, process_behind


def test_the_process_that_listens_is_named_by_pid_and_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = listening_process(server.getsockname()[1])
    assert found is not None
    assert found.startswith(f"pid:{os.getpid()}@")


def test_a_port_without_a_listener_has_no_process() -> None:
    with socket.socket() as bound:  # bound, so that nobody else takes the port, and not listening
        bound.bind(("127.0.0.1", 0))
        assert listening_process(bound.getsockname()[1]) is None


def test_another_machine_has_no_process_that_we_can_see() -> None:
    assert asyncio.run(process_behind(parse_address("http://192.0.2.1:8000"))) is None


def fake_process(proc: Path, pid: int, *, start: int) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "fd" / "3").symlink_to("socket:[77]")
    before = " ".join(["S", *["0"] * 18])
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {before} {start} 0\n")


def test_of_a_server_and_its_workers_the_oldest_counts(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1"
    (tmp_path / "net" / "tcp").write_text(f"header\n   {line}\n")
    fake_process(tmp_path, 30, start=500)
    fake_process(tmp_path, 20, start=900)
    assert listening_process(8000, proc=tmp_path) == "pid:30@500"
    assert listening_process(8001, proc=tmp_path) is None


def test_a_machine_without_procfs_tells_nothing(tmp_path: Path) -> None:
    assert listening_process(8000, proc=tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("first", "other", "is_another"),
    [
        ("pid:7@100", "pid:7@100", False),
        ("pid:7@100", "pid:8@200", True),
        ("started:1700000000.1", "started:1700000009.5", True),
        ("started:1700000000.1", "pid:7@100", False),
        (None, "pid:7@100", False),
        ("pid:7@100", None, False),
    ],
)
def test_two_witnesses_of_one_process_are_no_two_processes(
    first: str | None, other: str | None, is_another: bool
) -> None:
    assert is_another_process(first, other) is is_another
