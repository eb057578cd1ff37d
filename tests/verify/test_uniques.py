"""Unique prompts: nobody can have cached them, and they are like what users send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from kvrelease.binding.deployment import Replica, prepare
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import EngineClient, Request, Route
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.verify.ladder import Ladder
from kvrelease.verify.record import MAX_TOKENS
from kvrelease.verify.uniques import Uniques
from tests.engines.never_hits import NeverHits
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, prompts, serve_users, with_clients

SMALL = prompts(per_desk=2)
DEPLOYED = deployment(prompt_set=SMALL)
T = TypeVar("T")


def asked(*engines: ScriptedEngine, ask: Callable[[Uniques, Ladder], Awaitable[T]]) -> T:
    """What comes of asking the first engine; the second one, where there is any, gives reference legs."""

    async def main(clients: list[EngineClient]) -> T:
        with Ledger(IN_MEMORY) as memory:
            replicas = [
                await prepare(client, deployment=DEPLOYED, memory=memory, max_tokens=MAX_TOKENS) for client in clients
            ]

            async def observe(request: Request, *, on: Replica | None = None, asked: str = "nonce") -> Leg:
                assert asked
                return await (on or replicas[0]).observer.observe(request)

            uniques = Uniques(replicas[0], route=Route.CHAT, observe=observe)
            reference = replicas[1] if len(replicas) > 1 else None
            return await ask(uniques, Ladder(replicas[0], reference=reference, allows_flush=False))

    return with_clients(engines, main)


def test_the_control_misses_and_then_hits_and_the_counters_say_the_same() -> None:
    with ScriptedEngine(release="new") as engine:
        serve_users(engine, prompt_set=SMALL)
        found = asked(engine, ask=lambda uniques, _: uniques.control())
    miss, hit = found.legs
    assert (miss.hits_mostly, hit.hits_wholly) == (False, True)
    assert found.counted_hits == (miss.cached_tokens or 0) + (hit.cached_tokens or 0)
    with NeverHits(release="new") as engine:
        never = asked(engine, ask=lambda uniques, _: uniques.control())
    assert (never.legs[1].cached_tokens, never.counted_hits) == (0, 0)


def test_what_is_sent_inside_an_unused_namespace_misses_as_production_and_under_a_fresh_salt() -> None:
    with ScriptedEngine(release="new") as engine:
        found = asked(engine, ask=lambda uniques, _: uniques.binding())
    legs = (found.inside, found.as_production, found.fresh_salt)
    assert [leg.hits_mostly for leg in legs] == [False, False, False]
    assert len({leg.key_space for leg in legs}) == 3


def test_a_unique_prompt_like_one_of_users_is_as_long_and_is_a_miss_and_a_hit_on_both_engines() -> None:
    like = SMALL.prompts[0]
    with ScriptedEngine(release="new") as engine, ScriptedEngine(release="new") as second:
        for one in (engine, second):
            serve_users(one, prompt_set=SMALL)
        prompt, found = asked(
            engine, second, ask=lambda uniques, ladder: uniques.of_both(like, ladder=ladder, max_tokens=1)
        )
        words = len(str(like.body["messages"]).split())
    assert found.name == prompt.id != like.id
    for miss, hit in (found.engine, found.reference):
        assert (miss.hits_mostly, hit.hits_wholly) == (False, True)
        assert (miss.prompt_tokens or 0) > words / 2
