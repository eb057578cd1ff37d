from __future__ import annotations

import random

import pytest

from kvrelease.simulator.cache import Hold, SimulatedBlocks
from tests.simulator.naive import Flight, NaiveCache


def prompt(rng: random.Random) -> list[object]:
    """A prompt of few possible blocks, so that others share its start; each block names all before it."""
    path: tuple[int, ...] = ()
    blocks: list[object] = []
    for _ in range(rng.randint(0, 6)):
        path = (*path, rng.choice((0, 0, 0, 1, 2)))
        blocks.append(path)
    return blocks


@pytest.mark.parametrize("hits_in_flight", [False, True])
def test_it_evicts_what_an_independent_model_of_vllm_evicts(hits_in_flight: bool) -> None:
    for seed in range(80):
        rng = random.Random(seed)
        capacity = rng.randint(1, 24)
        cache = SimulatedBlocks(capacity, hits_in_flight=hits_in_flight)
        naive = NaiveCache(capacity, hits_in_flight=hits_in_flight)
        flying: list[tuple[Hold, Flight, int]] = []
        for _ in range(60):
            move = rng.random()
            if move < 0.5 or not flying:
                blocks = prompt(rng)
                limit, tail, answer = rng.randint(0, 7), rng.randint(0, 1), rng.choice((0, 0, 2))
                hold = cache.begin(blocks, hit_limit=limit, tail_blocks=tail, answer_blocks=answer)
                flight = naive.begin(blocks, limit=limit, tail=tail, answer=answer)
                assert (hold is None) == (flight is None)
                if hold is not None and flight is not None:
                    assert hold.hits == flight.hits
                    flying.append((hold, flight, len(blocks)))
            elif move < 0.7:
                hold, flight, length = rng.choice(flying)
                cache.computed(hold)
                naive.enter(flight, length)
            else:
                hold, flight, _ = flying.pop(rng.randrange(len(flying)))
                cache.finish(hold)
                naive.finish(flight)
            assert cache.evicted == naive.evicted
            assert cache.free_blocks == len(naive.free)
        for probe in (prompt(rng) for _ in range(20)):
            known = next((n for n, key in enumerate(probe) if not naive.cached.get(key)), len(probe))
            assert cache.peek(probe) == known


def test_one_request_at_a_time_equals_the_same_one_in_steps() -> None:
    for seed in range(80):
        rng = random.Random(seed)
        capacity = rng.randint(1, 20)
        cache, naive = SimulatedBlocks(capacity), NaiveCache(capacity, hits_in_flight=False)
        for _ in range(60):
            blocks = prompt(rng)
            limit = rng.choice((None, len(blocks) - 1 if blocks else 0, 2))
            tail, answer = rng.randint(0, 1), rng.choice((0, 0, 0, 2))
            flight = naive.begin(blocks, limit=len(blocks) if limit is None else limit, tail=tail, answer=answer)
            if flight is not None:
                naive.finish(flight)
            hits = cache.request(blocks, hit_limit=limit, tail_blocks=tail, answer_blocks=answer)
            assert hits == (None if flight is None else flight.hits)
            assert (cache.evicted, cache.free_blocks) == (naive.evicted, capacity)
            assert cache.cached_blocks == sum(map(len, naive.cached.values()))


def test_a_prefix_outlives_what_continues_it() -> None:
    cache = SimulatedBlocks(5)
    assert cache.request(["a", "ab", "abc", "abcd"]) == 0
    assert cache.request(["x", "xy"]) == 0  # takes the blank block and the tails of the first prompt
    assert cache.peek(["a", "ab", "abc", "abcd"]) == 2


def test_a_block_in_use_is_not_evicted_and_a_request_without_room_waits() -> None:
    cache = SimulatedBlocks(4)
    first = cache.begin(["a", "ab"])
    assert first is not None
    assert cache.begin(["x", "xy"], tail_blocks=0) is None
    cache.finish(first)
    assert cache.request(["x", "xy"], tail_blocks=0) == 0
    assert cache.peek(["a", "ab"]) == 2


def test_blocks_that_are_still_computed_do_not_hit_unless_the_engine_says_so() -> None:
    for hits_in_flight, expected in ((False, 0), (True, 2)):
        cache = SimulatedBlocks(8, hits_in_flight=hits_in_flight)
        first = cache.begin(["a", "ab"])
        second = cache.begin(["a", "ab", "abx"])
        assert first is not None
        assert second is not None
        assert second.hits == expected
        cache.computed(first)
        assert cache.peek(["a", "ab"]) == 2


def test_a_prompt_of_whole_blocks_leaves_a_second_copy_of_its_last_one() -> None:
    cache = SimulatedBlocks(8)
    cache.request(["a", "ab"], hit_limit=1, tail_blocks=0)
    assert cache.request(["a", "ab"], hit_limit=1, tail_blocks=0) == 1
    assert cache.cached_blocks == 3


def test_a_request_larger_than_the_cache_is_refused_and_changes_nothing() -> None:
    cache = SimulatedBlocks(2)
    cache.request(["a"])
    assert cache.request(["x", "xy", "xyz"]) is None
    assert cache.peek(["a"]) == 1
