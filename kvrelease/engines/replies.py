"""What came back over HTTP, and what it means when it is not what the protocol promises.

Nothing from a prompt, a header or a key may leave through a message: servers like to quote what they were sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.foreign import as_object, as_text, at, is_object
from kvrelease.errors import Refused, ServiceError, UnexpectedReply

MAX_QUOTED = 300  # characters of a server's own message that ours repeats
# Shorter texts are roles, types and single words, which appear in honest messages by chance.
_MIN_PRIVATE = 8
_MIN_SECRET = 4
# Fields of a body that carry what users wrote.
_PRIVATE_FIELDS = ("messages", "prompt", "suffix", "tools", "functions", "documents", "chat_template", "content")
_TITLE = re.compile(rb"<title[^>]*>\s*([^<]{1,80})", re.IGNORECASE)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream.

    Attributes:
        payload: its JSON.
        at_s: seconds from sending the request to its arrival.
    """

    payload: object
    at_s: float


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of any status.

    Attributes:
        what: method and URL, for messages.
        status: HTTP status; 0 (`http.NO_ANSWER`) where an optional route did not answer in time.
        headers: names in lower case.
        data: the whole body; of an event stream that was understood, empty.
        events: of an event stream, each event.
        total_s: seconds from sending to the last byte, of the attempt that was answered.
        retries: how often it was sent again.
        was_throttled: the server asked for fewer requests, in this answer or in one before it.
        retry_after_s: the longest wait that it asked for, seconds; None when it asked for none.
    """

    what: str
    status: int
    headers: dict[str, str]
    data: bytes = b""
    events: tuple[Event, ...] = ()
    total_s: float
    retries: int
    was_throttled: bool = False
    retry_after_s: float | None = None

    @property
    def is_ok(self) -> bool:
        """A 2xx status."""
        return 200 <= self.status < 300


# Five times as fast as the standard library's, for four events of each of 100,000 requests; and strict.
_strict_json = msgspec.json.Decoder().decode


def parse_json(data: bytes, *, what: str, headers: Mapping[str, str]) -> object:
    """The JSON in a body, whatever its content type says. NaN and Infinity are accepted: some servers write them.

    Raises:
        UnexpectedReply: an HTML page, nothing, or no JSON.
    """
    if not data.strip():
        raise UnexpectedReply(f"{what}: the answer is empty, where JSON was expected")
    try:
        return _strict_json(data)
    except (msgspec.MsgspecError, RecursionError):
        pass  # NaN, a byte order mark, half of a surrogate pair: what is not strict and may be JSON all the same
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        if looks_like_html(data, headers):
            raise UnexpectedReply(
                f"{what}: answered with an HTML page{_title(data)}, where JSON was expected",
                hint="the URL leads to a web page (a proxy, a login or a dashboard), not to the engine's API",
            ) from error
        declared = headers.get("content-type") or "no content type"
        raise UnexpectedReply(
            f"{what}: the answer ({len(data)} bytes, {declared}) is not valid JSON",
            hint="check that the URL is the engine's own API",
        ) from error


def parse_object(reply: Reply) -> JsonObject:
    """The JSON object in a reply.

    Raises:
        UnexpectedReply: as `parse_json`, or JSON that is no object.
    """
    value = parse_json(reply.data, what=reply.what, headers=reply.headers)
    if not is_object(value):
        raise UnexpectedReply(f"{reply.what}: the answer is JSON, but no object")
    return value


def looks_like_html(data: bytes, headers: Mapping[str, str]) -> bool:
    """Whether a body is a page for people. The declared type alone does not decide, it lies in both directions."""
    start = data.lstrip()[:64].lower()
    return start.startswith((b"<!doctype", b"<html", b"<head", b"<body", b"<?xml")) or (
        start.startswith(b"<") and "html" in headers.get("content-type", "")
    )


def server_message(reply: Reply) -> str:
    """The server's own words about an error, empty when it has none. Not yet fit for printing: see `Redactor`."""
    try:
        payload = as_object(json.loads(reply.data))
    except (ValueError, RecursionError):
        return ""
    return message_in(payload)


def message_in(payload: JsonObject) -> str:
    """The message of an error object in any of the shapes that servers use; empty when there is none."""
    for value in (at(payload, "error", "message"), payload.get("error"), payload.get("message"), payload.get("detail")):
        if text := as_text(value):
            return text
    return ""


class Redactor:
    """Takes secrets and users' texts out of what a server wrote."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(sorted((text for text in secrets if len(text) >= _MIN_SECRET), key=len, reverse=True))

    def clean(self, text: str, *, body: JsonObject | None) -> str:
        """The text without secrets, without anything of the body that users wrote, on one line, not too long."""
        # Validators quote their input behind such a key, sometimes shortened, so that no comparison finds it.
        text = re.split(r"""['"]?\binput(?:_value)?['"]?\s*[:=]""", text, maxsplit=1)[0]
        private = [] if body is None else list(_private_texts({key: body.get(key) for key in _PRIVATE_FIELDS}))
        for secret in (*self._secrets, *sorted(private, key=len, reverse=True)):
            for spelling in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}:
                text = text.replace(spelling, "…")
        text = " ".join(text.split())
        return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…"


def refusal(reply: Reply, *, redactor: Redactor, body: JsonObject | None = None) -> ServiceError:
    """The error that a reply with a status other than 2xx stands for."""
    after = f" after {reply.retries} retries" if reply.retries else ""
    start = f"{reply.what}: answered {reply.status}{after}"
    if 300 <= reply.status < 400:
        target = redactor.clean(reply.headers.get("location", "").partition("?")[0], body=body)
        return UnexpectedReply(
            f"{start}, a redirect to {target or 'nowhere'}",
            hint="redirects are not followed: use the engine's own URL (a login page may stand in front of it)",
        )
    if reply.status in (401, 403):
        # Servers repeat keys here, masked at best: their words are left out.
        hint = "pass the key by --api-key-env NAME; the key is never shown"
        return Refused(f"{start}: it wants other credentials", status=reply.status, hint=hint)
    if looks_like_html(reply.data, reply.headers):
        hint = "the URL leads to a web page or a gateway, not to the engine's API"
        return Refused(f"{start} with an HTML page{_title(reply.data)}", status=reply.status, hint=hint)
    words = redactor.clean(server_message(reply), body=body)
    return Refused(
        f"{start}{': ' + words if words else ''}",
        status=reply.status,
        hint=_HINTS.get(reply.status),
        was_throttled=reply.was_throttled,
        retry_after_s=reply.retry_after_s,
    )


_HINTS = {
    404: "this server has no such route; check the base URL and --engine",
    429: "the server limits requests; lower --concurrency or raise --timeout",
    503: "the server is loading or overloaded; wait until it is ready",
}


def _title(data: bytes) -> str:
    found = _TITLE.search(data[:4096])
    return f" ({' '.join(found[1].decode('utf-8', 'replace').split())!r})" if found else ""


def _private_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= _MIN_PRIVATE:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _private_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _private_texts(item)
