"""Where in a prompt set or a traffic log something was found, and the error that says so.

Messages quote keys, names and ids, shortened; never the text of a prompt.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable

import msgspec

from kvrelease.errors import InputError, PromptSetError, TrafficLogError

MAX_QUOTED_CHARACTERS = 40  # a key or an id is recognised by this much; a pasted prompt is not spilled


class Reading(enum.StrEnum):
    """What a file is read as."""

    PROMPT_SET = "prompt set"
    LOG = "log"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A spot in a prompt set file or a traffic log.

    Attributes:
        source: the file, as the user wrote it.
        reading: what it is read as.
        line: 1-based, None for the file as a whole.
        entry: 1-based position in the `prompts:` list; None outside of it.
        id: the entry's id, None when it has none or it is not yet known.
    """

    source: str
    reading: Reading = Reading.PROMPT_SET
    line: int | None = None
    entry: int | None = None
    id: str | None = None

    def __str__(self) -> str:
        parts = [self.source]
        if self.line is not None:
            parts.append(f"line {self.line}")
        if self.entry is not None:
            parts.append(f"prompt {self.entry}")
        return ", ".join(parts) + (f" (id {quoted(self.id)})" if self.id is not None else "")

    def error(self, found: str, *, hint: str | None = None) -> InputError:
        """The error to raise for what was found here: a `PromptSetError` or a `TrafficLogError`."""
        error = PromptSetError if self.reading is Reading.PROMPT_SET else TrafficLogError
        return error(f"reading the {self.reading} {self}: {found}", hint=hint)


def quoted(word: object) -> str:
    """A key, name or id as messages show it: quoted, control characters escaped, shortened."""
    text = word if isinstance(word, str) else str(word)
    return ascii_safe(text if len(text) <= MAX_QUOTED_CHARACTERS else text[: MAX_QUOTED_CHARACTERS - 1] + "…")


def ascii_safe(text: str) -> str:
    """`repr`, with lone surrogates escaped too, so that any terminal can print it."""
    return repr(text).encode("utf-8", "backslashreplace").decode()


def did_you_mean(word: object, options: Iterable[str]) -> str | None:
    """A hint naming the closest option, or all of them when none is close; None when there are none."""
    known = sorted(options)
    if not known:
        return None
    close = difflib.get_close_matches(word[:MAX_QUOTED_CHARACTERS], known, n=1) if isinstance(word, str) else []
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known[:20])}"


def kind_name(value: object) -> str:
    """What a value is, in words that a person who writes YAML or JSON uses."""
    names: dict[type, str] = {
        type(None): "nothing",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a map",
    }
    return names.get(type(value), f"a {type(value).__name__}")
