"""One run after the other, for as long as a canary is watched: when the next begins, and when it is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from kvrelease.cli.console import say_warning
from kvrelease.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kvrelease.verify.judge import VerifyReport

# So many runs in a row that end 5, or in which nobody could be asked, end the watch: a canary that is restarted is
# back before, and one that is gone is not waited for.
LOST_RUNS = 3


class Lap(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a watch.

    Attributes:
        code: that the run alone would have ended with.
        report: None where no engine could be asked.
        was_interrupted: it was cut short by a signal.
    """

    code: ExitCode
    report: VerifyReport | None = None
    was_interrupted: bool = False


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """How a watch ended.

    Attributes:
        code: of the program.
        report: the last whole one, else that of a run which was cut short; None where there is none.
        is_cut_short: the report is of a run which was.
    """

    code: ExitCode
    report: VerifyReport | None
    is_cut_short: bool = False


def alone(lap: Lap) -> Watched:
    """A single run, as the end of a watch."""
    return Watched(code=lap.code, report=lap.report, is_cut_short=lap.was_interrupted)


def require_watch(*, every_s: float | None, for_s: float | None, expects_cold: bool, allows_flush: bool) -> None:
    """Checks the options of a watch.

    Raises:
        UsageError: they contradict each other.
    """
    if for_s is not None and every_s is None:
        raise UsageError("--watch-for says how long to watch, and nothing is watched", hint="add --watch SECONDS")
    if every_s is not None and expects_cold:
        raise UsageError(
            "--watch and --expect-cold exclude each other: from the second run on, the first one has been there",
            hint="verify once with --expect-cold, then watch without it",
        )
    if every_s is not None and allows_flush:
        raise UsageError(
            "--watch and --allow-flush exclude each other: a canary's cache would be emptied again and again",
            hint="verify once with --allow-flush, or watch with --reference URL",
        )


def watch(
    lap: Callable[[int], Lap],
    *,
    after: Callable[[Lap, int], Lap],
    every_s: float,
    for_s: float | None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Watched:
    """Repeats a run until one fails, the time is over, `LOST_RUNS` in a row got no answer, or a signal comes.

    Args:
        lap: one run; its argument counts them from 0.
        after: what follows a run, of the same number; a signal meanwhile costs its report no more.
        every_s: from one start to the next.
        for_s: no run begins later than that; None for no end.
        wait: until the next run begins.
        clock: seconds, of any start.
    """
    began = clock()
    report: VerifyReport | None = None
    lost = 0
    has_warned = False
    for number in itertools.count():
        started = clock()
        try:
            found = lap(number)
            if found.was_interrupted:
                return alone(found) if report is None else Watched(code=ExitCode.INTERRUPTED, report=report)
            report = found.report or report
            found = after(found, number)
            is_lost = found.report is None or found.code is ExitCode.SERVICE
            lost = lost + 1 if is_lost else 0
            took = clock() - started
            if took > every_s and not has_warned:
                has_warned = True
                say_warning(
                    f"--watch {every_s:g}: a run took {took:.1f} s, so the next ones follow without a pause, and the "
                    "engine is never left alone; watch less often, or use fewer --probes"
                )
            pause = max(0.0, every_s - took)
            is_over = for_s is not None and clock() + pause - began >= for_s
            if found.code is ExitCode.FAILED or lost == LOST_RUNS or is_over:
                return Watched(code=found.code, report=report)
            wait(pause)
        except KeyboardInterrupt:
            return Watched(code=ExitCode.INTERRUPTED, report=report)
    raise AssertionError("counting has no end")
