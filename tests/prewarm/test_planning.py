"""The plan of each replica, from what its engine says of itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvrelease.engines.base import EngineClient
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.prewarm.result import PrewarmPlan
from kvrelease.prewarm.run import plan_only
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, prompts, warmed, with_clients

BLOCK = 16
TOOLS = [{"type": "function", "function": {"name": f"tool_{number}", "description": "x " * 20}} for number in range(8)]


def planned(*engines: ScriptedEngine, concurrency: int | None = None) -> PrewarmPlan:
    async def main(clients: list[EngineClient]) -> PrewarmPlan:
        with Ledger(IN_MEMORY) as ledger:
            return await plan_only(clients, deployment=deployment(), ledger=ledger, concurrency=concurrency)

    return with_clients(engines, main)


@pytest.mark.parametrize(("concurrency", "in_flight"), [(1, 1), (5, 5), (None, 6)])
def test_room_is_kept_for_as_many_requests_as_may_be_in_flight(concurrency: int | None, in_flight: int) -> None:
    with ScriptedEngine(capacity_blocks=100) as engine:
        plan = planned(engine, concurrency=concurrency).plan
    # vLLM's own block, one for each in flight (no more than there are prompts), four of a control of three and a token.
    assert plan.head_room_blocks == 1 + in_flight + 4


def test_room_is_kept_for_a_control_that_production_makes_long() -> None:
    asked = deployment()
    asked = msgspec.structs.replace(asked, production=msgspec.structs.replace(asked.production, body={"tools": TOOLS}))
    with ScriptedEngine(release="new", capacity_blocks=400) as engine:
        report = warmed(engine, deployed=asked, concurrency=2)
    control = report.replicas[0].control
    assert control is not None
    assert control.hits
    assert control.prompt_tokens is not None
    assert control.prompt_tokens > 10 * BLOCK, "else this shows nothing"
    assert report.plan.head_room_blocks == 1 + 2 + -(-control.prompt_tokens // BLOCK)


def test_what_every_prompt_begins_with_is_asked_once_for_many_replicas() -> None:
    with ScriptedEngine(capacity_blocks=100) as first, ScriptedEngine(capacity_blocks=100) as second:
        planned(first, second)
        counts = sorted(sum(seen.path == "/tokenize" for seen in one.requests) for one in (first, second))
    assert sum(counts) == len(prompts()) + 3 + 2


@pytest.mark.parametrize(
    "other",
    [
        {"capacity_blocks": 20},
        {"block_tokens": 32},
    ],
    ids=["capacity", "block"],
)
def test_replicas_that_are_not_alike_have_plans_of_their_own(other: dict[str, Any]) -> None:
    with ScriptedEngine(capacity_blocks=100) as first, ScriptedEngine(**{"capacity_blocks": 100} | other) as second:
        found = planned(first, second)
        alone = planned(second).plan
    assert found.replicas[0].plan is None
    assert found.replicas[1].plan == alone != found.plan
