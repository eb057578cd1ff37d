from __future__ import annotations

import pytest

from kvrelease.engines.base import Capabilities
from kvrelease.engines.cacheability import expected_hit, why_not_cached, why_nothing_is_cached


@pytest.mark.parametrize(
    ("prompt", "block", "lost", "hit"),
    [
        (0, 16, 0, 0),
        (16, 16, 0, 0),
        (17, 16, 0, 16),
        (705, 32, 0, 704),
        (49, 16, 16, 32),
        (17, 16, 16, 0),
        (5, 1, 0, 4),
    ],
)
def test_a_hit_ends_on_a_block_and_leaves_the_last_token(prompt: int, block: int, lost: int, hit: int) -> None:
    assert expected_hit(prompt, block_tokens=block, lost_tokens=lost) == hit


def test_a_prompt_that_fits_no_block_is_told_from_what_length_on_it_would() -> None:
    assert (
        why_not_cached(16, block_tokens=16) == "cannot be cached: 16 tokens, and below 17 nothing of a prompt can hit"
    )
    assert why_not_cached(17, block_tokens=16) is None


def test_nothing_speaks_against_a_cache_of_which_nothing_is_known() -> None:
    assert why_nothing_is_cached(is_off=None, block_tokens=None, context_tokens=None) is None
    assert why_nothing_is_cached(is_off=None, block_tokens=16, context_tokens=None) is None
    capabilities = Capabilities()
    assert capabilities.expected_hit(1000) is None
    assert capabilities.why_not_cached(1000) is None


def test_what_holds_for_every_prompt_goes_before_what_holds_for_one() -> None:
    why = why_nothing_is_cached(is_off="a flag", block_tokens=16, context_tokens=4096)
    assert Capabilities(block_tokens=16, why_nothing_is_cached=why).why_not_cached(1000) == why
