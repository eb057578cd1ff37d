"""Text from outside, made fit for a terminal and a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text whose control characters are spelt out, so that no name reaches a terminal as an escape code."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
