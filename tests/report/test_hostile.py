"""Strings from outside are never markup, in no renderer and no block."""

from __future__ import annotations

import re

import pytest

from kvrelease.report.document import Commands, Document, Facts, Notes, Table, Text, Tone, Verdict, Word
from kvrelease.report.markdown import render_markdown
from kvrelease.report.terminal import render_text

HOSTILE = "x [/b] [red]y :rocket: \x1b[31mz\x1b[0m a|b `c` line\nbreak <img src=x> @team #1 ~~s~~ &lt; $m$ \\"
SPELT_OUT = HOSTILE.replace("\x1b", "\\x1b").replace("\n", "\\n")


def page(text: str) -> Document:
    return Document(
        title=text,
        blocks=(
            Verdict(word=Word(text=text, tone=Tone.BAD), reason=text),
            Text(text=text),
            Facts(pairs=((text, text), (text, Word(text=text)))),
            Table(title=text, columns=(text, "b"), rows=((text, text),)),
            Notes(title=text, lines=(text,)),
            Commands(title=text, lines=(text,)),
        ),
    )


def test_text_shows_a_hostile_string_as_it_is() -> None:
    text = render_text(page(HOSTILE), width=2000)
    assert "\x1b" not in text
    assert text.count(SPELT_OUT) == 16
    assert "🚀" not in text


def test_markdown_has_no_control_character_and_no_break_inside_a_row() -> None:
    text = render_markdown(page(HOSTILE))
    assert "\x1b" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| x") and "---" not in line][1:]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3


def test_markdown_escapes_every_character_with_a_meaning() -> None:
    text = render_markdown(Document(title="t", blocks=(Text(text=HOSTILE),)))
    body = text.splitlines()[2]
    for character in "`*[]<|~&$":
        assert not re.search(rf"(?<!\\)(?<!<!--){re.escape(character)}", body.replace("<!-- -->", ""))


def test_markdown_pings_nobody_and_draws_no_emoji() -> None:
    text = render_markdown(Document(title="t", blocks=(Text(text="@team :rocket: http://127.0.0.1:8000: no"),)))
    assert text.splitlines()[2] == "@<!-- -->team :<!-- -->rocket: http://127.0.0.1:8000: no"


def test_markdown_keeps_a_command_inside_its_fence() -> None:
    text = render_markdown(Document(title="t", blocks=(Commands(title="Next", lines=("a ``` b", "```")),)))
    assert text.endswith("````\na ``` b\n```\n````\n")


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_width_loses_a_cell(width: int) -> None:
    table = Table(title="t", columns=("replica", "a", "b"), rows=(("http://a-long-name.example:8000", "1", "2,345"),))
    text = render_text(Document(title="t", blocks=(table,)), width=width)
    squeezed = re.sub(r"\s", "", text)
    for cell in ("2,345", "1", "replica" if width >= 80 else "http"):
        assert cell in squeezed


def test_an_empty_table_has_its_header() -> None:
    text = render_text(Document(title="t", blocks=(Table(title="Probes", columns=("a", "b"), rows=()),)))
    assert text == "t\n\nProbes\n  a  b\n"
