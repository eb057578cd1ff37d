"""Hits of a rank that requests are not proven to reach are nobody's."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from kvrelease.artifacts import Verdict
from kvrelease.binding.hits import Unattributed
from kvrelease.engines.base import RankPin
from kvrelease.engines.detect import open_engine
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.prewarm.result import PrewarmReport
from kvrelease.prewarm.run import prewarm
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import deployment, serve_users


def warmed_by_rank(engine: ScriptedEngine) -> PrewarmReport:
    async def main() -> PrewarmReport:
        async with AsyncExitStack() as stack:
            clients = []
            for rank in range(engine.ranks):
                client = await open_engine(engine.url, backoff_s=0.001, pin=RankPin(rank=rank, routed_as=rank))
                stack.push_async_callback(client.aclose)
                clients.append(client)
            with Ledger(IN_MEMORY) as ledger:
                return await prewarm(clients, deployment=deployment(), ledger=ledger)

    return asyncio.run(main())


def test_a_rank_that_is_not_reached_is_not_warmed_and_not_called_dirty() -> None:
    with ScriptedEngine(release="new", ranks=3, honours_rank=False) as engine:
        report = warmed_by_rank(engine)
        proof = len(engine.generations())
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "requests for a rank do not reach it" in report.reason
    assert [one.sent for one in report.replicas] == [0] * 3
    assert [fault.exit_code for fault in report.faults] == [3] * 3
    assert proof < 6


@pytest.mark.parametrize("honours_rank", [True, False])
def test_where_no_rank_can_be_proven_no_hit_is_attributed(*, honours_rank: bool) -> None:
    with ScriptedEngine(release="new", ranks=2, honours_rank=honours_rank, has_metrics=False) as engine:
        report = warmed_by_rank(engine)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert not any(one.foreign_tokens for one in report.replicas)
    assert [(fault.where, fault.exit_code, fault.message) for fault in report.faults] == [
        (one.shown, 3, "it is not proven that requests for this rank reach it") for one in report.replicas
    ]
    assert Unattributed.RANK in {one.unattributed for one in report.replicas}


def test_a_proven_rank_with_entries_of_another_release_is_dirty() -> None:
    with ScriptedEngine(release="old", ranks=2) as engine:
        serve_users(engine)
        engine.reload("new")
        report = warmed_by_rank(engine)
    assert report.verdict is Verdict.FAIL
    assert sum(one.foreign_tokens or 0 for one in report.replicas) > 0
