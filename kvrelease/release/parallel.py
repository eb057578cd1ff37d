"""Tasks shared out among workers, with progress by bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kvrelease.progress import Progress, ProgressEvent
from kvrelease.release.workers import require_wanted, run_workers

Task = TypeVar("Task")
Result = TypeVar("Result")

# Told of the bytes that were read.
Advance = Callable[[int], None]


def share_out(
    tasks: Sequence[Task],
    worker: Callable[[], Callable[[Task], Result]],
    *,
    jobs: int,
    order: Iterable[int] | None = None,
) -> list[Result]:
    """What the work on each task gave, in the order of the tasks.

    Args:
        tasks: to be done.
        worker: called once in each thread, for what that thread does with a task.
        jobs: threads, >= 1.
        order: indices of the tasks as they are begun; None for their own order.

    Raises:
        KvreleaseError: whatever the work raises first.
    """
    left = deque(range(len(tasks)) if order is None else order)
    found: dict[int, Result] = {}

    def work() -> None:
        do = worker()
        while True:
            require_wanted()
            try:
                index = left.popleft()
            except IndexError:  # all are taken
                return
            found[index] = do(tasks[index])

    run_workers(work, count=min(jobs, len(tasks)))
    return [found[index] for index in range(len(tasks))]


def run_in_threads(
    tasks: Sequence[Task],
    worker: Callable[[Advance], Callable[[Task], Result]],
    *,
    size_of: Callable[[Task], int | tuple[int, ...]],
    jobs: int,
    stage: str,
    total_bytes: int,
    progress: Progress,
) -> list[Result]:
    """What the work on each task gave, in the order of the tasks.

    Args:
        tasks: to be done.
        worker: called once in each thread, for what that thread does with a task; it tells the bytes it has read.
        size_of: largest first, because a large one started last would leave the other threads idle at the end; equal
            ones in their order.
        jobs: threads, >= 1.
        stage: what is being done, for the progress.
        total_bytes: that will be read.
        progress: called from the threads, one at a time.

    Raises:
        KvreleaseError: whatever the work raises first.
    """
    done_bytes = 0
    lock = threading.Lock()

    def advance(count: int) -> None:
        nonlocal done_bytes
        require_wanted()
        with lock:
            done_bytes += count
            progress(ProgressEvent(stage=stage, done=done_bytes, total=total_bytes, unit="bytes"))

    order = sorted(range(len(tasks)), key=lambda index: size_of(tasks[index]), reverse=True)
    return share_out(tasks, lambda: worker(advance), jobs=jobs, order=order)
