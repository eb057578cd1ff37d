from __future__ import annotations

import pytest

from kvrelease.report.document import Document, Table, Tone, Word, first_lines, first_rows, number, share, word
from kvrelease.report.markdown import render_markdown
from kvrelease.report.terminal import render_text


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


def test_what_is_cut_is_counted_and_where_all_of_it_is_is_said() -> None:
    table = Table(title="t", columns=("a",), rows=tuple((f"row {number}",) for number in range(5)))
    said = "… and 3 more (all of them in --format json)"
    assert first_lines(["a", "b", "c", "d", "e"], 2) == ("a", "b", said)
    assert first_lines(["a", "b"], 2) == ("a", "b")
    cut = first_rows(table, 2)
    assert (cut.rows, cut.left_out) == (table.rows[:2], 3)
    for shown in (table, first_rows(table, 5)):
        page = Document(title="", blocks=(shown,))
        assert "more" not in render_text(page) + render_markdown(page)
    page = Document(title="", blocks=(cut,))
    for text in (render_text(page), render_text(page, width=20), render_markdown(page)):
        assert "row 1" in text
        assert "row 2" not in text
        assert said in " ".join(text.split())
