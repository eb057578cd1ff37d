from __future__ import annotations

from kvrelease.simulator.slots import SlotCache

LONG = list(range(100))


def test_the_first_requests_take_the_slots_from_the_last_one_on() -> None:
    cache = SlotCache(3)
    holds = [cache.begin([n]) for n in range(3)]
    assert [hold.slot for hold in holds if hold is not None] == [2, 1, 0]
    assert cache.begin([9]) is None


def test_a_prompt_goes_to_the_slot_that_is_most_alike() -> None:
    cache = SlotCache(2, similarity=0.6)
    cache.request([*LONG, 1, 1])
    cache.request([*range(50), *range(500, 552)])
    assert cache.request([*LONG, 2, 2], hit_limit=101) == 100
    assert cache.request([*range(50), *range(500, 550), 7], hit_limit=100) == 100


def test_below_the_threshold_the_slot_unused_for_longest_is_taken_and_its_common_start_still_hits() -> None:
    cache = SlotCache(2, similarity=0.5)
    cache.request(LONG)
    cache.request([7, 7, 7])
    assert cache.request([*range(40), *[8] * 60]) == 40
    assert cache.peek(LONG) == 0, "more than half alike to nothing, so the other slot, which holds the sevens"


def test_exactly_the_threshold_is_not_alike_enough() -> None:
    cache = SlotCache(2, similarity=0.1)
    cache.request([0] * 10)
    hold = cache.begin([*[0] * 10, *[1] * 90])
    assert hold is not None
    assert (hold.slot, hold.hits) == (0, 0)


def test_what_a_slot_held_beyond_the_common_start_is_lost() -> None:
    cache = SlotCache(1)
    cache.request(LONG)
    cache.request([*range(30), 5])
    assert cache.evicted == 70
    assert cache.request(LONG) == 30


def test_of_slots_that_are_equally_alike_the_first_wins() -> None:
    cache = SlotCache(2)
    holds = [cache.begin([*LONG, end]) for end in (7, 8)]
    assert [hold.slot for hold in holds if hold is not None] == [1, 0]
    for hold in holds:
        assert hold is not None
        cache.finish(hold)
    again = cache.begin([*LONG, 9])
    assert again is not None
    assert (again.slot, again.hits) == (0, 100)
