"""Data-parallel ranks behind one URL, on a server that routes by the header and on one that ignores it."""

from __future__ import annotations

import msgspec
import pytest

from kvrelease.binding.deployment import prepare_all
from kvrelease.binding.ranks import RankProof, prove_ranks, rank_fault
from kvrelease.binding.unready import require_one_ready
from kvrelease.engines.base import EngineKind, RankPin
from kvrelease.errors import ExitCode, UsageError
from kvrelease.fleet.opening import Fleet
from kvrelease.fleet.ranks import OFF, parse_ranks, pins_of
from kvrelease.ledger.store import IN_MEMORY, Ledger
from tests.engines.scripted import ScriptedEngine
from tests.fleet.test_opening import reached, shown, with_fleet
from tests.verify.deployments import deployment


async def proofs(fleet: Fleet) -> list[tuple[int | None, RankProof | None, int | None]]:
    """[replicas] rank, proof, and the exit code of what it leaves open."""
    with Ledger(IN_MEMORY) as ledger:
        prepared = await prepare_all(fleet.engines, deployment=deployment(), memory=ledger, max_tokens=1)
        replicas, _ = require_one_ready(prepared)
        found = []
        for replica, proof in zip(replicas, await prove_ranks(replicas), strict=True):
            fault = rank_fault(replica, proof)
            found.append((replica.identity.rank, proof, None if fault is None else fault.exit_code))
        return found


def test_the_ranks_that_counters_tell_apart_are_replicas_of_their_own() -> None:
    with ScriptedEngine(ranks=3) as engine:
        access = msgspec.structs.replace(reached(engine.url), ranks=None)
        assert with_fleet(access, shown) == [f"{engine.url} (rank {rank})" for rank in range(3)]
        assert with_fleet(reached(engine.url), shown) == [engine.url]


def test_an_engine_with_one_series_has_no_ranks() -> None:
    with ScriptedEngine() as engine:
        assert with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), shown) == [engine.url]


def test_ranks_share_the_connections_of_their_server_and_close_them_once() -> None:
    async def main(fleet: Fleet) -> set[int]:
        for engine in fleet.engines:
            await engine.counters()  # type: ignore[union-attr]
        return {id(engine._transport._connections) for engine in fleet.engines}  # type: ignore[union-attr]

    with ScriptedEngine(ranks=3) as engine:
        assert len(with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), main)) == 1


def test_every_rank_is_reached_and_proven_where_the_header_is_read() -> None:
    with ScriptedEngine(ranks=3) as engine:
        found = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), proofs)
        assert found == [(rank, RankProof.PROVEN, None) for rank in range(3)]
        assert engine.rank_of == [0, 0, 1, 1, 2, 2]


def test_a_header_that_is_ignored_with_status_200_is_found_by_the_counters_of_the_ranks() -> None:
    with ScriptedEngine(ranks=2, honours_rank=False) as engine:
        found = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), proofs)
        assert found == [(rank, RankProof.IGNORED, ExitCode.INCONCLUSIVE) for rank in range(2)]


def test_without_counters_nothing_is_proven() -> None:
    with ScriptedEngine(ranks=2, has_metrics=False) as engine:
        found = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=2), proofs)
        assert found == [(rank, RankProof.UNPROVEN, ExitCode.INCONCLUSIVE) for rank in range(2)]


def test_the_probes_of_a_rank_warm_nothing_that_is_measured_later() -> None:
    with ScriptedEngine(ranks=2) as engine:
        with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), proofs)
        salts = {seen.body.get("cache_salt") for seen in engine.generations()}
        assert all(str(salt).startswith("kvrelease-rank-") for salt in salts)
        assert len(salts) == len(engine.generations())


def test_the_counters_of_a_rank_are_its_own() -> None:
    async def main(fleet: Fleet) -> list[float]:
        await proofs(fleet)
        engine.queried_of_rank[1] += 1000
        told = [await client.counters() for client in fleet.engines]  # type: ignore[union-attr]
        return [one.queried_tokens for one in told if one is not None]

    with ScriptedEngine(ranks=2) as engine:
        first, second = with_fleet(msgspec.structs.replace(reached(engine.url), ranks=None), main)
        assert (first, second) == (engine.queried_of_rank[0], engine.queried_of_rank[1])


def test_ranks_of_one_process_are_known_as_caches_of_their_own() -> None:
    async def main(fleet: Fleet) -> list[str | None]:
        told = [await client.current_process() for client in fleet.engines]  # type: ignore[union-attr]
        assert told == [(await client.identify()).process for client in fleet.engines]  # type: ignore[union-attr]
        return told

    for kind in (EngineKind.VLLM, EngineKind.SGLANG):
        with ScriptedEngine(kind, ranks=2) as engine:
            access = msgspec.structs.replace(reached(engine.url, kind=kind), ranks=None)
            first, second = with_fleet(access, main)
            assert first is not None
            assert first != second


def test_a_server_of_a_larger_group_is_asked_by_the_place_among_its_own_ranks() -> None:

    async def main(fleet: Fleet) -> tuple[RankPin, ...]:
        (engine,) = fleet.engines
        identity = await engine.identify()  # type: ignore[union-attr]
        elsewhere = msgspec.structs.replace(identity, ranks=(2, 3))
        assert pins_of(elsewhere, wanted=None, listed=3) == (RankPin(rank=3, routed_as=1),)
        assert pins_of(elsewhere, wanted=3, listed=None) == tuple(RankPin(rank=n, routed_as=n) for n in range(3))
        assert pins_of(elsewhere, wanted=2, listed=None) == pins_of(elsewhere, wanted=None, listed=None)
        return pins_of(elsewhere, wanted=None, listed=None)

    with ScriptedEngine() as engine:
        found = with_fleet(reached(engine.url), main)
        assert found == (RankPin(rank=2, routed_as=0), RankPin(rank=3, routed_as=1))


def test_an_engine_without_ranks_is_not_asked_for_one() -> None:
    with ScriptedEngine(EngineKind.LLAMACPP) as engine:
        access = msgspec.structs.replace(reached(engine.url, kind=EngineKind.LLAMACPP), ranks=4)
        (found,) = with_fleet(access, shown)
        assert found == f"{engine.url}: UsageError"


@pytest.mark.parametrize(("text", "ranks"), [("auto", None), ("off", OFF), ("False", OFF), (" 8 ", 8)])
def test_the_option_is_auto_off_or_a_number(text: str, ranks: int | None) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "99999"])
def test_any_other_word_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--data-parallel"):
        parse_ranks(text)
