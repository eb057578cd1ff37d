"""What earlier runs computed, and which hits that explains; which events there were."""

from __future__ import annotations

import datetime

import pytest
from msgspec.structs import replace

from kvrelease.artifacts import Verdict
from kvrelease.ledger.records import CacheOrigin, Event
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.builders import CREATED, NEW_KV, REPLICA

ORIGIN = CacheOrigin(replica=REPLICA, process="pid 7", key_space=None, namespace="new-e0")
PREFIXES = frozenset({b"a" * 16, b"b" * 16})


def event(**changes: object) -> Event:
    return replace(
        Event(at=CREATED, command="prewarm", release_name="v1.3", kv_name=NEW_KV, replica=REPLICA), **changes
    )


def test_a_run_explains_the_hits_of_the_next() -> None:
    with Ledger(IN_MEMORY) as ledger:
        ledger.add_computed_prefixes(ORIGIN, PREFIXES)
        ledger.add_computed_prefixes(ORIGIN, PREFIXES)
        assert ledger.computed_prefixes(ORIGIN) == PREFIXES


@pytest.mark.parametrize(
    "other",
    [
        replace(ORIGIN, replica="http://other:8001"),
        replace(ORIGIN, process="pid 8"),
        replace(ORIGIN, key_space="salted"),
        replace(ORIGIN, namespace="new-e1"),
    ],
    ids=["port", "process", "key space", "namespace"],
)
def test_it_explains_nothing_elsewhere(other: CacheOrigin) -> None:
    with Ledger(IN_MEMORY) as ledger:
        ledger.add_computed_prefixes(ORIGIN, PREFIXES)
        assert ledger.computed_prefixes(other) == frozenset()


ALIAS = "http://support.svc:8000"
STARTED = "started:1764500000.12"


def known_elsewhere(ledger: Ledger, *, process: str, replica: str = REPLICA) -> None:
    ledger.add_computed_prefixes(replace(ORIGIN, process=process, replica=replica), PREFIXES)
    ledger.write(event(process=process, replica=replica))


@pytest.mark.parametrize(
    ("process", "other", "is_same"),
    [
        (STARTED, "http://support.svc:8000", True),
        (STARTED, "http://127.0.0.1:18000", True),
        ("pid:7@100", "http://support.svc:8000", True),
        ("pid:7@100", "http://10.0.12.34:8001", False),  # a forwarder leads to another engine at each of its ports
    ],
)
def test_an_engine_is_known_under_another_url_by_its_process(process: str, other: str, *, is_same: bool) -> None:
    with Ledger(IN_MEMORY) as ledger:
        known_elsewhere(ledger, process=process)
        found = ledger.computed_prefixes(replace(ORIGIN, process=process, replica=other))
    assert found == (PREFIXES if is_same else frozenset())


def test_what_is_learnt_under_another_url_is_known_under_the_first_and_forgotten_with_it() -> None:
    first, alias = replace(ORIGIN, process=STARTED), replace(ORIGIN, process=STARTED, replica=ALIAS)
    more = frozenset({b"c" * 16})
    with Ledger(IN_MEMORY) as ledger:
        known_elsewhere(ledger, process=STARTED)
        ledger.add_sent_prefixes(alias, [b"d" * 16])
        ledger.add_computed_prefixes(alias, more)
        assert ledger.computed_prefixes(first) == ledger.computed_prefixes(alias) == PREFIXES | more
        ledger.forget(replica=ALIAS, process=STARTED)
        assert not ledger.computed_prefixes(first)
        assert not ledger.sent_prefixes(alias)


def test_another_release_under_another_url_of_the_same_process_voids_both() -> None:
    with Ledger(IN_MEMORY) as ledger:
        known_elsewhere(ledger, process=STARTED)
        ledger.add_computed_prefixes(replace(ORIGIN, process=STARTED, replica=ALIAS, namespace="old-e0"), [b"c" * 16])
        assert ledger.computed_prefixes(replace(ORIGIN, process=STARTED)) == frozenset()


