from __future__ import annotations

from kvrelease.simulator.cache import SimulatedBlocks
from kvrelease.simulator.simulate import ReplicaFigures, Speeds, simulate
from kvrelease.simulator.slots import SlotCache
from kvrelease.simulator.traffic import SimulatedRequest, request_of_tokens

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
