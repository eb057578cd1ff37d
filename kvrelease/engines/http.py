"""One server over HTTP: deadlines, retries, size limits; every exception of httpx is translated here, once."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx
import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.config import DEFAULT_TIMEOUT_S
from kvrelease.engines.address import Address
from kvrelease.engines.base import RankPin
from kvrelease.engines.connections import CONNECT_S, Connections
from kvrelease.engines.foreign import as_list, as_object, is_object
from kvrelease.engines.redaction import Redactor
from kvrelease.engines.replies import Event, Reply, parse_json, parse_object, refusal, title_of
from kvrelease.engines.retry import BACKOFF_S, MAX_RETRIES, Attempts
from kvrelease.engines.sse import EventReader
from kvrelease.errors import InputError, ServiceError, ServiceTimeout, UnexpectedReply, Unreachable, UsageError

logger = logging.getLogger(__name__)

# Versions, settings and counters come from memory, in milliseconds on an idle engine; where a gateway swallows such a
# route, or an exporter hangs, not every request may cost the whole deadline.
OPTIONAL_S = 5.0
# vLLM and SGLang read it on the completion routes; a router in front of them may, or may drop it.
# Source: vLLM 0.32.0, entrypoints/generate/base/serving.py, lines 220-231; SGLang, entrypoints/openai/serving_base.py.
RANK_HEADER = "x-data-parallel-rank"
# In place of a status, where an optional route gave no answer in time. Like 404 it is no 2xx.
NO_ANSWER = 0
# 20 log-probabilities for each of 4,000 tokens are about 8 MB of JSON.
MAX_REPLY_BYTES = 64 * 1024 * 1024
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")


class _Broken(Exception):
    """A stream ended before its end was announced."""


class Transport:
    """Exchanges with one server. Opened with `async with`; whoever opens closes.

    Attributes:
        address: where the server is.
        redactor: cleans what the server wrote before it is repeated.
        rank: the data-parallel rank that requests are for; None for none.
    """

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        max_retries: int = MAX_RETRIES,
        backoff_s: float = BACKOFF_S,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        connector: httpx.AsyncBaseTransport | None = None,
        connections: Connections | None = None,
        pin: RankPin | None = None,
    ) -> None:
        """Prepares exchanges; no connection is made yet.

        Args:
            address: where the server is.
            timeout_s: deadline of one call, its retries and waits included.
            headers: sent with every request, never logged.
            api_key: sent as a bearer token, never logged.
            max_retries: of one call.
            backoff_s: the first wait; each further one is twice as long.
            max_reply_bytes: a larger answer is refused.
            connector: replaces the network, in tests.
            connections: to the same origin, shared with other clients; None for its own.
            pin: the data-parallel rank that requests are for; None for none.

        Raises:
            UsageError: a time-out that is none, a header or a key that HTTP cannot carry.
        """
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise UsageError(f"a time-out is a number of seconds above zero, not {timeout_s}")
        self.address = address
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._backoff_s = backoff_s
        self._max_reply_bytes = max_reply_bytes
        self._silent: set[str] = set()
        sent = _checked_headers(headers or {}, api_key=api_key)
        self._given, self._pin = sent, pin
        self.redactor = Redactor([*sent.values(), *(value.split()[-1] for value in sent.values() if value.split())])
        # Behind a name there are many addresses; each is asked for the name, as users do.
        named = {} if address.host_header is None else {"host": address.host_header}
        pinned = {} if pin is None else {RANK_HEADER: str(pin.routed_as)}
        self._sent = named | sent | pinned
        self.rank = None if pin is None else pin.rank
        self._extensions = {} if address.name is None else {"sni_hostname": address.name}
        self._connections = (connections or Connections(address, connector=connector)).borrow()
        self._was_reached = False

    @property
    def url(self) -> str:
        """The base URL, as messages show it."""
        return self.address.url

    def beside(self, headers: Mapping[str, str], *, timeout_s: float | None = None) -> Transport:
        """Exchanges with the same server over the same connections; whoever asks for them closes them.

        Args:
            headers: sent as well, or in place of those of the same name; never logged.
            timeout_s: deadline of one call; None for the same.

        Raises:
            UsageError: a header that HTTP cannot carry.
        """
        return Transport(
            self.address,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
            headers={**self._given, **headers},
            max_retries=self._max_retries,
            backoff_s=self._backoff_s,
            max_reply_bytes=self._max_reply_bytes,
            connections=self._connections,
            pin=self._pin,
        )

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connections.aclose()

    async def get(self, path: str, *, is_optional: bool = False, within_s: float | None = None) -> Reply:
        """The answer to a GET, of any status.

        Args:
            path: with its query.
            is_optional: the server need not have this route: an error is not retried, and where no answer comes in
                time, the reply has status `NO_ANSWER`, at once when it is asked again.
            within_s: deadline of an optional route, None for `OPTIONAL_S`; never longer than that of any call.

        Raises:
            ServiceError: nobody answers at all, or no answer comes in time where the route is not optional.
        """
        if not is_optional:
            return await self._exchange("GET", path)
        what = self._what("GET", path)
        if path not in self._silent:
            deadline_s = min(OPTIONAL_S if within_s is None else within_s, self._timeout_s)
            try:
                return await self._exchange("GET", path, retries_statuses=False, timeout_s=deadline_s)
            except ServiceTimeout:
                self._silent.add(path)
                logger.warning(
                    "%s: no answer within %g s; what it would tell is not known, and it is not asked again",
                    what,
                    deadline_s,
                )
        return Reply(what=what, status=NO_ANSWER, headers={}, total_s=0.0, retries=0)

    async def post(self, path: str, body: JsonObject, *, is_repeatable: bool = True) -> Reply:
        """The answer to a POST, of any status. One that changes the server is sent once (`is_repeatable=False`)."""
        return await self._exchange(
            "POST", path, body=body, retries_statuses=is_repeatable, is_repeatable=is_repeatable
        )

    async def stream(self, path: str, body: JsonObject) -> Reply:
        """The answer to a POST that asks for an event stream; without `events` where the server sent none."""
        return await self._exchange("POST", path, body=body, streams=True)

    async def get_object(self, path: str) -> JsonObject:
        """The JSON object at a path.

        Raises:
            ServiceError: there is none.
        """
        reply = await self.get(path)
        if not reply.is_ok:
            raise refusal(reply, redactor=self.redactor)
        return parse_object(reply)

    async def find_object(self, path: str, *, within_s: float | None = None) -> JsonObject | None:
        """The JSON object at a path that the server need not have; None when it gives no such answer in time.

        Args:
            path: with its query.
            within_s: as in `get`.

        Raises:
            ServiceError: nobody answers at all.
        """
        reply = await self.get(path, is_optional=True, within_s=within_s)
        if not reply.is_ok:
            return None
        try:
            return parse_object(reply)
        except UnexpectedReply:
            return None

    async def post_object(self, path: str, body: JsonObject) -> JsonObject:
        """The JSON object that answers a POST.

        Raises:
            ServiceError: there is none.
        """
        reply = await self.post(path, body)
        if not reply.is_ok:
            raise refusal(reply, redactor=self.redactor, body=body)
        return parse_object(reply)

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        streams: bool = False,
        retries_statuses: bool = True,
        is_repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> Reply:
        what = self._what(method, path)
        content = None if body is None else _encoded(body, what=what)
        within_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + within_s
        attempts = Attempts(most=self._max_retries, backoff_s=self._backoff_s)
        while True:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    reply = await self._attempt(what, method, path, content=content, streams=streams, attempts=attempts)
            except TimeoutError as error:
                raise ServiceTimeout(
                    f"{what}: no complete answer within {within_s:g} s ({attempts.retries} retries)",
                    hint="raise --timeout, or look at the server's queue",
                ) from error
            except (httpx.HTTPError, _Broken) as error:
                fault, may_repeat = self._translated(error, what=what, retries=attempts.retries)
                pause = attempts.after_break(was_sent=fault.may_have_run) if may_repeat and is_repeatable else None
                if pause is None or time.monotonic() + pause >= deadline:
                    fault.may_have_run = fault.may_have_run or attempts.lost > 0
                    raise fault from error
            else:
                asked = reply.headers.get("retry-after")
                pause = attempts.after_answer(reply.status, reply.data, retry_after=asked) if retries_statuses else None
                if pause is None or time.monotonic() + pause >= deadline:
                    return msgspec.structs.replace(
                        reply,
                        page_title=self.redactor.clean(title_of(reply.data, reply.headers), body=body),
                        lost=attempts.lost,
                        was_throttled=attempts.was_throttled,
                        retry_after_s=attempts.retry_after_s,
                    )
            attempts.retries += 1
            logger.debug("%s: retry %d in %.2f s", what, attempts.retries, pause)
            await asyncio.sleep(pause)

    def _what(self, method: str, path: str) -> str:
        """How messages name a call; a query may hold a token."""
        return f"{method} {self.url}{path.partition('?')[0]}"

    async def _attempt(
        self, what: str, method: str, path: str, *, content: bytes | None, streams: bool, attempts: Attempts
    ) -> Reply:
        headers = self._sent if content is None else {"content-type": "application/json"} | self._sent
        start, sent_at = time.perf_counter(), time.time()
        async with self._connections.client.stream(
            method, self.url + path, content=content, headers=headers, extensions=self._extensions
        ) as response:
            self._was_reached = True
            raw, size, reader, events = bytearray(), 0, EventReader(), list[Event]()
            is_stream = streams and response.is_success
            names = {name.lower(): value for name, value in response.headers.items()}
            async for chunk in response.aiter_bytes():
                size += len(chunk)
                if size > self._max_reply_bytes:
                    raise UnexpectedReply(f"{what}: the answer is larger than {self._max_reply_bytes} bytes")
                at_s = time.perf_counter() - start
                if is_stream:
                    events += [_event(data, what=what, at_s=at_s) for data in reader.feed(chunk)]
                # Of a stream that is understood, only its events are kept.
                if events:
                    raw.clear()
                else:
                    raw += chunk
            total_s = time.perf_counter() - start
            if is_stream:
                events += _last_events(reader, what=what, at_s=total_s)
            if events and not (reader.is_done or any(_ends(event.payload) for event in events)):
                raise _Broken
            if reader.is_done and not events:
                raise UnexpectedReply(f"{what}: the stream ended without an event")
            data = b"" if events else bytes(raw)
            logger.debug("%s: %d in %.3f s", what, response.status_code, total_s)
            return Reply(
                what=what,
                status=response.status_code,
                headers=names,
                data=data,
                events=tuple(events),
                total_s=total_s,
                retries=attempts.retries,
                sent_at=sent_at,
            )

    def _translated(self, error: Exception, *, what: str, retries: int) -> tuple[ServiceError, bool]:
        """The error of ours for one of httpx, and whether to try again."""
        after = f" ({retries} retries)" if retries else ""
        match error:
            case httpx.ConnectTimeout():
                hint = "check the address, the network and firewalls"
                # Where nobody ever answered, a second wait as long tells nothing.
                fault = Unreachable(
                    f"{what}: no connection within {CONNECT_S:g} s{after}", hint=hint, may_have_run=False
                )
                return fault, self._was_reached
            case httpx.ConnectError() if "CERTIFICATE" in str(error).upper() or "SSL" in str(error).upper():
                hint = "check the scheme (http or https), and SSL_CERT_FILE for a private authority"
                return Unreachable(f"{what}: TLS failed: {_reason(error)}", hint=hint, may_have_run=False), False
            case httpx.ConnectError() | httpx.ProxyError():
                hint = "is the server running, and is this its host and port?"
                reason = f"{what}: cannot connect{after}: {_reason(error)}"
                return Unreachable(reason, hint=hint, may_have_run=False), True
            case _Broken() | httpx.NetworkError() | httpx.RemoteProtocolError():
                hint = "the server may have crashed or restarted; see its log"
                return Unreachable(
                    f"{what}: the connection broke before the answer was complete{after}", hint=hint
                ), True
            case httpx.TimeoutException():
                return ServiceTimeout(f"{what}: no answer in time{after}"), False
            case _:
                return UnexpectedReply(f"{what}: the answer is not proper HTTP: {type(error).__name__}"), False


def _event(data: str, *, what: str, at_s: float) -> Event:
    return Event(payload=parse_json(data.encode(), what=f"{what} (event of the stream)", headers={}), at_s=at_s)


def _last_events(reader: EventReader, *, what: str, at_s: float) -> list[Event]:
    """The events that no blank line ended; one that was cut short means that the connection broke."""
    try:
        return [_event(data, what=what, at_s=at_s) for data in reader.close()]
    except UnexpectedReply as error:
        raise _Broken from error


def _ends(payload: object) -> bool:
    """Whether an event says that the generation is finished: some servers send no `[DONE]` after it."""
    if not is_object(payload):
        return False
    choices = [as_object(choice) for choice in as_list(payload.get("choices"))]
    return "error" in payload or any(choice.get("finish_reason") for choice in choices)


def _encoded(body: JsonObject, *, what: str) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InputError(f"{what}: the request cannot be written as JSON ({type(error).__name__})") from error


def _checked_headers(headers: Mapping[str, str], *, api_key: str | None) -> dict[str, str]:
    sent = {name.lower(): value.strip() for name, value in headers.items()}
    if api_key is not None:
        if "authorization" in sent:
            raise UsageError("both an API key and an authorization header are given", hint="drop one of them")
        sent["authorization"] = f"Bearer {api_key.strip()}"
    for name, value in sent.items():
        if not _HEADER_NAME.match(name):
            raise UsageError("a header's name has characters that HTTP cannot carry (not shown here)")
        if not _HEADER_VALUE.match(value):
            raise UsageError(f"the value of the header {name!r} has characters that HTTP cannot carry (not shown here)")
    return sent


def _reason(error: Exception) -> str:
    """The innermost cause in the operating system's words, without addresses of objects."""
    return str(error).strip() or type(error).__name__
