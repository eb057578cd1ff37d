from __future__ import annotations

import pytest

from kvrelease.report.document import Tone, Word, number, share, word


@pytest.mark.parametrize(
    ("text", "tone"),
    [("pass", Tone.GOOD), ("fail", Tone.BAD), ("inconclusive", Tone.UNSURE), ("stale", Tone.BAD)],
)
def test_a_word_that_decides_is_in_capitals(text: str, tone: Tone) -> None:
    assert word(text) == Word(text=text.upper(), tone=tone)


def test_another_word_stays_as_it_is() -> None:
    assert word("note") == Word(text="note", tone=Tone.PLAIN)


def test_not_known_is_never_zero() -> None:
    assert (number(None), share(None)) == ("?", "?")
    assert (number(0), share(0.0)) == ("0", "0.0%")
