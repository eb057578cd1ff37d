"""Sums, witnesses and times, from pure values."""

from __future__ import annotations

import pytest

from kvrelease.binding.observe import Witness
from kvrelease.engines.base import Counters
from kvrelease.prewarm.proof import Tally, foreign_of, is_likely_warm, percentiles, sample, second_witness, time_witness
from kvrelease.prewarm.result import Percentiles, SecondWitness, SlotResult, TimeWitness
from tests.builders import leg


def tally(*cached: int | None) -> Tally:
    """Requests of 200 tokens with so many cached."""
    made = Tally()
    for tokens in cached:
        foreign = None if tokens is None else 0
        made.add(leg(cached_tokens=tokens, foreign_tokens=foreign, prompt_tokens=200, cacheable_tokens=192))
    return made


def counters(queried: float, cached: float, external: float | None = None) -> Counters:
    return Counters(queried_tokens=queried, cached_tokens=cached, external_cached_tokens=external)


def test_what_one_request_does_not_tell_is_not_known_of_the_sum() -> None:
    told, silent = tally(0, 192), tally(0, None)
    assert (told.prompt_tokens, told.cached_tokens, told.computed_tokens) == (400, 192, 208)
    assert (silent.prompt_tokens, silent.cached_tokens, silent.computed_tokens) == (400, None, None)
    nothing = tally()
    assert (nothing.prompt_tokens, nothing.cached_tokens, nothing.foreign_tokens) == (None, None, None)


def test_foreign_hits_of_any_pass_count_and_a_pass_that_asked_nothing_is_silent() -> None:
    dirty = Tally()
    dirty.add(leg(foreign_tokens=80))
    assert dirty.is_dirty
    assert foreign_of([tally(0), dirty, tally(None)]) == 80
    assert foreign_of([tally(0), tally(None)]) is None
    assert foreign_of([tally(0), tally()]) == 0
    assert foreign_of([tally()]) is None


def test_two_witnesses_of_the_same_requests() -> None:
    asked = tally(192, 192)
    found = second_witness(asked, before=counters(1000, 10), after=counters(1400, 394))
    assert (found.usage_tokens, found.counter_tokens, found.disagree, found.is_shared) == (384, 384, False, False)


def test_a_hit_that_only_usage_tells_is_a_disagreement() -> None:
    found = second_witness(tally(192, 192), before=counters(1000, 10), after=counters(1400, 10))
    assert (found.counter_tokens, found.disagree) == (0, True)


@pytest.mark.parametrize(
    ("before", "after", "is_shared"),
    [
        (None, counters(1400, 394), False),
        (counters(1000, 10), None, False),
        (counters(1000, 10), counters(1900, 394), True),  # others asked too
        (counters(1000, 10), counters(400, 384), False),  # restarted: the counters began anew
        (counters(1000, 500), counters(1400, 100), False),  # went down
        (counters(1000, 10), counters(1400, 900), False),  # more hits than tokens asked for
    ],
)
def test_a_counter_that_is_missing_shared_or_impossible_is_unknown(
    before: Counters | None, after: Counters | None, is_shared: bool
) -> None:
    """https://github.com/vllm-project/vllm/pull/30522
    https://github.com/LMCache/LMCache/issues/2912
    https://github.com/LMCache/LMCache/issues/2574
    """
    found = second_witness(tally(192, 192), before=before, after=after)
    assert (found.counter_tokens, found.disagree, found.is_shared) == (None, False, is_shared)


def test_hits_of_a_store_outside_the_process_are_hits() -> None:
    found = second_witness(tally(192, 192), before=counters(1000, 10, 5), after=counters(1400, 10, 389))
    assert (found.counter_tokens, found.disagree) == (384, False)


def test_witnesses_disagree_from_less_than_half() -> None:
    told = ((192, 96, False), (192, 95, True), (95, 192, True), (0, 0, False), (1, None, False))
    for usage, counter, is_apart in told:
        assert SecondWitness(usage_tokens=usage, counter_tokens=counter).disagree is is_apart


def test_hits_that_counters_told_are_not_called_usage() -> None:
    silent = Tally()
    silent.add(leg(cached_tokens=192, prompt_tokens=200, witness=Witness.COUNTERS))
    found = second_witness(silent, before=counters(0, 0), after=counters(200, 192))
    assert (found.usage_tokens, found.counter_tokens) == (None, 192)


def test_only_what_is_known_to_be_gone_counts_as_evicted() -> None:
    assert tally(0, 96, 192, None).evicted == 2


def test_rates_are_none_where_nothing_is_cacheable_or_known() -> None:
    assert tally(192).hit_rate == 1.0
    assert tally(192).rate_of(None) is None
    assert tally(192, None).hit_rate is None
    assert tally().rate_of(0) is None


def test_times_are_compared_pair_by_pair() -> None:
    assert time_witness([1.0, 2.0, 4.0], [0.1, 1.0, 1.0]) == TimeWitness(pairs=3, ratio=0.25)
    assert time_witness([], []) == TimeWitness(pairs=0, ratio=None)
    assert time_witness([0.0, 1.0], [1.0, 0.5]) == TimeWitness(pairs=1, ratio=0.5)
    assert is_likely_warm(TimeWitness(pairs=3, ratio=0.5))
    assert not is_likely_warm(TimeWitness(pairs=3, ratio=0.51))
    assert not is_likely_warm(TimeWitness(pairs=2, ratio=0.1))
    assert not is_likely_warm(TimeWitness(pairs=9, ratio=0.8))
    assert not is_likely_warm(None)


def test_a_sample_is_half_the_heaviest_and_half_spread_over_the_plan_to_its_end() -> None:
    order = [f"p{number:02}" for number in range(40)]
    weights = dict.fromkeys(order, 1.0) | {"p17": 5.0, "p33": 9.0}
    found = sample(order, weights=weights, size=12)
    assert found[:6] == ("p33", "p17", "p00", "p01", "p02", "p03")
    assert found[6:] == ("p08", "p14", "p21", "p26", "p32", "p39")
    assert sample(order[:12], weights=weights, size=12) == tuple(order[:12])


def test_percentiles_are_nearest_rank_in_milliseconds() -> None:
    assert percentiles([]) == Percentiles(p50=None, p95=None)
    assert percentiles([0.25]) == Percentiles(p50=250.0, p95=250.0)
    assert percentiles([n / 1000 for n in range(1, 21)]) == Percentiles(p50=10.0, p95=19.0)


def test_a_slot_is_warm_where_all_of_its_prompt_that_can_be_cached_is() -> None:
    told = ((96, 96, True), (95, 96, False), (None, 96, None), (96, None, None))
    for cached, cacheable, is_warm in told:
        slot = SlotResult(slot=0, prompt="p", cached_tokens=cached, cacheable_tokens=cacheable)
        assert slot.is_warm is is_warm
