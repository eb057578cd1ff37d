from __future__ import annotations

import asyncio

import pytest

from kvrelease.engines.address import Address, parse_address
from kvrelease.errors import ExitCode, Unreachable
from kvrelease.fleet.names import Undone, addresses_of, changes_since, faults_of_changes
from tests.fleet.names import NAME, Resolver

UNDONE = Undone(what="not warmed", hint="run it again")
SERVICE = parse_address(f"http://{NAME}:8000/llm")


def looked_up() -> tuple[Address, ...]:
    return asyncio.run(addresses_of(SERVICE))


def test_every_address_of_a_name_is_a_url_that_keeps_port_and_path(resolver: Resolver) -> None:
    resolver.addresses[NAME] = ["10.0.0.4", "10.0.0.3", "fd00::1", "10.0.0.3", "fe80::1%eth0"]
    assert [one.url for one in looked_up()] == [
        "http://10.0.0.3:8000/llm",
        "http://10.0.0.4:8000/llm",
        "http://[fd00::1]:8000/llm",
    ]
    assert {one.name for one in looked_up()} == {NAME}
    assert {one.host_header for one in looked_up()} == {f"{NAME}:8000"}


def test_a_name_without_an_address_is_unreachable_and_named(resolver: Resolver) -> None:
    resolver.addresses[NAME] = []
    with pytest.raises(Unreachable, match=NAME):
        looked_up()


def test_an_address_that_came_was_not_asked_and_one_that_went_is_said(resolver: Resolver) -> None:
    resolver.addresses[NAME] = ["10.0.0.3", "10.0.0.4"]
    before = looked_up()
    resolver.addresses[NAME] = ["10.0.0.4", "10.0.0.5"]
    came, went = asyncio.run(changes_since({SERVICE: before}))
    assert [(one.address.host, one.appeared) for one in (came, went)] == [("10.0.0.5", True), ("10.0.0.3", False)]
    new, gone = asyncio.run(faults_of_changes(lambda: changes_since({SERVICE: before}), undone=UNDONE))
    assert [new.exit_code, gone.exit_code] == [ExitCode.INCONCLUSIVE, ExitCode.OK]
    assert new.where == f"http://10.0.0.5:8000/llm ({NAME})"
    assert (new.message.endswith("it was not asked, and not warmed"), new.hint) == (True, UNDONE.hint)


def test_a_name_that_cannot_be_looked_up_any_more_is_a_fault_and_no_error(resolver: Resolver) -> None:
    resolver.addresses[NAME] = ["10.0.0.3"]
    before = looked_up()
    resolver.addresses[NAME] = []
    (lost,) = asyncio.run(faults_of_changes(lambda: changes_since({SERVICE: before}), undone=UNDONE))
    assert (lost.exit_code, NAME in lost.message) == (ExitCode.SERVICE, True)
    assert asyncio.run(faults_of_changes(None, undone=UNDONE)) == ()


def test_a_name_whose_addresses_stay_has_no_changes(resolver: Resolver) -> None:
    resolver.addresses[NAME] = ["10.0.0.3"]
    assert asyncio.run(changes_since({SERVICE: looked_up()})) == ()
