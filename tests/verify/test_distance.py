"""The distance of two observations, by hand-made candidates."""

from __future__ import annotations

import math
import random

import pytest

from kvrelease.engines.base import GeneratedToken, Observation, TopLogprob
from kvrelease.verify.distance import Distance, distance, logit_quantum
from tests.verify.builders import observation, token

FORCED = GeneratedToken(token="<think>", logprob=-1e-5, top=(TopLogprob(token="<think>", logprob=-1e-5),))


def answer(*tokens: GeneratedToken, text: str = "x") -> Observation:
    return Observation(text=text, tokens=tokens, total_s=0.1)


def listed(**logprobs: float) -> GeneratedToken:
    top = tuple(TopLogprob(token=name, logprob=value) for name, value in logprobs.items())
    return GeneratedToken(token=top[0].token, logprob=top[0].logprob, top=top)


def test_an_observation_is_at_no_distance_from_itself() -> None:
    assert distance(observation(), observation()) == Distance(nats=0.0, largest_nats=0.0, first_divergence=None)


def test_the_distance_is_symmetric() -> None:
    source = random.Random(3)
    for _ in range(50):
        left = answer(listed(**{f"t{n}": -source.random() * 5 for n in source.sample(range(30), 20)}))
        right = answer(listed(**{f"t{n}": -source.random() * 5 for n in source.sample(range(30), 20)}))
        one, other = distance(left, right), distance(right, left)
        assert one.nats == pytest.approx(other.nats)
        assert one.largest_nats == pytest.approx(other.largest_nats)
        assert one.first_divergence == other.first_divergence


def test_it_is_the_mean_over_the_union_and_a_missing_token_counts_from_the_smallest_listed() -> None:
    left, right = answer(listed(a=-0.5, b=-2.0)), answer(listed(a=-0.7, c=-3.0))
    # a: 0.2; b: |-2 - (-3)|; c: |-2 - (-3)|
    found = distance(left, right)
    assert found.nats == pytest.approx((0.2 + 1.0 + 1.0) / 3)
    assert found.largest_nats == pytest.approx(1.0)


def test_a_forced_first_token_is_skipped_where_both_agree_on_it() -> None:
    left, right = answer(FORCED, token()), answer(FORCED, token(0.2))
    assert distance(left, right).nats == pytest.approx(0.1)
    only_one = answer(listed(**{"<think>": -0.9, "x": -1.0}), token(0.2))
    assert distance(answer(FORCED, token()), only_one).nats == pytest.approx((0.89999 + 0.99999) / 2, abs=1e-4)


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