def test_of_two_engines_that_started_in_one_moment_a_third_url_is_neither() -> None:
    with Ledger(IN_MEMORY) as ledger:
        for replica in (REPLICA, "http://10.0.12.35:8000"):
            ledger.add_computed_prefixes(replace(ORIGIN, process=STARTED, replica=replica), PREFIXES)
        for replica in (REPLICA, "http://10.0.12.35:8000"):
            ledger.write(event(process=STARTED, replica=replica))
        assert ledger.computed_prefixes(replace(ORIGIN, process=STARTED, replica=ALIAS)) == frozenset()


def test_another_release_in_the_same_process_and_key_space_voids_both() -> None:
    with Ledger(IN_MEMORY) as ledger:
        ledger.add_computed_prefixes(ORIGIN, PREFIXES)
        other = replace(ORIGIN, namespace="old-e0")
        ledger.add_computed_prefixes(other, [b"c" * 16])
        assert ledger.computed_prefixes(ORIGIN) == frozenset()
        assert ledger.computed_prefixes(other) == frozenset()


def test_another_release_in_another_key_space_voids_nothing() -> None:
    with Ledger(IN_MEMORY) as ledger:
        ledger.add_computed_prefixes(ORIGIN, PREFIXES)
        ledger.add_computed_prefixes(replace(ORIGIN, namespace="old-e0", key_space="salted"), [b"c" * 16])
        assert ledger.computed_prefixes(ORIGIN) == PREFIXES


def test_nothing_computed_voids_nothing() -> None:
    with Ledger(IN_MEMORY) as ledger:
        ledger.add_computed_prefixes(ORIGIN, PREFIXES)
        ledger.add_computed_prefixes(replace(ORIGIN, namespace="old-e0"), [])
        assert ledger.computed_prefixes(ORIGIN) == PREFIXES


def test_an_emptied_process_is_forgotten_in_every_key_space_and_others_are_not() -> None:
    salted, elsewhere = replace(ORIGIN, key_space="salted"), replace(ORIGIN, process="pid 8")
    with Ledger(IN_MEMORY) as ledger:
        for origin in (ORIGIN, salted, elsewhere):
            ledger.add_computed_prefixes(origin, PREFIXES)
        ledger.forget(replica=REPLICA, process="pid 7")
        assert [bool(ledger.computed_prefixes(origin)) for origin in (ORIGIN, salted, elsewhere)] == [
            False,
            False,
            True,
        ]


def test_an_event_reads_back_whole() -> None:
    whole = event(
        version="1.3.0",
        namespace="new-e0",
        key_space="salted",
        process="pid 7",
        verdict=Verdict.INCONCLUSIVE,
        reason="[b] ; DROP TABLE events; --",
    )
    bare = Event(at=CREATED, command="namespace", release_name="v1.3")
    with Ledger(IN_MEMORY) as ledger:
        ledger.write(whole)
        ledger.write(bare)
        assert ledger.events() == (bare, whole)


def test_the_last_written_event_comes_first_whatever_its_clock_says() -> None:
    earlier = CREATED - datetime.timedelta(days=1)
    with Ledger(IN_MEMORY) as ledger:
        for reason, at in (("1", CREATED), ("2", earlier), ("3", CREATED)):
            ledger.write(event(reason=reason, at=at))
        assert [one.reason for one in ledger.events()] == ["3", "2", "1"]
        assert [one.reason for one in ledger.events(limit=1)] == ["3"]


def test_other_namespaces_are_those_that_requests_carried_here_latest_first() -> None:
    with Ledger(IN_MEMORY) as ledger:
        names = [
            ledger.namespace(kv_name=NEW_KV, runtime="undeclared", made_by="test", is_new_epoch=True)[0].namespace
            for _ in range(4)
        ]
        for key_space in (names[0], names[1], None, "a salt of somebody", names[0], names[3]):
            ledger.write(event(key_space=key_space))
        ledger.write(event(key_space=names[2], replica="http://other:8000"))
        found = ledger.other_namespaces_served(replica=REPLICA, namespace=names[3], limit=5)
        assert found == (names[0], names[1])
        assert ledger.other_namespaces_served(replica=REPLICA, namespace=names[3], limit=1) == (names[0],)
