"""Every hit has a witness or is not known, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import pytest
from msgspec.structs import replace

from kvrelease.binding.attribution import origin_space
from kvrelease.binding.hits import Unattributed
from kvrelease.binding.observe import Leg, Observer, Witness, known_total, total
from kvrelease.engines.base import Counters, EngineClient, EngineKind, Observation, Request
from kvrelease.engines.detect import open_engine
from kvrelease.errors import ServiceError
from kvrelease.ledger.records import CacheOrigin
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.engines.clients import PROMPT, chat
from tests.engines.scripted import Break, Generation, Json, ScriptedEngine
from tests.ledger.opening import given_or_new
from tests.loops import run

T = TypeVar("T")
NAMESPACE = "new-e0"


def with_observer(
    server: ScriptedEngine,
    do: Callable[[Observer], Awaitable[T]],
    *,
    ledger: Ledger | None = None,
    timeout_s: float = 5.0,
) -> T:
    async def main() -> T:
        client = await open_engine(server.url, backoff_s=0.001, timeout_s=timeout_s)
        async with aclosing(client):
            with given_or_new(ledger) as memory:
                observer = Observer(client, identity=await client.identify(), namespace=NAMESPACE, memory=memory)
                found = await do(observer)
                observer.remember()
                return found

    return run(main())


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


class LeavesMissesOut(ScriptedEngine):
    """vLLM before it asked for `is not None`, SGLang's usage: a count of zero is left out."""

    def usage(self, usage: Json) -> Json:
        details = usage["prompt_tokens_details"]
        return usage | {"prompt_tokens_details": details if details["cached_tokens"] else None}


class Exaggerates(ScriptedEngine):
    """Ten times the cached tokens, which is impossible of a long hit, and looks possible of a short one."""

    def usage(self, usage: Json) -> Json:
        return usage | {
            "prompt_tokens_details": {"cached_tokens": 10 * usage["prompt_tokens_details"]["cached_tokens"]}
        }


SHORT_HIT = chat(" ".join(PROMPT.split()[:20]) + " and then something else" * 60)


def test_where_usage_leaves_misses_out_the_counters_tell_them_and_later_hits_are_own() -> None:
    with LeavesMissesOut(release="new") as server:
        found = legs(server, chat(), chat(), other_chat(), other_chat())
    assert [leg.witness for leg in found] == [Witness.COUNTERS, Witness.USAGE, Witness.USAGE, Witness.USAGE]
    assert [leg.foreign_tokens for leg in found] == [0] * 4


def test_sglang_tells_hits_alone_without_its_cache_report_and_the_counters_tell_misses() -> None:
    with ScriptedEngine(EngineKind.SGLANG, release="new", reports_cached_tokens=False) as server:
        found = legs(server, *[chat(streams=True)] * 2, chat(salt="other", streams=True))
    assert [leg.witness for leg in found] == [Witness.COUNTERS, Witness.USAGE, Witness.COUNTERS]
    assert [leg.foreign_tokens for leg in found] == [0] * 3


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.SGLANG], ids=str)
def test_where_hits_alone_are_told_a_hit_of_what_was_sent_before_is_not_known_also_in_the_next_run(
    kind: EngineKind,
) -> None:
    engine = LeavesMissesOut(kind, release="new", has_metrics=False, keeps_extensions=False)
    with engine as server, Ledger(IN_MEMORY) as ledger:
        first, again = legs(server, chat(), chat(), ledger=ledger)
        (later,) = legs(server, other_chat(), ledger=ledger)
    assert (first.cached_tokens, first.doubt) == (None, Unattributed.UNTOLD)
    assert (again.foreign_tokens, again.doubt) == (later.foreign_tokens, later.doubt) == (None, Unattributed.SENT)
    assert again.hits_mostly


def test_where_hits_alone_are_told_what_others_left_is_foreign() -> None:
    with LeavesMissesOut(release="old", has_metrics=False) as server:
        legs(server, chat())
        server.reload("new")
        mine, theirs = legs(server, chat("something of my own " * 30), chat())
    assert mine.foreign_tokens is None
    assert theirs.foreign_tokens == theirs.cached_tokens != 0


