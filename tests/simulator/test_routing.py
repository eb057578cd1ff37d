from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvrelease.simulator.cache import SimulatedBlocks
from kvrelease.simulator.routing import PREFIX_AWARE_SLACK, Routing, Target, route_by
from kvrelease.simulator.simulate import Speeds, simulate
from kvrelease.simulator.traffic import SimulatedRequest


class Replica:
    """What a router sees, as data."""

    def __init__(self, *, in_flight: int = 0, prompt_tokens: int = 0, hits: int = 0) -> None:
        self.in_flight, self.prompt_tokens, self.hits = in_flight, prompt_tokens, hits

    def would_hit(self, _request: SimulatedRequest) -> int:
        return self.hits


ONE = SimulatedRequest(blocks=(1,))


def test_round_robin_goes_round() -> None:
    route = route_by(Routing.ROUND_ROBIN)
    assert [route(ONE, [Replica()] * 3) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_random_is_the_same_for_the_same_seed() -> None:
    first, again, other = (
        [route(ONE, [Replica()] * 4) for _ in range(200)]
        for route in (route_by(Routing.RANDOM, seed=seed) for seed in (1, 1, 2))
    )
    assert first == again != other
    assert min(first.count(index) for index in range(4)) > 20


def test_least_loaded_counts_requests_then_tokens() -> None:
    route = route_by(Routing.LEAST_LOADED)
    assert route(ONE, [Replica(in_flight=2), Replica(in_flight=1, prompt_tokens=9), Replica(in_flight=1)]) == 2


def test_a_session_sticks_and_those_of_nobody_go_round() -> None:
    route = route_by(Routing.STICKY)
    replicas = [Replica()] * 4
    sessions = [SimulatedRequest(blocks=(), session=f"s{n}") for n in range(40)]
    assert [route(one, replicas) for one in sessions] == [route(one, replicas) for one in sessions]
    assert {route(one, replicas) for one in sessions} == {0, 1, 2, 3}
    assert [route(ONE, replicas) for _ in range(3)] == [0, 1, 2]


def test_prefix_aware_takes_the_longest_hit_unless_that_replica_is_too_busy() -> None:
    route = route_by(Routing.PREFIX_AWARE, slack=2)
    assert route(ONE, [Replica(hits=1), Replica(hits=3, in_flight=2), Replica(hits=3, in_flight=1)]) == 2
    assert route(ONE, [Replica(hits=1), Replica(hits=3, in_flight=3)]) == 0


@pytest.mark.parametrize("routing", Routing)
def test_each_policy_serves_every_request_once(routing: Routing) -> None:
    traffic = [SimulatedRequest(blocks=(n % 3, 100 + n), session=str(n % 5)) for n in range(60)]
    caches = [SimulatedBlocks(16) for _ in range(3)]
    found = simulate(traffic, caches, block_tokens=16, routing=routing, concurrency=6, speeds=Speeds())
    assert len(found.hit_tokens) == sum(replica.requests for replica in found.replicas) == 60


def test_a_policy_of_ones_own_is_a_function_of_the_request_and_the_replicas() -> None:
    seen: list[tuple[int, ...]] = []

    def to_the_last(request: SimulatedRequest, replicas: Sequence[Target]) -> int:
        seen.append(tuple(replica.would_hit(request) for replica in replicas))
        return len(replicas) - 1

    traffic = [SimulatedRequest(blocks=(1, 2))] * 3
    found = simulate(traffic, [SimulatedBlocks(16), SimulatedBlocks(16)], block_tokens=16, routing=to_the_last)
    assert [replica.requests for replica in found.replicas] == [0, 3]
    assert seen == [(0, 0), (0, 2), (0, 2)]


def test_routing_that_keeps_a_prefix_on_one_replica_hits_more_than_one_that_spreads_it() -> None:
    """Four prefixes of ten blocks do not fit one of two caches of 32, two each do."""
    traffic = [
        SimulatedRequest(blocks=tuple((n * 7 % 4, b) for b in range(10)), session=str(n * 7 % 4)) for n in range(200)
    ]
    aware, spread = (
        simulate(traffic, [SimulatedBlocks(32), SimulatedBlocks(32)], block_tokens=16, routing=routing).hit_rate
        for routing in (Routing.PREFIX_AWARE, Routing.RANDOM)
    )
    assert aware is not None
    assert spread is not None
    assert aware > 0.9 > spread


def test_the_slack_of_a_busy_replica_is_that_of_the_policy() -> None:
    busy = Replica(hits=3, in_flight=PREFIX_AWARE_SLACK)
    assert route_by(Routing.PREFIX_AWARE)(ONE, [Replica(), busy]) == 1
    busy.in_flight += 1
    assert route_by(Routing.PREFIX_AWARE)(ONE, [Replica(), busy]) == 0


def test_another_seed_spreads_sessions_otherwise() -> None:
    sessions = [SimulatedRequest(blocks=(), session=f"s{n}") for n in range(40)]
    placed = [[route_by(Routing.STICKY, seed=seed)(one, [Replica()] * 4) for one in sessions] for seed in (1, 2)]
    assert placed[0] != placed[1]
