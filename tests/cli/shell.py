"""The program as a user has it: its result, its inputs, and a real process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.engines.scripted import Break, ScriptedEngine

RULES = "Every rule of this shop is written down here and holds for every customer. " * 8


def prompts_file(count: int) -> str:
    """Questions to one desk, as a prompt set in YAML."""
    questions = (f"  - {{id: q{number}, system: desk, user: 'May I return item {number}?'}}" for number in range(count))
    return "\n".join(["systems:", f'  desk: "You answer for a shop. {RULES}"', "prompts:", *questions, ""])


PROMPTS = prompts_file(12)


@dataclasses.dataclass(frozen=True)
class Result:
    """One invocation."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines that begin with `error:`."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@dataclasses.dataclass(frozen=True)
class Releases:
    """Two tiny releases."""

    root: Path

    @property
    def old(self) -> Path:
        return self.root / "old.json"

    @property
    def new(self) -> Path:
        return self.root / "new.json"

    @property
    def directory(self) -> Path:
        """The new one's weights."""
        return self.root / "new"


COMMAND = [sys.executable, "-m", "kvrelease"]


@contextlib.contextmanager
def ctrl_c_is_heard() -> Iterator[None]:
    """What is started meanwhile hears Ctrl-C: a child inherits that it is ignored, as in a shell's background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(*argv: object, **options: object) -> subprocess.Popen[str]:
    """The program as a process of its own, which hears Ctrl-C."""
    with ctrl_c_is_heard():
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            [*COMMAND, *map(str, argv)],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": {**os.environ}, **options},
        )


def finish(*argv: object, **options: object) -> Result:
    """The result of a process of its own."""
    process = start(*argv, **options)
    out, err = process.communicate(timeout=60)
    return Result(code=process.returncode, out=out or "", err=err or "")


def after(server: ScriptedEngine, *, answers: int, then: Callable[[], Break | None]) -> None:
    """Lets the server answer so many generations, and do something else with the others."""
    original, seen = server.take_breakage, 0

    def take(path: str) -> Break | None:
        nonlocal seen
        seen += path.startswith("/v1/c")
        return then() if seen > answers and path.startswith("/v1/c") else original(path)

    server.take_breakage = take  # type: ignore[method-assign]
