from __future__ import annotations

import pytest

from kvrelease.selection.split import SplitBy, split_by
from tests.selection.builders import chat

REQUEST = chat("a", "b")


def held_out(requests: int, *, share: float, seed: int = 0) -> list[int]:
    """Places in a log without times that are held out."""
    split = split_by(None, share=share, seed=seed)
    assert split.by is SplitBy.HASH
    is_held_out = split.judge()
    return [place for place in range(requests) if is_held_out(REQUEST)]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
def test_as_many_as_the_share_says_are_held_out_however_few_there_are(share: float) -> None:
    for seed in range(5):
        for requests in (20, 40, 100):
            assert len(held_out(requests, share=share, seed=seed)) == round(requests * share)
        for requests in range(1, 60):
            assert abs(len(held_out(requests, share=share, seed=seed)) - requests * share) < 1


def test_a_share_that_does_not_come_out_even_is_met_on_a_long_log() -> None:
    assert len(held_out(20_000, share=0.123)) == 2_460


def test_each_pass_holds_out_the_same_and_another_seed_others() -> None:
    split = split_by(None, share=0.2, seed=1)
    passes = [[judge(REQUEST) for _ in range(50)] for judge in (split.judge(), split.judge())]
    assert passes[0] == passes[1]
    assert held_out(50, share=0.2, seed=1) != held_out(50, share=0.2, seed=2)


def test_every_place_but_the_first_may_be_drawn() -> None:
    drawn = {place for seed in range(200) for place in held_out(10, share=0.2, seed=seed)}
    assert drawn == set(range(1, 10))


def test_a_single_request_is_chosen_from() -> None:
    assert not any(held_out(1, share=0.9, seed=seed) for seed in range(50))
