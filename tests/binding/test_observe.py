"""Every hit has a witness or is not known, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest
from msgspec.structs import replace

from kvrelease.binding.observe import Leg, Observer, Witness, known_total, origin_space, total
from kvrelease.engines.base import Counters, EngineClient, EngineKind, Observation, Request
from kvrelease.engines.detect import open_engine
from kvrelease.ledger.records import CacheOrigin
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.engines.clients import chat
from tests.engines.scripted import Break, ScriptedEngine
from tests.ledger.opening import given_or_new

T = TypeVar("T")
NAMESPACE = "new-e0"


def with_observer(server: ScriptedEngine, do: Callable[[Observer], Awaitable[T]], *, ledger: Ledger | None = None) -> T:
    async def main() -> T:
        client = await open_engine(server.url, backoff_s=0.001, timeout_s=5.0)
        async with aclosing(client):
            with given_or_new(ledger) as memory:
                observer = Observer(client, identity=await client.identify(), namespace=NAMESPACE, memory=memory)
                found = await do(observer)
                observer.remember()
                return found

    return asyncio.run(main())


def legs(server: ScriptedEngine, *requests: Request, ledger: Ledger | None = None) -> list[Leg]:
    async def send(observer: Observer) -> list[Leg]:
        return [await observer.observe(request) for request in requests]

    return with_observer(server, send, ledger=ledger)


def told(found: list[Leg]) -> list[tuple[int | None, int | None, Witness]]:
    return [(leg.cached_tokens, leg.foreign_tokens, leg.witness) for leg in found]


def test_the_response_is_the_first_witness() -> None:
    with ScriptedEngine(release="new") as server:
        cold, warm = legs(server, chat(), chat())
    assert (cold.cached_tokens, cold.foreign_tokens, cold.witness) == (0, 0, Witness.USAGE)
    assert (warm.cached_tokens, warm.foreign_tokens) == (warm.cacheable_tokens, 0)
    assert (cold.hits_mostly, warm.hits_mostly) == (False, True)


def leg_of(*, cached: int | None, cacheable: int | None, prompt: int | None = 33) -> Leg:
    return Leg(
        key_space=None,
        observation=Observation(text="", total_s=1.0),
        prompt_tokens=prompt,
        cacheable_tokens=cacheable,
        cached_tokens=cached,
        foreign_tokens=None,
        witness=Witness.NOBODY if cached is None else Witness.USAGE,
    )


def test_a_hit_is_judged_by_what_can_hit_and_by_the_prompt_where_that_is_not_known() -> None:
    assert leg_of(cached=16, cacheable=16).hits_mostly
    assert leg_of(cached=16, cacheable=32).hits_mostly is False
    assert leg_of(cached=17, cacheable=None).hits_mostly
    assert leg_of(cached=16, cacheable=None).hits_mostly is False


def test_nothing_is_said_of_a_hit_that_nobody_told_or_that_cannot_be() -> None:
    assert leg_of(cached=None, cacheable=32).hits_mostly is None
    assert leg_of(cached=16, cacheable=None, prompt=None).hits_mostly is None
    assert leg_of(cached=0, cacheable=0).hits_mostly is None


def test_entries_that_were_there_before_are_foreign_again_and_again() -> None:
    with ScriptedEngine(release="old") as server:
        legs(server, chat())
        server.reload("new")
        first, second = legs(server, chat(), chat())
    assert first.foreign_tokens == first.cached_tokens != 0
    assert second.foreign_tokens == second.cached_tokens


def test_without_usage_the_counters_tell() -> None:
    with ScriptedEngine(release="new", reports_cached_tokens=False) as server:
        cold, warm = legs(server, chat(), chat())
    assert (cold.cached_tokens, cold.foreign_tokens, cold.witness) == (0, 0, Witness.COUNTERS)
    assert (warm.cached_tokens, warm.foreign_tokens, warm.witness) == (warm.cacheable_tokens, 0, Witness.COUNTERS)


def test_without_either_nobody_knows_and_nothing_is_zero() -> None:
    with ScriptedEngine(release="new", reports_cached_tokens=False, has_metrics=False) as server:
        found = legs(server, chat(), chat())
    assert told(found) == [(None, None, Witness.NOBODY)] * 2
    assert [leg.hits_mostly for leg in found] == [None, None]


class Busy:
    """A client of an engine that serves somebody else in between: its counters move by more than our request."""

    def __init__(self, client: EngineClient, *, queried: float = 0, cached: float = 0) -> None:
        self._client, self._queried, self._cached, self._asked = client, queried, cached, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    async def counters(self) -> Counters | None:
        found = await self._client.counters()
        assert found is not None
        self._asked += 1
        return replace(
            found,
            queried_tokens=found.queried_tokens + self._asked * self._queried,
            cached_tokens=found.cached_tokens + self._asked * self._cached,
        )


@pytest.mark.parametrize(("queried", "cached"), [(100, 0), (100, 100), (-1_000, 0), (0, 10_000), (0, -10_000)], ids=str)
def test_counters_that_somebody_else_moved_tell_nothing(queried: float, cached: float) -> None:
    async def busy(observer: Observer) -> Leg:
        observer.engine = Busy(observer.engine, queried=queried, cached=cached)  # type: ignore[assignment]
        return await observer.observe(chat())

    with ScriptedEngine(release="new", reports_cached_tokens=False) as server:
        leg = with_observer(server, busy)
    assert told([leg]) == [(None, None, Witness.NOBODY)]


def test_an_engine_without_a_tokenizer_cannot_tell_whose_a_hit_is() -> None:
    with ScriptedEngine(kind=EngineKind.OPENAI, release="new") as server:
        found = legs(server, chat(), chat())
    assert found[0].cached_tokens == 0
    assert [leg.foreign_tokens for leg in found] == [0, None]
    assert [leg.cacheable_tokens for leg in found] == [None, None]


def test_what_a_bypass_leaves_behind_explains_no_hit_where_the_first_entry_stays() -> None:
    with ScriptedEngine(release="old") as server:
        legs(server, chat())
        server.reload("new")
        bypass, hit = legs(server, chat(bypasses=True), chat())
    assert (bypass.cached_tokens, bypass.foreign_tokens) == (0, 0)
    assert hit.foreign_tokens == hit.cached_tokens != 0


def test_what_a_bypass_leaves_behind_explains_a_hit_where_it_replaces_the_slot() -> None:
    with ScriptedEngine(kind=EngineKind.LLAMACPP, release="old") as server:
        legs(server, chat())
        server.reload("new")
        bypass, hit = legs(server, chat(bypasses=True), chat())
    assert (bypass.cached_tokens, hit.foreign_tokens) == (0, 0)
    assert hit.hits_mostly


def test_key_spaces_explain_each_other_nothing() -> None:
    with ScriptedEngine(release="new", ignores_salt=True) as server:
        salted, unsalted = legs(server, chat(salt="a"), chat())
    assert salted.foreign_tokens == 0
    assert unsalted.foreign_tokens == unsalted.cached_tokens != 0


def test_a_salt_that_reads_like_a_salt_with_an_adapter_explains_nothing_of_the_adapters() -> None:
    with ScriptedEngine(EngineKind.SGLANG, release="old") as server:
        adapted = chat(salt="x", extra={"model": "scripted:lora"})
        legs(server, adapted)
        server.reload("new")
        _, adapters = legs(server, chat(salt="x@scripted:lora"), adapted)
    assert adapters.foreign_tokens == adapters.cached_tokens != 0


def test_each_pair_of_salt_and_adapter_has_a_name_of_its_own() -> None:
    salts, adapters = (None, "x", "x@", "x@y", "x%40", "x%40y", "%"), (None, "y", "@y", "%40y")
    names = [origin_space(salt, adapter=adapter) for salt in salts for adapter in adapters]
    assert len(set(names)) == len(names)
    assert (origin_space(None), origin_space("kv1-a-e0"), origin_space("a", adapter="b")) == (None, "kv1-a-e0", "a@b")


def test_a_retried_request_that_hits_may_have_hit_itself_which_is_not_known() -> None:
    with ScriptedEngine(release="old") as server:
        legs(server, chat())
        server.break_with(Break.BUSY, times=1)
        retried, plain = legs(server, chat(), chat())
    assert (retried.observation.retries, retried.foreign_tokens) == (1, None)
    assert plain.foreign_tokens == plain.cached_tokens != 0


def test_a_retried_request_that_misses_is_clean() -> None:
    with ScriptedEngine(release="new") as server:
        server.break_with(Break.BUSY, times=1)
        (leg,) = legs(server, chat())
    assert (leg.observation.retries, leg.foreign_tokens) == (1, 0)


def test_the_ledger_explains_the_next_run_in_the_same_process() -> None:
    with ScriptedEngine(release="new") as server, Ledger(IN_MEMORY) as ledger:
        legs(server, chat(), ledger=ledger)
        (again,) = legs(server, chat(), ledger=ledger)
    assert again.foreign_tokens == 0
    assert again.hits_mostly


def test_the_ledger_explains_nothing_in_the_next_process() -> None:
    with ScriptedEngine(release="new") as server, Ledger(IN_MEMORY) as ledger:
        legs(server, chat(), ledger=ledger)
        server.restart()
        asyncio_legs = legs(server, chat())  # somebody else warms the new process
        (again,) = legs(server, chat(), ledger=ledger)
    assert asyncio_legs[0].cached_tokens == 0
    assert again.foreign_tokens == again.cached_tokens != 0


def test_without_a_process_identity_nothing_is_remembered() -> None:
    with ScriptedEngine(kind=EngineKind.OPENAI, release="new") as server, Ledger(IN_MEMORY) as ledger:

        async def send(observer: Observer) -> None:
            nameless = replace(
                observer.identity,
                process=None,
                capabilities=replace(observer.identity.capabilities, block_tokens=16),
            )
            other = Observer(observer.engine, identity=nameless, namespace=NAMESPACE, memory=ledger)
            other.known(None).learn(tuple(range(32)))
            other.remember()

        with_observer(server, send, ledger=ledger)
        origin = CacheOrigin(replica=server.url, process="", key_space=None, namespace=NAMESPACE)
        assert ledger.computed_prefixes(origin) == frozenset()


def test_one_unknown_makes_a_sum_unknown_but_does_not_hide_a_foreign_hit() -> None:
    assert (total([1, 2]), total([1, None]), total([])) == (3, None, None)
    assert known_total([None, 80, 0]) == 80
    assert known_total([None, 0]) is None
    assert known_total([0, 0]) == 0
