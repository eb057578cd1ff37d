"""Ctrl-C, and SIGTERM (a CI runner cancels a job, a pod is stopped): what was measured so far is still written."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from kvrelease.errors import ExitCode

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def treat_termination_as_interrupt() -> None:
    """Makes SIGTERM end the program as Ctrl-C does, and a second signal at once, where nobody decided otherwise."""
    handler = _Interrupt()
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is default:
            signal.signal(number, handler)


def ignore_termination() -> None:
    """Makes both signals change nothing any more: the outcome stands, and only the interpreter is left to end."""
    for number in _SIGNALS:
        if _interrupts(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)


class _Interrupt:
    """Interrupts the program, once; told again, ends it: what was interrupted may wait for a disk or a library."""

    def __init__(self) -> None:
        self._is_told = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_told:
            if sys.stderr is not None and sys.stderr.isatty():
                os.write(2, _SHOW_CURSOR)  # a progress bar hides it
            os._exit(ExitCode.INTERRUPTED)
        self._is_told = True
        raise KeyboardInterrupt


_SHOW_CURSOR = b"\x1b[?25h\n"


def run_async(main: Coroutine[object, object, T]) -> T:
    """The result of `main`. The first signal cancels it, once, so that it can hand over what it has.

    A second Ctrl-C stops at once. A second SIGTERM changes nothing: CI runners send SIGINT, then SIGTERM, then kill.

    Raises:
        KeyboardInterrupt: it had nothing to hand over, or was told twice.
    """
    import asyncio  # noqa: PLC0415 - late: --help needs no event loop

    stops = _Stops()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number, handler in handlers.items() if _interrupts(handler)]
    try:
        for number in handled:
            signal.signal(number, stops.handle)
        return asyncio.run(stops.guard(main))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in handled:
            is_over = stops.count > 0 and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if is_over else handlers[number])


def _interrupts(handler: object) -> bool:
    return handler is signal.default_int_handler or isinstance(handler, _Interrupt)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Stops:
    """Counts signals, and cancels one task at the first."""

    def __init__(self) -> None:
        self.count = 0
        self._task: asyncio.Task[object] | None = None

    async def guard(self, main: Coroutine[object, object, T]) -> T:
        import asyncio  # noqa: PLC0415 - as above

        self._task = asyncio.current_task()
        return await main

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1 and self._task is not None:
            self._task.cancel()
            # Wakes a loop that waits for the network.
            self._task.get_loop().call_soon_threadsafe(lambda: None)
        elif self.count == 1 or number == signal.SIGINT:
            raise KeyboardInterrupt
