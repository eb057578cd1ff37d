"""What came back over HTTP, and what it means when it is not what the protocol promises.

Nothing from a prompt, a header or a key may leave through a message: servers like to quote what they were sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.foreign import as_object, as_text, at, is_object
from kvrelease.engines.redaction import MAX_READ, Redactor
from kvrelease.engines.retry import may_have_run
from kvrelease.errors import Refused, ServiceError, UnexpectedReply

# No server says why in more; parsing what is larger takes time that a hostile one chooses.
_MAX_ERROR_BYTES = 256 * 1024
_MAX_TITLE = 80  # characters that are shown
_TITLE = re.compile(rb"<title[^>]{0,200}>([^<]{1,1000})", re.IGNORECASE)
# What a media type says is known of these alone; a header may hold anything.
_MEDIA_TYPES = ("application/json", "application/octet-stream", "text/event-stream", "text/html", "text/plain")


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
        page_title: of a page for people, as far as it may be repeated; empty otherwise.
        events: of an event stream, each event.
        total_s: seconds from sending to the last byte, of the attempt that was answered.
        retries: how often it was sent again.
        lost: attempts before this one that the server may have carried out all the same.
        was_throttled: the server asked for fewer requests, in this answer or in one before it.
        retry_after_s: the longest wait that it asked for, seconds; None when it asked for none.
        sent_at: when the attempt that was answered was sent, Unix time in seconds; None where none was.
    """

    what: str
    status: int
    headers: dict[str, str]
    data: bytes = b""
    page_title: str = ""
    events: tuple[Event, ...] = ()
    total_s: float
    retries: int
    lost: int = 0
    was_throttled: bool = False
    retry_after_s: float | None = None
    sent_at: float | None = None

    @property
    def is_ok(self) -> bool:
        """A 2xx status."""
        return 200 <= self.status < 300


# Five times as fast as the standard library's, for four events of each of 100,000 requests; and strict.
_strict_json = msgspec.json.Decoder().decode


def parse_json(data: bytes, *, what: str, headers: Mapping[str, str], page_title: str = "") -> object:
    """The JSON in a body, whatever its content type says. NaN and Infinity are accepted: some servers write them.

    Args:
        data: the body.
        what: method and URL, for messages.
        headers: names in lower case.
        page_title: as in `Reply`.

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
                f"{what}: answered with an HTML page{_titled(page_title)}, where JSON was expected",
                hint="the URL leads to a web page (a proxy, a login or a dashboard), not to the engine's API",
            ) from error
        declared = _media_type(headers)
        raise UnexpectedReply(
            f"{what}: the answer ({len(data)} bytes, {declared}) is not valid JSON",
            hint="check that the URL is the engine's own API",
        ) from error


def parse_object(reply: Reply) -> JsonObject:
    """The JSON object in a reply.

    Raises:
        UnexpectedReply: as `parse_json`, or JSON that is no object.
    """
    value = parse_json(reply.data, what=reply.what, headers=reply.headers, page_title=reply.page_title)
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
    if len(reply.data) > _MAX_ERROR_BYTES:
        return ""
    try:
        payload = as_object(json.loads(reply.data))
    except (ValueError, RecursionError):
        return ""
    return message_in(payload)


def message_in(payload: JsonObject) -> str:
    """The message of an error object in any of the shapes that servers use; empty when there is none."""
    for value in (at(payload, "error", "message"), payload.get("error"), payload.get("message"), payload.get("detail")):
        if text := as_text(value):
            return text[: MAX_READ + 1]  # one more, so that a cut is known to be one
    return ""


def refusal(reply: Reply, *, redactor: Redactor, body: JsonObject | None = None) -> ServiceError:
    """The error that a reply with a status other than 2xx stands for."""
    asked = reply.headers.get("retry-after")
    has_run = reply.lost > 0 or may_have_run(reply.status, retry_after=asked)
    after = f" after {reply.retries} retries" if reply.retries else ""
    start = f"{reply.what}: answered {reply.status}{after}"
    if 300 <= reply.status < 400:
        target = redactor.clean(reply.headers.get("location", "").partition("?")[0], body=body)
        return UnexpectedReply(
            f"{start}, a redirect to {target or 'nowhere'}",
            hint="redirects are not followed: use the engine's own URL (a login page may stand in front of it)",
            may_have_run=has_run,
        )
    if reply.status in (401, 403):
        # Servers repeat keys here, masked at best: their words are left out.
        hint = (
            "pass the key by --api-key-env NAME; where it was passed, it is another server's, or has expired; the "
            "key is never shown"
        )
        return Refused(f"{start}: it wants other credentials", status=reply.status, hint=hint, may_have_run=has_run)
    if looks_like_html(reply.data, reply.headers):
        hint = "the URL leads to a web page or a gateway, not to the engine's API"
        return Refused(
            f"{start} with an HTML page{_titled(reply.page_title)}",
            status=reply.status,
            hint=hint,
            may_have_run=has_run,
        )
    words = redactor.clean(server_message(reply), body=body)
    return Refused(
        f"{start}{': ' + words if words else ''}",
        status=reply.status,
        hint=_HINTS.get(reply.status) or _hint_of(words),
        was_throttled=reply.was_throttled,
        retry_after_s=reply.retry_after_s,
        may_have_run=has_run,
    )


_HINTS = {
    404: "this server has no such route; check the base URL and --engine",
    429: "the server limits requests; lower --concurrency or raise --timeout",
    503: "the server is loading or overloaded; wait until it is ready",
}


def _hint_of(words: str) -> str | None:
    """The next step for what a server says of a request; None where it says nothing that we know.

    Source: vLLM 0.32.0, sampling_params.py: "Requested sample logprobs of 20, which is greater than max allowed: 5".
    """
    if "logprobs" in words:
        return (
            "record and verify ask for the 20 likeliest tokens: let the server tell as many (vLLM: --max-logprobs 20)"
        )
    return None


def title_of(data: bytes, headers: Mapping[str, str]) -> str:
    """The title of a page for people, empty for anything else. Not yet fit for printing: see `Redactor`."""
    found = _TITLE.search(data[:4096]) if looks_like_html(data, headers) else None
    return "" if found is None else found[1].decode("utf-8", "replace").strip()


def _titled(title: str) -> str:
    return f" ({title[:_MAX_TITLE]!r})" if title else ""


def _media_type(headers: Mapping[str, str]) -> str:
    declared = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not declared:
        return "no content type"
    return declared if declared in _MEDIA_TYPES else "another content type"
