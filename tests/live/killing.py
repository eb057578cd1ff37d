"""A prewarm that is killed as soon as its journal shows so many answered prompts."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import msgspec

LIMIT_S = 120.0
POLL_S = 0.01


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """What a killed run had done.

    Attributes:
        done: ids of the prompts that were answered.
        in_flight: ids of those that were sent, and not answered.
    """

    done: frozenset[str]
    in_flight: frozenset[str]


def kill_after(process: subprocess.Popen[str], *, journal: Path, answered: int) -> Killed:
    """Sends SIGKILL once so many prompts are answered, and says what the journal holds then."""
    deadline_s = time.monotonic() + LIMIT_S
    while len(_read(journal).done) < answered:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s, "the journal shows too little"
        time.sleep(POLL_S)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
    return _read(journal)


def _read(journal: Path) -> Killed:
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    done = frozenset(str(entry["done"]) for entry in entries if entry.get("done"))
    begun = frozenset(str(entry["begun"]) for entry in entries if entry.get("begun"))
    return Killed(done=done, in_flight=begun - done)
