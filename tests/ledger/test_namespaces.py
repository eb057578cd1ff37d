"""A namespace is made once, whoever needs it first; an epoch leaves a poisoned name for good."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from kvrelease.ledger.records import MAX_NAMESPACE_CHARS, namespace_text
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.builders import NEW_KV, OLD_KV

PROCESSES = 3


def make(ledger: Ledger, *, kv_name: str = NEW_KV, runtime: str = "undeclared", new_epoch: bool = False) -> str:
    record, _ = ledger.namespace(kv_name=kv_name, runtime=runtime, made_by="test", is_new_epoch=new_epoch)
    return record.namespace


def test_the_first_need_makes_it_and_the_second_finds_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'l.db'}"
    with Ledger(url) as ledger:
        made, is_new = ledger.namespace(kv_name=NEW_KV, runtime="undeclared", made_by="prewarm")
    with Ledger(url) as ledger:
        found, is_new_again = ledger.namespace(kv_name=NEW_KV, runtime="undeclared", made_by="verify")
    assert (is_new, is_new_again) == (True, False)
    assert found == made
    assert made.namespace == f"{NEW_KV}-undeclared-e0"


def test_another_release_or_runtime_has_another_name() -> None:
    with Ledger(IN_MEMORY) as ledger:
        names = {make(ledger), make(ledger, kv_name=OLD_KV), make(ledger, runtime="abcdefgh")}
    assert len(names) == 3


def test_an_epoch_is_left_for_good() -> None:
    with Ledger(IN_MEMORY) as ledger:
        first, second = make(ledger), make(ledger, new_epoch=True)
        assert (first[-3:], second[-3:]) == ("-e0", "-e1")
        assert make(ledger) == second


def test_a_new_epoch_of_what_never_was_is_the_first() -> None:
    with Ledger(IN_MEMORY) as ledger:
        assert make(ledger, new_epoch=True).endswith("-e0")


def test_a_name_fits_every_engine() -> None:
    text = namespace_text(NEW_KV, runtime="undeclared", epoch=99_999)
    assert len(text) <= MAX_NAMESPACE_CHARS == 64
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def _race(url: str, barrier: Barrier, results: multiprocessing.Queue[list[tuple[str, bool]] | str]) -> None:
    found = []
    try:
        for kv_name in (NEW_KV, OLD_KV):  # over a file that nobody has opened, then over one that is there
            barrier.wait()
            with Ledger(url) as ledger:
                record, is_new = ledger.namespace(kv_name=kv_name, runtime="undeclared", made_by="test")
            found.append((record.namespace, is_new))
    except Exception as error:  # noqa: BLE001 - told to the parent
        results.put(f"{type(error).__name__}: {error}")
    else:
        results.put(found)


def test_processes_at_once_make_one_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    url = f"sqlite:///{tmp_path / 'l.db'}"
    children = [context.Process(target=_race, args=(url, barrier, results)) for _ in range(PROCESSES)]
    for child in children:
        child.start()
    got = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert all(isinstance(one, list) for one in got), got
    for turn, kv_name in enumerate((NEW_KV, OLD_KV)):
        name = f"{kv_name}-undeclared-e0"
        assert sorted(one[turn] for one in got) == [(name, False)] * (PROCESSES - 1) + [(name, True)]
