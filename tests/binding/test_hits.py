"""Whose entries did a hit come from?"""

from __future__ import annotations

import pytest

from kvrelease.binding.hits import KnownPrefixes

BLOCK = 4
PROMPT = tuple(range(100, 122))  # five blocks, and two tokens more
OTHER_TAIL = (*PROMPT[:12], *range(500, 510))


def test_the_first_request_of_a_cold_cache_has_nothing_foreign() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    assert known.account(PROMPT, cached_tokens=0) == 0
    assert len(known.learnt) == 5


def test_a_hit_of_what_was_computed_before_is_explained() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    known.account(PROMPT, cached_tokens=0)
    assert known.account(PROMPT, cached_tokens=20) == 0


def test_a_shared_prefix_is_explained_as_far_as_it_is_shared() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    known.account(PROMPT, cached_tokens=0)
    assert known.explained_tokens(OTHER_TAIL) == 12
    assert known.account(OTHER_TAIL, cached_tokens=20) == 8


def test_a_hit_before_anything_was_sent_is_foreign() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    assert known.account(PROMPT, cached_tokens=16) == 16


def test_blocks_computed_on_top_of_a_foreign_hit_explain_nothing() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    known.account(PROMPT, cached_tokens=16)
    assert known.learnt == frozenset()
    assert known.account(PROMPT, cached_tokens=20) == 20


def test_a_contaminated_prefix_does_not_void_another() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    clean = tuple(range(900, 920))
    known.account(PROMPT, cached_tokens=8)
    known.account(clean, cached_tokens=0)
    assert known.account(clean, cached_tokens=16) == 0
    assert known.account(PROMPT, cached_tokens=8) == 8


def test_a_hit_of_what_was_sent_and_never_told_is_not_known_and_what_is_built_on_it_neither() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    known.add_sent(PROMPT)
    assert known.account(OTHER_TAIL, cached_tokens=12) is None
    assert known.account(OTHER_TAIL, cached_tokens=20) is None
    assert known.learnt == frozenset()
    assert known.account(PROMPT, cached_tokens=0) == 0  # computed now, whatever came of it before
    assert known.account(PROMPT, cached_tokens=20) == 0


def test_a_hit_beyond_what_was_sent_is_foreign_by_what_is_beyond() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    known.add_sent(PROMPT)
    assert known.account(OTHER_TAIL, cached_tokens=20) == 8
    assert known.account(tuple(range(900, 920)), cached_tokens=16) == 16


def test_what_an_earlier_run_sent_is_known_and_not_sent_again() -> None:
    first = KnownPrefixes(block_tokens=BLOCK)
    first.add_sent(PROMPT)
    second = KnownPrefixes(block_tokens=BLOCK, sent=first.newly_sent)
    assert not second.is_empty
    assert second.account(PROMPT, cached_tokens=20) is None
    assert second.newly_sent == frozenset()


def test_an_earlier_run_explains_and_is_not_learnt_again() -> None:
    first = KnownPrefixes(block_tokens=BLOCK)
    first.learn(PROMPT)
    second = KnownPrefixes(block_tokens=BLOCK, known=first.learnt)
    assert second.account(PROMPT, cached_tokens=20) == 0
    assert second.learnt == frozenset()


def test_an_earlier_run_at_another_block_size_explains_nothing() -> None:
    first = KnownPrefixes(block_tokens=2 * BLOCK)
    first.learn(PROMPT)
    second = KnownPrefixes(block_tokens=BLOCK, known=first.learnt)
    assert second.account(PROMPT, cached_tokens=8) == 8


def test_an_equal_block_behind_another_prefix_is_not_explained() -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    known.learn(PROMPT)
    assert known.explained_tokens((1, 2, 3, 4, *PROMPT)) == 0


@pytest.mark.parametrize("tokens", [(), PROMPT[:3]])
def test_a_prompt_shorter_than_a_block_has_nothing_to_explain(tokens: tuple[int, ...]) -> None:
    known = KnownPrefixes(block_tokens=BLOCK)
    assert known.account(tokens, cached_tokens=0) == 0
    assert known.learnt == frozenset()


def test_single_token_blocks_explain_to_the_token() -> None:
    known = KnownPrefixes(block_tokens=1)
    known.learn(PROMPT[:7])
    assert known.account(PROMPT, cached_tokens=9) == 2
