"""Progress lines of a long install: one per stage, with the seconds since the start, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

HEARTBEAT_S = 10.0  # a silent terminal longer than about 15 s reads as a hang


def write_line(line: str) -> None:
    """Write one line to stderr at once."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Progress:
    """Says what happens, with elapsed seconds.

    Attributes:
        say: receives each finished line.
        clock: seconds, monotonic.
        heartbeat_s: seconds between two signs of life of a running step.
    """

    say: Callable[[str], None] = write_line
    clock: Callable[[], float] = time.monotonic
    heartbeat_s: float = HEARTBEAT_S
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return self.clock() - self.started_s

    def stage(self, label: str) -> None:
        """Announce that a stage begins, or what it found."""
        self.say(f"[{self.elapsed_s():7.1f} s] {label}")

    def heartbeat(self, label: str, last_line: str) -> None:
        """Show that `label` still runs, with the last line it printed."""
        self.say(f"[{self.elapsed_s():7.1f} s] {label} … {last_line[:100]}")
