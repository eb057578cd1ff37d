"""What may be repeated of a server's own words: no key, and nothing of what users wrote.

Servers quote what they were sent, whole or in pieces, and spell it as their language does. So words are compared by
their letters and digits alone, with escapes undone, and whatever a server's text and a request have in common over a
few of these is left out. The work is bounded whatever a server answers.

Pure.
"""

from __future__ import annotations

import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator

from kvrelease.artifacts import JsonObject

MAX_QUOTED = 300  # characters of a server's own message that ours repeats
MAX_READ = 1000  # characters of it that are looked at
# Behind the last of these a quotation may go on that nobody looked at.
_MARGIN = 64
_MIN_SECRET = 4
# Bytes of UTF-8 that a server's text and a request may not have in common: a long word of English, three characters of
# Chinese.
_RUN_BYTES = 8
# A number or a code of a few characters says more than a word: a PIN, a year of birth, a customer's number.
_MIN_CODE = 4
# What a body says to the engine, not to the model.
_OPEN_FIELDS = frozenset({"model", "reasoning_effort", "service_tier"})
# The protocol's and the validators' own words: a run of nothing else tells nothing, whoever wrote it.
_PROTOCOL_WORDS = """
a all allowed an and any are array as assistant at auto be body boolean bytes cannot chat choice completion
completions content contents context could default description developer dict dictionary does empty enum equal
error exceed exceeds expected extra field fields float for format from function functions given got greater has
have however id image images in input inputs integer invalid is it items json key keys larger least length less
limit list loaded long longer maximum may message messages minimum missing model models most must name no none not
null number object of one only or output parameter parameters permitted please properties prompt prompts provided
reached reduce request requested required requires role roles schema sequence should size string strict supported
support system template temperature text than that the their this to token tokens too tool tools type unexpected
unknown unsupported url user valid validation value values when with without you your
"""
_PROTOCOL = frozenset(_PROTOCOL_WORDS.split())
# As JSON, Python, HTML and URLs spell a character, and as byte-level vocabularies spell a space and a line end.
_ESCAPE = re.compile(
    r"""\\{1,8}(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[nrtbf"'/])"""
    r"|(?:%[0-9a-fA-F]{2}){1,64}|&(?:\#[0-9]{1,7}|\#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});|[ĠĊ]"
)
_WORD = re.compile(r"[^\W_]+")
_NO_WORD = re.compile(r"[\W_]+")
# Validators quote their input behind such a key.
_INPUT = re.compile(r"""['"]?\binput(?:_value)?['"]?\s{0,8}[:=]""")
_GAPS = re.compile(r"…(?:[\W_]*…)+")


class Redactor:
    """Takes secrets and users' texts out of what a server wrote."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Keeps `secrets`, which never leave; the shortest are too common to be any."""
        self._secrets = tuple(sorted((text for text in secrets if len(text) >= _MIN_SECRET), key=len, reverse=True))

    def clean(self, text: str, *, body: JsonObject | None) -> str:
        """The text without secrets, without anything of the body that users wrote, on one line, not too long.

        Args:
            text: of a server, of any length.
            body: what it was sent; None when that holds nothing of users.
        """
        if not text:
            return ""
        shown = text[:MAX_READ]
        for secret in self._secrets:
            for spelling in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], html.escape(secret)}:
                shown = shown.replace(spelling, "…")
        shown = _INPUT.split(shown, maxsplit=1)[0]
        shown = _without_common(shown, [*self._secrets, *_private_texts(body or {})], ids=_ids(body or {}))
        if len(text) > MAX_READ:
            shown = shown[:-_MARGIN] + "…"
        shown = _GAPS.sub("…", " ".join(shown.split()))
        return shown if len(shown) <= MAX_QUOTED else shown[:MAX_QUOTED] + "…"


def _without_common(text: str, private: list[str], *, ids: list[str]) -> str:
    """A text without what it has in common with private ones."""
    if not private and not ids:
        return text
    data, spans = _letters_with_places(text)
    private_letters = b"\n".join(_letters(one) for one in (*private, *ids))
    runs = [data[first : first + _RUN_BYTES] for first in range(len(data) - _RUN_BYTES + 1)]
    common = {run for run in set(runs) if run in private_letters}
    found = [(spans[first][0], spans[first + _RUN_BYTES - 1][1]) for first, run in enumerate(runs) if run in common]
    words = [match for match in _WORD.finditer(text) if _is_code(match[0])]
    if words:
        codes = {word for one in private for word in _WORD.findall(_unescaped(one).casefold()) if _is_code(word)}
        found += [match.span() for match in words if match[0].casefold() in codes]
    kept, last = [], 0
    for start, end in _merged(found, text):
        if any(word not in _PROTOCOL for word in _WORD.findall(text[start:end].casefold())):
            kept += [text[last:start], "…"]
            last = end
    return "".join([*kept, text[last:]])


def _is_code(word: str) -> bool:
    return len(word) >= _MIN_CODE and any(character.isdigit() for character in word)


def _merged(found: list[tuple[int, int]], text: str) -> Iterator[tuple[int, int]]:
    """Ranges that overlap as one, each grown to whole words."""
    first, last = -1, -1
    for start, end in sorted(found):
        if first >= 0 and start <= last:
            last = max(last, end)
            continue
        if first >= 0:
            yield first, last
        first, last = start, end
        while first > 0 and text[first - 1].isalnum():
            first -= 1
    if first >= 0:
        yield first, last


def _letters(text: str) -> bytes:
    """Letters and digits alone, in one case, as UTF-8."""
    return _NO_WORD.sub("", _unescaped(text).casefold()).encode()


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _spelt(match[0]), text)


def _letters_with_places(text: str) -> tuple[bytes, list[tuple[int, int]]]:
    """As `_letters`, and [bytes] where in the text the character of each stands."""
    pieces: list[tuple[str, int, int]] = []
    place = 0
    for match in _ESCAPE.finditer(text):
        pieces += [(text[index], index, index + 1) for index in range(place, match.start())]
        pieces.append((_spelt(match[0]), *match.span()))
        place = match.end()
    pieces += [(text[index], index, index + 1) for index in range(place, len(text))]
    data, spans = bytearray(), []
    for piece, start, end in pieces:
        letters = _NO_WORD.sub("", piece.casefold()).encode()
        data += letters
        spans += [(start, end)] * len(letters)
    return bytes(data), spans


def _spelt(escape: str) -> str:
    """What an escape stands for."""
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[0] == "%":
        return urllib.parse.unquote(escape, errors="replace")
    code = escape.lstrip("\\")
    if escape[0] == "\\" and code[0] in "uUx":
        value = int(code[1:], 16)
        return chr(value) if value < 0x110000 and not 0xD800 <= value < 0xE000 else " "
    return " "


def _private_texts(body: JsonObject) -> list[str]:
    """Every text in a body but the names that the protocol knows."""
    return [text for field, value in body.items() if field not in _OPEN_FIELDS for text in _texts(value)]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _ids(body: JsonObject) -> list[str]:
    """Prompts of token ids, which are text to who has the vocabulary."""
    prompt = body.get("prompt")
    lists = [prompt, *(item for item in prompt if isinstance(item, list))] if isinstance(prompt, list) else []
    return [" ".join(str(item) for item in one if isinstance(item, int)) for one in lists]
