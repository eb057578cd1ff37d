"""Work that several threads share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvrelease.errors import DamagedFile
from kvrelease.progress import ProgressEvent, silent
from kvrelease.release.parallel import Advance, run_in_threads


def doubled(advance: Advance) -> Callable[[int], int]:
    def do(task: int) -> int:
        advance(task)
        return task * 2

    return do


@pytest.mark.parametrize("jobs", [1, 3, 20])
def test_results_come_in_the_order_of_the_tasks_and_progress_adds_up(jobs: int) -> None:
    tasks = [3, 1, 4, 1, 5, 9]
    events: list[ProgressEvent] = []
    found = run_in_threads(
        tasks, doubled, size_of=abs, jobs=jobs, stage="doubling", total_bytes=sum(tasks), progress=events.append
    )
    assert found == [6, 2, 8, 2, 10, 18]
    assert [event.done for event in events] == sorted(event.done for event in events)
    assert (events[-1].done, events[-1].total, events[-1].stage) == (23, 23, "doubling")


def test_no_tasks_are_no_work() -> None:
    assert run_in_threads([], doubled, size_of=abs, jobs=4, stage="s", total_bytes=0, progress=silent) == []


def test_the_largest_task_is_begun_first() -> None:
    begun: list[int] = []

    def worker(_advance: Advance) -> Callable[[int], None]:
        return begun.append

    run_in_threads([1, 3, 2], worker, size_of=abs, jobs=1, stage="s", total_bytes=0, progress=silent)
    assert begun == [3, 2, 1]


def test_the_first_error_ends_it() -> None:
    done: list[int] = []

    def worker(advance: Advance) -> Callable[[int], None]:
        def do(task: int) -> None:
            if task == 1000:
                raise DamagedFile("the first")
            advance(1)
            done.append(task)

        return do

    with pytest.raises(DamagedFile, match="the first"):
        run_in_threads(list(range(1001)), worker, size_of=abs, jobs=1, stage="s", total_bytes=1001, progress=silent)
    assert done == []
