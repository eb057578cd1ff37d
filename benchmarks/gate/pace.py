"""How far a recording is, and how long it will still take: told now and then, at the speed so far."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 20.0


class Pace:
    """The progress of one piece of work.

    Args:
        what: is done.
        total: how many steps it has.
        say: told how far it is, every `EVERY_S` seconds and at the end.
        unit: of a step, in the plural.
        clock: tells seconds.
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        say: Callable[[str], None],
        unit: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._say = say
        self._unit = unit
        self._clock = clock
        self._done = 0
        self._begun_s = self._told_s = clock()

    def step(self) -> None:
        """One step is done."""
        self._done += 1
        now_s = self._clock()
        if self._done < self._total and now_s - self._told_s < EVERY_S:
            return
        self._told_s = now_s
        left_s = (now_s - self._begun_s) / self._done * (self._total - self._done)
        rest = f", about {left_s / 60:.1f} min left" if self._done < self._total else ""
        self._say(f"{self._what}: {self._done} of {self._total} {self._unit}{rest}")
