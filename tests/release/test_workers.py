"""Threads whose work is of no use any more end, or are left behind: nobody waits for them."""

from __future__ import annotations

import threading
import time

import pytest

from kvrelease.release.hub_client import HubClient
from kvrelease.release.workers import Stopped, pause, require_wanted, run_workers
from tests.release.hub_server import Hub


def test_all_threads_work_and_are_waited_for() -> None:
    lock, numbers, done = threading.Lock(), list(range(100)), []

    def work() -> None:
        while True:
            with lock:
                if not numbers:
                    return
                done.append(numbers.pop())
            require_wanted()

    run_workers(work, count=4)
    assert sorted(done) == list(range(100))
    run_workers(work, count=0)


def test_the_first_error_wakes_the_threads_that_pause() -> None:
    pausing, ends = threading.Semaphore(0), []
    lock = threading.Lock()
    first = [True]

    def work() -> None:
        with lock:
            fails, first[0] = first[0], False
        if fails:
            assert pausing.acquire(timeout=10)
            raise ValueError("mine")
        pausing.release()
        try:
            pause(600.0)
        except Stopped:
            ends.append(True)
            raise

    with pytest.raises(ValueError, match="mine"):
        run_workers(work, count=2)
    assert ends == [True]


def test_a_thread_that_cannot_be_woken_is_left_behind() -> None:
    """As one that waits for a store's answer; it ends, unheard, with its next look."""
    never, waiting, ended = threading.Event(), threading.Event(), threading.Event()
    first = iter([True])

    def work() -> None:
        if next(first, False):
            assert waiting.wait(10)
            raise KeyboardInterrupt
        waiting.set()
        never.wait()
        try:
            require_wanted()
        finally:
            ended.set()

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_workers(work, count=2)
    assert time.monotonic() - started < 10
    (left,) = [thread for thread in threading.enumerate() if thread.name == "kvrelease-worker"]
    assert left.daemon
    never.set()
    assert ended.wait(10)
    left.join()


def test_a_store_is_not_asked_again_for_what_is_of_no_use(hub: Hub) -> None:
    """Between two attempts a worker waits seconds; and nobody outside is there to sleep for."""
    hub.refused = (503, None)
    client = HubClient(endpoint=hub.endpoint, model="acme/support", first_wait_s=600.0)
    asked = threading.Event()

    def work() -> None:
        if asked.is_set():
            while not hub.requests:
                require_wanted()
            raise ValueError("enough")
        asked.set()
        client.commit_of("main")

    with pytest.raises(ValueError, match="enough"):
        run_workers(work, count=2)
    assert len(hub.requests) == 1


def test_outside_of_workers_work_is_always_wanted() -> None:
    require_wanted()
    pause(0.0)
