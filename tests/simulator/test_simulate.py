from __future__ import annotations

import random
from collections.abc import Sequence

from kvrelease.simulator.cache import SimulatedBlocks
from kvrelease.simulator.routing import Target
from kvrelease.simulator.simulate import ReplicaFigures, Speeds, simulate
from kvrelease.simulator.slots import SlotCache
from kvrelease.simulator.traffic import SimulatedRequest, request_of_hashes, request_of_tokens

SYSTEM = tuple(range(100))


def asking(*question: int, at_s: float | None = None, answer: int = 0) -> SimulatedRequest:
    return request_of_tokens([*SYSTEM, *question], block_tokens=16, at_s=at_s, answer_tokens=answer)


def test_hits_are_told_for_each_request_and_replica() -> None:
    found = simulate([asking(1), asking(2), asking(*range(60)), asking(2)], [SimulatedBlocks(50)], block_tokens=16)
    assert list(found.hit_tokens) == [0, 96, 96, 96]
    assert found.replicas == (ReplicaFigures(requests=4, prompt_tokens=463, hit_tokens=288, evicted=0, refused=0),)
    assert found.hit_rate == 288 / 463
    assert found.cacheable_hit_rate == 288 / (96 * 3 + 144)


def test_weights_count_in_the_rates_only() -> None:
    heavy = SimulatedRequest(blocks=(1, 2), weight=9)
    found = simulate([SimulatedRequest(blocks=(1, 2)), heavy], [SimulatedBlocks(9)], block_tokens=16)
    assert found.hit_rate == 0.9
    assert found.replicas[0].hit_tokens == 32


def test_no_traffic_has_no_rate() -> None:
    found = simulate([], [SimulatedBlocks(1)], block_tokens=16)
    assert (found.hit_rate, found.cacheable_hit_rate, len(found.hit_tokens)) == (None, None, 0)


def test_requests_that_overlap_compute_the_same_blocks_twice() -> None:
    traffic = [asking(n) for n in range(8)]
    alone = simulate(traffic, [SimulatedBlocks(200)], block_tokens=16)
    together = simulate(traffic, [SimulatedBlocks(200)], block_tokens=16, concurrency=8)
    scheduled = simulate(traffic, [SimulatedBlocks(200, hits_in_flight=True)], block_tokens=16, concurrency=8)
    assert [list(found.hit_tokens).count(0) for found in (alone, together, scheduled)] == [1, 8, 1]


def test_arrivals_decide_who_overlaps() -> None:
    speeds = Speeds(prefill_tokens_per_s=101, decode_tokens_per_s=1, follows_arrivals=True)
    traffic = [asking(1, at_s=0.0, answer=3), asking(2, at_s=0.5), asking(3, at_s=1.5), asking(4, at_s=60.0)]
    found = simulate(traffic, [SimulatedBlocks(200)], block_tokens=16, concurrency=8, speeds=speeds)
    assert list(found.hit_tokens) == [0, 0, 96, 96]


def test_a_request_waits_until_there_is_room() -> None:
    """Nine blocks hold one request of seven at a time; the second finds what the first has computed."""
    speeds = Speeds(follows_arrivals=True)
    traffic = [asking(1, at_s=0.0, answer=50), asking(2, at_s=0.0)]
    found = simulate(traffic, [SimulatedBlocks(7 + 3 + 1)], block_tokens=16, concurrency=8, speeds=speeds)
    assert list(found.hit_tokens) == [0, 96]


def test_a_request_that_never_fits_is_refused() -> None:
    for concurrency in (1, 4):
        found = simulate([asking(1), asking(2)], [SimulatedBlocks(3)], block_tokens=16, concurrency=concurrency)
        assert found.replicas[0].refused == 2
        assert list(found.hit_tokens) == [0, 0]


def test_a_warm_cache_may_be_given_and_its_past_is_not_counted() -> None:
    cache = SimulatedBlocks(20)
    for start in range(0, 100, 20):
        cache.request(tuple(range(start, start + 19)))
    assert cache.evicted > 0
    cache.request(asking(1).blocks)
    found = simulate([asking(2)], [cache], block_tokens=16)
    assert list(found.hit_tokens) == [96]
    assert found.evicted == 0


def test_slots_are_simulated_on_symbols() -> None:
    traffic = [SimulatedRequest(blocks=(*SYSTEM, n), prompt_tokens=101) for n in (1, 2, 2)]
    found = simulate(traffic, [SlotCache(1)], block_tokens=1)
    assert list(found.hit_tokens) == [0, 100, 100]


