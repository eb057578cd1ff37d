"""The distance of two observations, by hand-made candidates."""

from __future__ import annotations

import math
import random

import pytest

from kvrelease.engines.base import GeneratedToken, Observation, TopLogprob
from kvrelease.verify.distance import (
    ROUNDED_SHARE,
    Distance,
    candidates_told,
    cut_to,
    distance,
    logit_quantum,
    telling_tokens,
)
from tests.verify.builders import observation, token

FORCED = GeneratedToken(token="<think>", logprob=-1e-5, top=(TopLogprob(token="<think>", logprob=-1e-5),))


def answer(*tokens: GeneratedToken, text: str = "x") -> Observation:
    return Observation(text=text, tokens=tokens, total_s=0.1)


def listed(**logprobs: float) -> GeneratedToken:
    top = tuple(TopLogprob(token=name, logprob=value) for name, value in logprobs.items())
    return GeneratedToken(token=top[0].token, logprob=top[0].logprob, top=top)


def test_an_observation_is_at_no_distance_from_itself() -> None:
    same = Distance(nats=0.0, largest_nats=0.0, first_divergence=None, candidates=20, shared=20)
    assert distance(observation(), observation()) == same


def test_the_distance_is_symmetric() -> None:
    source = random.Random(3)
    for _ in range(50):
        left = answer(listed(**{f"t{n}": -source.random() * 5 for n in source.sample(range(30), 20)}))
        right = answer(listed(**{f"t{n}": -source.random() * 5 for n in source.sample(range(30), 20)}))
        one, other = distance(left, right), distance(right, left)
        assert one.nats == pytest.approx(other.nats)
        assert one.largest_nats == pytest.approx(other.largest_nats)
        assert one.first_divergence == other.first_divergence


def test_it_is_the_mean_over_the_union_and_a_missing_token_counts_with_the_least_it_can_differ_by() -> None:
    left, right = answer(listed(a=-0.5, b=-2.0)), answer(listed(a=-0.7, c=-3.0))
    # a: 0.2; b lies below -3 on the right: 1.0 at least; c lies below -2 on the left: it may be -3 there too.
    found = distance(left, right)
    assert found.nats == pytest.approx((0.2 + 1.0 + 0.0) / 3)
    assert found.largest_nats == pytest.approx(1.0)


def test_a_server_that_tells_fewer_candidates_is_at_no_distance_for_that() -> None:
    full, cut = token(), token()
    cut = GeneratedToken(token=cut.token, logprob=cut.logprob, top=cut.top[:5])
    assert distance(answer(full), answer(cut)).nats == 0.0


def test_a_longer_list_on_one_side_does_not_dilute_a_difference() -> None:
    full = token(0.6)
    cut = GeneratedToken(token="a", logprob=-0.5, top=token().top[:4])
    assert distance(answer(full), answer(cut)).nats == pytest.approx(0.3)
    assert distance(answer(full), answer(cut)).candidates == 4


def test_a_token_that_a_short_list_lacks_gets_no_more_than_what_the_list_leaves_over() -> None:
    # Each holds 0.55: the other's token has 0.45 at most, though the list ends higher.
    found = distance(answer(listed(a=-0.6)), answer(listed(b=-0.6)))
    left_over = math.log(1 - math.exp(-0.6) + ROUNDED_SHARE)
    assert -0.6 - left_over > 0.15
    assert found.nats == pytest.approx(-0.6 - left_over)


def test_a_list_that_a_server_rounded_leaves_over_what_rounding_may_hide() -> None:
    rounded = answer(listed(a=-0.01, b=-4.61))  # 0.9999 of all, as far as two decimals tell
    assert distance(rounded, answer(listed(a=-0.01, c=-4.61))).nats == 0.0
    absurd = answer(listed(a=1e6, b=-2.0))
    assert math.isfinite(distance(absurd, answer(listed(a=1e6, c=-2.0))).nats or 0.0)


def test_lists_that_share_no_candidate_are_another_answer_whatever_their_figures_allow() -> None:
    found = distance(answer(listed(a=-0.8)), answer(listed(b=-0.8)))
    assert (found.nats, found.shared) == (0.0, 0)
    assert found.is_above(0.3)
    near_tie = distance(answer(listed(a=-0.8, b=-0.81)), answer(listed(b=-0.8, a=-0.81)))
    assert near_tie.shared == 2
    assert not near_tie.is_above(0.3)


def test_how_many_candidates_a_server_tells() -> None:
    few = answer(FORCED, listed(a=-0.5, b=-2.0))
    assert candidates_told([few, few, answer(token())]) == 2, "one odd answer is no other server"
    assert candidates_told([observation(logprobs=False)]) is None
    assert candidates_told([]) is None


