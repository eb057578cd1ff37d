"""A report without a format: what the renderers draw. Every string may come from outside and is never markup."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class Tone(enum.StrEnum):
    """How a word is to be read; renderers may colour it, the word itself always stands."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    PLAIN = "plain"


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A word with a tone, such as a verdict."""

    text: str
    tone: Tone = Tone.PLAIN


Cell = str | Word


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The line that matters: one word, and why."""

    word: Word
    reason: str


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A paragraph."""

    text: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Names and values."""

    pairs: tuple[tuple[str, Cell], ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under a title; numbers are already text. `left_out` counts the rows that only the artifact has."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """Warnings and other remarks, one line each."""

    title: str
    lines: tuple[str, ...]


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """What to copy: commands, settings. Never wrapped, so that a copy of it works; empty title for none."""

    title: str
    lines: tuple[str, ...]


Block = Verdict | Text | Facts | Table | Notes | Commands


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A whole report."""

    title: str
    blocks: tuple[Block, ...]


_TONES = {
    "pass": Tone.GOOD,
    "valid": Tone.GOOD,
    "clean": Tone.GOOD,
    "yes": Tone.GOOD,
    "fail": Tone.BAD,
    "invalid": Tone.BAD,
    "stale": Tone.BAD,
    "no": Tone.BAD,
    "inconclusive": Tone.UNSURE,
    "unknown": Tone.UNSURE,
    "suspect": Tone.UNSURE,
    "unjudged": Tone.UNSURE,
}


def word(text: str) -> Word:
    """A word of the reports' vocabulary with its tone, in capitals where it decides."""
    tone = _TONES.get(text, Tone.PLAIN)
    return Word(text=text if tone is Tone.PLAIN else text.upper(), tone=tone)


def number(value: float | None, *, digits: int = 0, unit: str = "") -> str:
    """A number for people; not known is a question mark, never zero."""
    return "?" if value is None else f"{value:,.{digits}f}{unit}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return "?" if value is None else f"{value:.1%}"


def first_rows(table: Table, most: int) -> Table:
    """The table with no more rows than so many; renderers say how many are left out."""
    return msgspec.structs.replace(table, rows=table.rows[:most], left_out=max(0, len(table.rows) - most))


def first_lines(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """No more lines than so many, and one that says how many are left out."""
    more = len(lines) - most
    return (*lines[:most], *((f"… and {more_in_json(more)}",) if more > 0 else ()))


def more_in_json(count: int) -> str:
    """How many of something a page leaves out, and where they are: nothing is cut without a word."""
    return f"{count} more (all of them in --format json)"
