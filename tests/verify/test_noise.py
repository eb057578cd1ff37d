"""The noise floor."""

from __future__ import annotations

import pytest

from kvrelease.verify.distance import cut_to
from kvrelease.verify.noise import NoiseFloor, noise_floor
from tests.verify.builders import leg, observation, probe


def test_without_clean_pairs_the_floor_is_not_known_and_not_zero() -> None:
    assert noise_floor([]) == NoiseFloor(pairs=0, p50=None, max=None, quantum=None)
    alone = noise_floor([probe(clean=())])
    assert (alone.pairs, alone.p50, alone.max) == (0, None, None)
    assert alone.quantum == pytest.approx(0.125)


def test_identical_clean_legs_make_a_floor_of_zero() -> None:
    floor = noise_floor([probe()])
    assert (floor.pairs, floor.p50, floor.max) == (2, 0.0, 0.0)


def test_cold_against_hit_and_hit_against_hit_both_count() -> None:
    floor = noise_floor([probe(cold=leg(0.2, cached=0), clean=(leg(), leg(0.02)))])
    assert floor.pairs == 2
    assert floor.max == pytest.approx(0.1)
    assert floor.p50 == pytest.approx((0.1 + 0.01) / 2)


def test_production_legs_never_enter_the_floor() -> None:
    assert noise_floor([probe(production=[leg(5.0), leg(-5.0)])]).max == 0.0


def test_nonce_pairs_count_when_the_first_missed_and_the_second_hit() -> None:
    good, never_hit, hit_at_once = (
        (leg(cached=0), leg(0.04)),
        (leg(cached=0), leg(3.0, cached=0)),
        (leg(), leg(3.0)),
    )
    floor = noise_floor([probe(clean=())], nonces=[good, never_hit, hit_at_once, (leg(cached=None), leg(3.0))])
    assert floor.pairs == 1
    assert floor.max == pytest.approx(0.02)


def test_legs_without_log_probabilities_are_no_pairs() -> None:
    silent = leg(seen=observation(logprobs=False))
    assert noise_floor([probe(cold=silent, clean=(silent, silent))]).pairs == 0


def test_pairs_whose_miss_found_an_earlier_prompts_beginning_are_not_counted_as_whole() -> None:
    whole, partly = probe(cold=leg(cached=0), clean=(leg(),)), probe(cold=leg(cached=96), clean=(leg(),))
    floor = noise_floor([whole, partly, probe(clean=())], nonces=[(leg(cached=0), leg())])
    assert (floor.pairs, floor.whole) == (3, 2)


def test_what_two_engines_answered_to_one_prompt_tells_once_how_their_entries_were_written() -> None:
    prompts = [[(observation(0.2), observation()), (observation(0.4), observation())] for _ in range(8)]
    floor = noise_floor([], others=prompts)
    assert (floor.pairs, floor.apart) == (16, 8)
    assert floor.max == pytest.approx(0.2)
    assert noise_floor([], others=[[(observation(logprobs=False), observation())]]).apart == 0


def test_how_many_candidates_are_told_is_what_users_answers_and_the_clean_ones_both_have() -> None:
    assert noise_floor([probe()]).candidates == 20
    few = leg(seen=cut_to(observation(), 3))
    assert noise_floor([probe(production=[few])]).candidates == 3
    assert noise_floor([probe(cold=few, clean=(few,))]).candidates == 3