def test_an_answer_is_cut_to_what_a_server_tells() -> None:
    assert cut_to(answer(listed(a=-0.5, b=-2.0)), 1) == answer(listed(a=-0.5))
    assert cut_to(observation(), 20) == cut_to(observation(), None) == observation()


def test_ties_at_the_end_of_the_list_make_no_distance() -> None:
    assert distance(answer(listed(a=-0.5, b=-2.0)), answer(listed(a=-0.5, c=-2.0))).nats == 0.0


def test_figures_that_are_none_are_left_out() -> None:
    odd = listed(a=-0.5, b=-2.0, c=-math.inf, d=math.nan)
    assert distance(answer(odd), answer(listed(a=-0.5, b=-2.5))).nats == pytest.approx(0.25)
    assert distance(answer(listed(c=-math.inf)), answer(listed(a=-0.5))).nats is None
    assert logit_quantum((answer(odd),)) == pytest.approx(1.5)


def test_candidates_of_one_spelling_are_told_apart() -> None:
    def twice(second: float) -> GeneratedToken:
        top = tuple(TopLogprob(token="\ufffd", logprob=value) for value in (-0.5, second))
        return GeneratedToken(token="\ufffd", logprob=-0.5, top=top)

    assert distance(answer(twice(-1.0)), answer(twice(-1.5))).nats == pytest.approx(0.25)


def test_one_text_cut_into_tokens_in_two_ways_does_not_diverge() -> None:
    merged = answer(token(text="ab"), text="ab")
    assert distance(merged, answer(token(text="a"), token(text="b"), text="ab")).first_divergence is None


def test_how_many_tokens_it_takes_to_tell() -> None:
    assert telling_tokens(answer(token())) == 1
    assert telling_tokens(answer(FORCED, FORCED, token())) == 3
    assert telling_tokens(answer(FORCED)) == 1
    assert telling_tokens(answer()) is None
    assert telling_tokens(answer(GeneratedToken(token="a", logprob=-1.0))) is None


def test_a_forced_first_token_is_skipped_where_both_agree_on_it() -> None:
    left, right = answer(FORCED, token()), answer(FORCED, token(0.2))
    assert distance(left, right).nats == pytest.approx(0.1)
    only_one = answer(listed(**{"<think>": -0.9, "x": -1.0}), token(0.2))
    assert distance(answer(FORCED, token()), only_one).nats == pytest.approx(0.89999, abs=1e-4)


def test_when_every_token_is_forced_the_first_is_compared() -> None:
    assert distance(answer(FORCED, FORCED), answer(FORCED, FORCED)).nats == 0.0


def test_without_log_probabilities_only_the_text_speaks() -> None:
    same = distance(observation(logprobs=False), observation())
    assert (same.nats, same.largest_nats, same.first_divergence) == (None, None, None)
    other = distance(observation(logprobs=False), observation(texts=("a", "z", "c"), logprobs=False))
    assert (other.nats, other.first_divergence) == (None, 0)
    bare = GeneratedToken(token="a", logprob=-1.0)
    assert distance(answer(bare), answer(token())).nats is None


def test_the_first_token_that_differs_is_named_and_so_is_a_shorter_answer() -> None:
    assert distance(observation(texts=("a", "b", "c")), observation(texts=("a", "z", "c"))).first_divergence == 1
    assert distance(observation(texts=("a", "b")), observation(texts=("a", "b", "c"))).first_divergence == 2


def test_no_distance_is_ever_negative_or_nan() -> None:
    found = distance(answer(listed(a=-0.1)), answer(listed(b=-40.0)))
    assert found.nats is not None
    assert math.isfinite(found.nats)
    assert found.nats >= 0


def test_the_quantum_is_the_smallest_step_between_candidates() -> None:
    assert logit_quantum((observation(),)) == pytest.approx(0.125)
    assert logit_quantum(()) is None
    assert logit_quantum((observation(logprobs=False),)) is None
    equal = answer(listed(a=-1.0, b=-1.0 - 5e-6, c=-1.5))
    assert logit_quantum((equal,)) == pytest.approx(0.5, abs=1e-4)


def test_what_is_kept_of_a_pair_is_never_taken_for_that_of_others_that_come_after_it() -> None:
    clean = observation()
    # Each is gone before the next is made, and may lie where it lay.
    for place in range(200):
        shift = place / 100
        assert distance(observation(shift), clean).largest_nats == pytest.approx(shift)
