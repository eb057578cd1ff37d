"""The salt and the model of a JSON body, and the same body with another salt.

The body is not parsed, and never written again: its bytes stay as they are, and one field is put behind the last. Where
a field stands twice the last one counts, so that the engine's parser sees this salt whatever came before it, and a text
that was no JSON is none afterwards: the engine refuses it with its own words.

Source: RFC 8259; Python 3.11, Lib/json/decoder.py (an object's pairs go into a dict in their order), which is what
Starlette 1.10, requests.py, parses a body with; vLLM 0.32.0, entrypoints/generate/base/protocol.py (what a salt may
be).
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_BLANKS = b" \t\n\r"
_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\n\r]*\{[ \t\n\r]*")
_COLON = re.compile(rb"[ \t\n\r]*:[ \t\n\r]*")
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# A key may be written with escapes. Those of the letters and the underscore that ours consist of begin like this, and
# no encoder writes them so: what has one is parsed whole.
_ESCAPED_LETTER = re.compile(rb"\\u00[567]")
# Places that look like one of our keys and are none (deeper, or in a text) before the body is parsed whole: each costs
# a look at up to half of the body, and a body could be made of nothing else.
_MOST_LOOKALIKES = 8
_CHUNK_BYTES = 1 << 16  # of which at most so many pieces are made at once, however the body is built


class NotBound(NamedTuple):
    """Why a body cannot carry a salt: the client is told, and the engine is not asked.

    Attributes:
        message: what is wrong with it.
        param: the field, None where the whole body is.
    """

    message: str
    param: str | None = None


class Fields(NamedTuple):
    """What a body says that decides about its salt.

    Attributes:
        body: in UTF-8.
        own: the salt it has, None where it has none.
        model: the model it asks for; None where that is no text, or nobody wanted to know.
    """

    body: bytes
    own: str | None
    model: str | None


_NO_JSON = NotBound("The body is not JSON.")
_NO_OBJECT = NotBound("The body is not a JSON object.")
_WRONG_SALT = NotBound("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def read_fields(body: bytes, *, with_model: bool) -> Fields | NotBound:
    """The fields of a body, or why none can be told.

    Args:
        body: as it was sent: a JSON object in one of the encodings that Python's parser takes.
        with_model: whether the model matters.
    """
    encoding = json.detect_encoding(body)
    if not encoding.startswith("utf-8"):
        try:
            body = body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return _NO_JSON
    if not _BEGINNING.match(body) or _end(body) is None:
        return _NO_OBJECT
    if b"\\" in body and _ESCAPED_LETTER.search(body):
        return _parsed(body)
    try:
        own = _top_level(body, b'"cache_salt"')
        model = _top_level(body, b'"model"') if with_model else None
    except _TooManyLookalikes:
        return _parsed(body)
    return _fields(body, own, model)


def with_salt(body: bytes, salt: str) -> bytes:
    """A body with this salt behind its last field.

    Args:
        body: of `Fields`.
        salt: of characters that JSON need not escape.
    """
    beginning, end = _BEGINNING.match(body), _end(body)
    assert beginning is not None, "read_fields has seen the beginning"
    assert end is not None, "read_fields has seen the end"
    comma = b"" if beginning.end() == end else b","
    return b"".join((body[:end], comma, b'"cache_salt":"', salt.encode("ascii"), b'"', body[end:]))


def _end(body: bytes) -> int | None:
    """Where the last brace stands, if nothing but blanks comes after it."""
    end = body.rfind(b"}")
    return end if end >= 0 and not body[end + 1 :].strip(_BLANKS) else None


def _fields(body: bytes, own: object, model: object) -> Fields | NotBound:
    if own is not None and not isinstance(own, str):
        return _WRONG_SALT
    return Fields(body, own, model if isinstance(model, str) else None)


def _parsed(body: bytes) -> Fields | NotBound:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return _NO_JSON
    return _fields(body, document.get("cache_salt"), document.get("model"))


class _TooManyLookalikes(Exception):
    """A body is full of what looks like a key of ours."""


class _Other:
    """A value that is neither a text nor null."""


def _top_level(body: bytes, key: bytes) -> object:
    """The last value of a key in the outermost object: a text, `_Other`, or None for null and for no such key.

    Args:
        body: an object; if it is no JSON, what is told of it means nothing.
        key: in quotes, and written without escapes.

    Raises:
        _TooManyLookalikes: `_MOST_LOOKALIKES` places were not it.
    """
    at = len(body)
    for _ in range(_MOST_LOOKALIKES):
        at = body.rfind(key, 0, at)
        if at < 0:
            return None
        colon = _COLON.match(body, at + len(key))
        if colon is not None and _is_outermost(body, at):
            return _value(body, colon.end())
    raise _TooManyLookalikes


def _is_outermost(body: bytes, at: int) -> bool:
    """Whether the quote at a place opens a text of the outermost object: told from whichever side is shorter."""
    before = body[:at]
    if (at - len(before.rstrip(b"\\"))) % 2:
        return False
    if at <= len(body) // 2:
        depth, is_text = _crossed(before)
    else:
        depth, is_text = _crossed(body[at:])
        depth = -depth
    return depth == 1 and not is_text


def _crossed(part: bytes) -> tuple[int, bool]:
    """How many brackets more open than close in a part that begins outside of texts, and whether it ends in one.

    Of a part that ends outside of texts the second says whether it began in one.
    """
    # An escaped quote and the backslashes before it are painted over: every quote left opens or closes a text.
    if b"\\" in part:
        part = part.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    depth, is_text = 0, False
    for start in range(0, len(part), _CHUNK_BYTES):
        pieces = part[start : start + _CHUNK_BYTES].split(b'"')
        outside = b"".join(pieces[is_text::2])
        depth += outside.count(b"{") + outside.count(b"[") - outside.count(b"}") - outside.count(b"]")
        is_text ^= len(pieces) % 2 == 0
    return depth, is_text


def _value(body: bytes, at: int) -> object:
    """The text at a place; None for null, and for what is no JSON, which the engine's parser refuses."""
    if body.startswith(b'"', at):
        text = _TEXT.match(body, at)
        try:
            return None if text is None else json.loads(text[0].decode("utf-8", "surrogatepass"))
        except ValueError:
            return None
    return None if body.startswith(b"null", at) else _Other()