def test_an_impossible_count_is_not_told_and_after_it_no_other_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    with Exaggerates(release="new") as server:
        found = legs(server, chat(), chat(), SHORT_HIT, SHORT_HIT)
    assert [leg.witness for leg in found] == [Witness.USAGE, *[Witness.COUNTERS] * 3]
    assert [leg.foreign_tokens for leg in found] == [0] * 4
    assert 0 < (found[2].cached_tokens or 0) < 40
    (warned,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "which cannot be" in warned.getMessage()


def test_an_impossible_count_without_counters_is_unknown_and_not_foreign() -> None:
    with Exaggerates(release="new", has_metrics=False) as server:
        found = legs(server, chat(), chat(), chat())
    assert told(found) == [(0, 0, Witness.USAGE), *[(None, None, Witness.NOBODY)] * 2]


class AddsTokens(ScriptedEngine):
    """The chat route puts tokens in front that the tokenizer's route does not: template arguments, tools, a BOS."""

    def generate(self, prompt: Sequence[int], body: Json) -> Generation:
        return super().generate([9, *prompt], body)


def test_where_other_tokens_are_counted_than_tokenised_a_hit_is_not_attributed() -> None:
    with AddsTokens(release="new") as server, Ledger(IN_MEMORY) as ledger:
        first, again = legs(server, chat(), other_chat(), ledger=ledger)
        (later,) = legs(server, chat(), ledger=ledger)
    assert first.foreign_tokens == first.cached_tokens == 0
    assert (again.foreign_tokens, again.doubt) == (later.foreign_tokens, later.doubt) == (None, Unattributed.OTHER_IDS)
    assert again.cached_tokens


def test_where_other_tokens_are_counted_a_hit_before_anything_of_ours_is_foreign_all_the_same() -> None:
    with AddsTokens(release="old") as server:
        legs(server, chat())
        server.reload("new")
        (leg,) = legs(server, other_chat())
    assert leg.foreign_tokens == leg.cached_tokens != 0


def test_a_request_that_was_given_up_is_remembered_as_sent() -> None:
    async def given_up(observer: Observer) -> None:
        with pytest.raises(ServiceError):
            await observer.observe(chat())

    with Stalls(release="new") as server, Ledger(IN_MEMORY) as ledger:
        with_observer(server, given_up, ledger=ledger, timeout_s=0.3)
        server.stalls = False
        (other,) = legs(server, other_chat(), ledger=ledger)
    assert other.cached_tokens
    assert (other.foreign_tokens, other.doubt) == (None, Unattributed.SENT)


def test_a_request_that_was_refused_explains_no_hit() -> None:
    async def refused(observer: Observer) -> Leg:
        with pytest.raises(ServiceError):
            await observer.observe(chat())
        return await observer.observe(chat())

    with ScriptedEngine(release="old") as server:
        legs(server, chat())
        server.reload("new")
        server.break_with(Break.BAD_REQUEST, times=1)
        leg = with_observer(server, refused)
    assert leg.foreign_tokens == leg.cached_tokens != 0


class Stalls(ScriptedEngine):
    """Computes, and never answers, as long as it stalls."""

    stalls = True

    def generate(self, prompt: Sequence[int], body: Json) -> Generation:
        made = super().generate(prompt, body)
        if self.stalls:
            self.closing.wait()
        return made


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
    namespace = "kv1-ixwalxnsoyzigeatgayuuivwq7xaawd6-undeclared-e3"
    named = (origin_space(None), origin_space(namespace), origin_space(None, adapter="b"))
    assert named == (None, namespace, "@b")
    assert origin_space(namespace, adapter="b") == f"{namespace}@b"
    assert "x@y" not in str(names), "a salt that is text may be a secret"


def other_chat() -> Request:
    """Another question behind the start of `chat()`."""
    return chat(PROMPT.removesuffix("May I return it?") + "Is this something else altogether? " * 8)


BROKEN = [Break.DROP, Break.CUT, Break.CRASHING, Break.LOADING]


@pytest.mark.parametrize("how", BROKEN, ids=str)
def test_a_request_that_broke_and_was_sent_again_may_have_hit_itself_which_is_not_known(how: Break) -> None:
    with ScriptedEngine(release="new") as server:
        server.break_with(how, times=1)
        first, again, next_one = legs(server, chat(streams=True), chat(), other_chat())
    assert (first.observation.retries, first.observation.lost) == (1, 1)
    if first.cached_tokens:  # it was computed before the connection broke
        assert [leg.foreign_tokens for leg in (first, again, next_one)] == [None] * 3
        assert [leg.doubt for leg in (first, again)] == [Unattributed.LOST, Unattributed.SENT]
    else:
        assert [leg.foreign_tokens for leg in (first, again, next_one)] == [0] * 3


def test_a_request_that_was_turned_away_before_it_was_computed_hits_what_others_left() -> None:
    with ScriptedEngine(release="old") as server:
        legs(server, chat())
        server.break_with(Break.BUSY, times=1)
        retried, plain = legs(server, chat(), chat())
    assert (retried.observation.retries, retried.observation.lost) == (1, 0)
    assert retried.foreign_tokens == plain.foreign_tokens == plain.cached_tokens != 0


def test_what_others_left_beyond_a_lost_request_is_foreign() -> None:
    with ScriptedEngine(release="old") as server:
        legs(server, chat(), other_chat())
        server.break_with(Break.DROP, times=1)
        lost, other = legs(server, chat(streams=True), other_chat())
    assert lost.foreign_tokens is None
    assert other.foreign_tokens is not None
    assert 0 < other.foreign_tokens < (other.cached_tokens or 0)


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


class ByConnection(ScriptedEngine):
    """A balancer that keeps each connection on one of two processes: every other one on the second."""

    def __init__(self) -> None:
        self.connections: list[int] = []
        super().__init__(release="new")

    @property
    def started(self) -> float:
        port = self.routing.port
        if port not in self.connections:
            self.connections.append(port)
        return 1e9 + self.connections.index(port) % 2

    @started.setter
    def started(self, value: float) -> None:
        pass


def test_a_second_process_behind_the_connections_of_a_run_shows_at_its_end() -> None:
    async def send(observer: Observer) -> None:
        await asyncio.gather(*[observer.engine.complete(chat()) for _ in range(4)])
        with pytest.raises(ServiceError, match="or there are several"):
            await observer.require_same_process()

    with ByConnection() as server:
        with_observer(server, send)


def test_one_process_behind_all_connections_of_a_run_is_the_same() -> None:
    async def send(observer: Observer) -> None:
        await asyncio.gather(*[observer.engine.complete(chat()) for _ in range(4)])
        await observer.require_same_process()

    with ScriptedEngine(release="new") as server:
        with_observer(server, send)


def test_without_a_process_identity_nothing_is_remembered() -> None:
    with ScriptedEngine(kind=EngineKind.OPENAI, release="new") as server, Ledger(IN_MEMORY) as ledger:

        async def send(observer: Observer) -> None:
            nameless = replace(
                observer.identity,
                process=None,
                capabilities=replace(observer.identity.capabilities, block_tokens=16),
            )
            other = Observer(observer.engine, identity=nameless, namespace=NAMESPACE, memory=ledger)
            other.learn(chat(), tuple(range(32)))
            other.remember()

        with_observer(server, send, ledger=ledger)
        origin = CacheOrigin(replica=server.url, process="", key_space=None, namespace=NAMESPACE)
        assert ledger.computed_prefixes(origin) == frozenset()


def test_one_unknown_makes_a_sum_unknown_but_does_not_hide_a_foreign_hit() -> None:
    assert (total([1, 2]), total([1, None]), total([])) == (3, None, None)
    assert known_total([None, 80, 0]) == 80
    assert known_total([None, 0]) is None
    assert known_total([0, 0]) == 0