def test_a_closed_loop_of_one_equals_one_after_the_other() -> None:
    rng = random.Random(5)
    traffic = [
        request_of_tokens([rng.randrange(3) for _ in range(rng.randrange(80))], block_tokens=16, answer_tokens=answer)
        for answer in (0, 1, 20) * 40
    ]
    alone = simulate(traffic, [SimulatedBlocks(9), SimulatedBlocks(9)], block_tokens=16)
    looped = simulate(traffic, [SimulatedBlocks(9), SimulatedBlocks(9)], block_tokens=16, speeds=Speeds())
    assert alone.evicted > 20
    assert (list(alone.hit_tokens), alone.replicas) == (list(looped.hit_tokens), looped.replicas)
    assert (alone.hit_rate, alone.cacheable_hit_rate) == (looped.hit_rate, looped.cacheable_hit_rate)


def test_no_more_than_the_limit_overlap_in_a_closed_loop() -> None:
    """Of three at a time, the fourth comes when the first is over, and finds its blocks."""
    found = simulate([asking(n) for n in range(5)], [SimulatedBlocks(200)], block_tokens=16, concurrency=3)
    assert list(found.hit_tokens) == [0, 0, 0, 96, 96]


def test_a_closed_loop_has_its_limit_in_flight_in_all() -> None:
    in_flight: list[int] = []

    def in_turn(_request: SimulatedRequest, replicas: Sequence[Target]) -> int:
        in_flight.append(sum(replica.in_flight for replica in replicas))
        return len(in_flight) % 2

    caches = [SimulatedBlocks(200), SimulatedBlocks(200)]
    simulate([asking(n) for n in range(9)], caches, block_tokens=16, routing=in_turn, concurrency=3)
    assert max(in_flight) == 2


def test_what_hits_takes_no_time() -> None:
    speeds = Speeds(prefill_tokens_per_s=101, follows_arrivals=True)
    long = range(60)
    traffic = [asking(1, at_s=0.0), asking(*long, at_s=60.0), asking(*long, at_s=61.0)]
    found = simulate(traffic, [SimulatedBlocks(200)], block_tokens=16, concurrency=8, speeds=speeds)
    assert list(found.hit_tokens) == [0, 96, 144]


def test_no_more_than_the_limit_run_on_a_replica_where_arrivals_decide() -> None:
    speeds = Speeds(follows_arrivals=True)
    traffic = [asking(n, at_s=0.0) for n in range(5)]
    found = simulate(traffic, [SimulatedBlocks(200)], block_tokens=16, concurrency=3, speeds=speeds)
    assert list(found.hit_tokens) == [0, 0, 0, 96, 96]


def test_a_request_out_of_order_comes_with_the_one_before_it_and_time_never_goes_back() -> None:
    speeds = Speeds(prefill_tokens_per_s=101, decode_tokens_per_s=1, follows_arrivals=True)
    traffic = [asking(1, at_s=10.0), asking(2, at_s=0.0), asking(3), asking(4, at_s=10.9), asking(5, at_s=11.0)]
    found = simulate(traffic, [SimulatedBlocks(200)], block_tokens=16, concurrency=8, speeds=speeds)
    assert list(found.hit_tokens) == [0, 0, 0, 0, 96]


def test_a_router_is_told_no_more_than_can_hit() -> None:
    """A prompt of whole blocks that is cached in whole computes its last one anew."""
    seen: list[int] = []

    def only(request: SimulatedRequest, replicas: Sequence[Target]) -> int:
        seen.append(replicas[0].would_hit(request))
        return 0

    whole = request_of_tokens(range(48), block_tokens=16)
    found = simulate([whole, whole], [SimulatedBlocks(20)], block_tokens=16, routing=only)
    assert (seen, list(found.hit_tokens)) == ([0, 2], [0, 32])


def test_what_was_refused_is_counted_among_the_requests_and_hits_nothing() -> None:
    found = simulate(
        [asking(1), SimulatedRequest(blocks=(1,), prompt_tokens=17)], [SimulatedBlocks(3)], block_tokens=16
    )
    assert found.replicas == (ReplicaFigures(requests=2, prompt_tokens=118, hit_tokens=0, evicted=0, refused=1),)


def test_a_request_of_a_trace_stands_for_as_many_as_it_says() -> None:
    assert request_of_hashes([1, 2], block_tokens=512, prompt_tokens=600, weight=3.0) == SimulatedRequest(
        blocks=(1,), prompt_tokens=600, weight=3.0
    )
