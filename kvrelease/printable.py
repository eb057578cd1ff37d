"""Text from outside, made fit for a terminal and a log."""

from __future__ import annotations

from collections.abc import Sequence

# As many names as fit a paragraph; the number of the rest is told.
_NAMES_SHOWN = 5


def is_utf8(text: str) -> bool:
    """Whether digests and artifacts can hold a text; the name of a file need not be one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Text whose control characters are spelt out, so that no name reaches a terminal as an escape code."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def listed(names: Sequence[str]) -> str:
    """Names for a message: quoted, so that control characters show, and cut after a handful."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def number_of(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun, or with noun and verb: of one, and of many (an s more where that is all)."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def first_of(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are; as they are given, for a page that shows them safely."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
