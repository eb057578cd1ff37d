"""Threads that read and hash, and that nobody waits for once their work is of no use any more.

A thread that waits for the answer of a store cannot be woken, and the interpreter does not end before each thread of a
pool has. So these are daemons: told to stop, given a moment, and left behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

# A read of a local disk ends within milliseconds; what takes longer may take as long as a store's time-out.
GRACE_S = 0.5


class Stopped(Exception):
    """The work of this thread is of no use any more: another failed, or the user interrupted."""


class _Worker(threading.Thread):
    """A thread that knows whether it has been told to stop."""

    def __init__(self, work: Callable[[], None], *, stop: threading.Event, ended: SimpleQueue[BaseException | None]):
        super().__init__(daemon=True, name="kvrelease-worker")
        self._work = work
        self._ended = ended
        self.stop = stop

    def run(self) -> None:
        error: BaseException | None = None
        try:
            self._work()
        except BaseException as raised:  # noqa: BLE001 - raised again where the others are stopped
            error = raised
        self._ended.put(error)


def run_workers(work: Callable[[], None], *, count: int) -> None:
    """Runs `work` in so many threads until all have ended.

    The first error, and an interrupt of the caller, stop the others, which show that at their next `require_wanted` or
    `pause`; whichever does not within `GRACE_S` goes on alone, and its result is lost.

    Args:
        work: the same for each; they share it out among themselves.
        count: threads, >= 0.

    Raises:
        Exception: whatever `work` raised first.
    """
    stop, ended = threading.Event(), SimpleQueue[BaseException | None]()
    threads = [_Worker(work, stop=stop, ended=ended) for _ in range(count)]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        for _ in threads:
            _raise_if_any(ended.get())
    except BaseException:
        stop.set()
        deadline = time.monotonic() + GRACE_S
        for thread in started:
            thread.join(max(0.0, deadline - time.monotonic()))
        raise


def _raise_if_any(error: BaseException | None) -> None:
    if error is not None:
        raise error


def require_wanted() -> None:
    """Looks whether the work of this thread is still of use.

    Raises:
        Stopped: it is not.
    """
    thread = threading.current_thread()
    if isinstance(thread, _Worker) and thread.stop.is_set():
        raise Stopped


def pause(seconds: float) -> None:
    """Waits, in a worker no longer than its work is of use.

    Raises:
        Stopped: it is not any more.
    """
    thread = threading.current_thread()
    if not isinstance(thread, _Worker):
        time.sleep(seconds)
    elif thread.stop.wait(seconds):
        raise Stopped
