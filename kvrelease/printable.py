"""Text from outside, made fit for a terminal and a log."""

from __future__ import annotations


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
