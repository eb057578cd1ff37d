"""From which block on a prefix is stale, found by cuts of its prompt."""

from __future__ import annotations

import math

import pytest

from kvrelease.verify.evidence import Bisection, Cut
from kvrelease.verify.first_stale import bracket, next_cut
from tests.verify.builders import leg

BLOCK = 16
THRESHOLD = 0.05


def searched(*, first_stale: int, most: int, held: int | None = None) -> tuple[Bisection, str | None]:
    """A search of a prompt that is stale from a block on, to its end; `held` blocks are still in the cache."""
    search = Bisection(probe="p", prefix="desk", block_tokens=BLOCK)
    while (step := next_cut(search, threshold=THRESHOLD, most=most)) is not None:
        if isinstance(step, str):
            return search, step
        hit = step if held is None else min(step, held)
        production = leg(0.6 if hit > first_stale else 0.0, cached=hit * BLOCK, foreign=hit * BLOCK)
        cut = Cut(blocks=step, production=production, clean=leg(cached=step * BLOCK))
        search = Bisection(probe="p", prefix="desk", block_tokens=BLOCK, cuts=(*search.cuts, cut))
    return search, None


@pytest.mark.parametrize("most", [1, 2, 3, 7, 53])
def test_every_first_stale_block_is_found_in_logarithmically_many_cuts(most: int) -> None:
    for first_stale in range(most):
        search, why_not = searched(first_stale=first_stale, most=most)
        assert why_not is None
        assert bracket(search, threshold=THRESHOLD).first_stale_block == first_stale
        assert len(search.cuts) <= 1 + math.ceil(math.log2(most))


def test_a_prompt_that_is_answered_cleanly_once_it_is_cut_names_no_block() -> None:
    search, why_not = searched(first_stale=9, most=8)
    assert why_not is not None
    assert "answered like its clean twin" in why_not
    assert bracket(search, threshold=THRESHOLD).first_stale_block is None


def test_entries_that_are_gone_end_the_search_and_what_is_left_still_counts() -> None:
    search, why_not = searched(first_stale=2, most=8, held=0)
    assert why_not is not None
    assert "only 0 came from the cache" in why_not
    assert bracket(search, threshold=THRESHOLD).first_stale_block is None
    search, why_not = searched(first_stale=2, most=8, held=4)
    assert why_not is None
    assert bracket(search, threshold=THRESHOLD).first_stale_block == 2


def test_a_clean_twin_that_is_not_proved_clean_ends_the_search() -> None:
    for foreign in (BLOCK, None):
        cut = Cut(blocks=8, production=leg(0.6, cached=8 * BLOCK), clean=leg(cached=8 * BLOCK, foreign=foreign))
        step = next_cut(
            Bisection(probe="p", prefix="desk", block_tokens=BLOCK, cuts=(cut,)), threshold=THRESHOLD, most=8
        )
        assert isinstance(step, str)
        assert "not proved clean" in step


def test_a_cut_whose_hit_nobody_witnessed_tells_nothing() -> None:
    cut = Cut(blocks=8, production=leg(0.6, cached=None), clean=leg(cached=8 * BLOCK))
    search = Bisection(probe="p", prefix="desk", block_tokens=BLOCK, cuts=(cut,))
    step = next_cut(search, threshold=THRESHOLD, most=8)
    assert isinstance(step, str)
    assert "nobody witnessed" in step
    assert bracket(search, threshold=THRESHOLD).stale_blocks is None
