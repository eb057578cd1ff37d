"""Reading a request's body and answering one, in the words of ASGI.

Source: https://asgi.readthedocs.io/en/latest/specs/www.html, HTTP spec version 2.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Nobody knows when weights are loaded; often enough that a client waits little, and no storm.
_RETRY_AFTER_S = b"5"


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that name, which is in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


class Buffered:
    """Bytes of all bodies that were read and not handed over yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = 0

    def take(self, count: int) -> bool:
        """Whether there is room for so many more, which are counted then."""
        if self._now + count > self._most:
            return False
        self._now += count
        return True

    def give_back(self, count: int) -> None:
        """So many were handed over, or thrown away."""
        self._now -= count


class Upload:
    """The body of one request, and what it takes of the buffers."""

    def __init__(self, buffered: Buffered, *, most: int) -> None:
        self._buffered = buffered
        self._most = most
        self._taken = 0

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """The body is somebody else's now."""
        self._buffered.give_back(self._taken)
        self._taken = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes | Refusal | None:
        """The whole body; None when the client went away before its end."""
        length = header(scope, b"content-length")
        if length is not None and length.isdigit() and int(length) > self._most:
            return self._too_large()
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part: bytes = message.get("body", b"")
            if self._taken + len(part) > self._most:
                return self._too_large()
            if not self._buffered.take(len(part)):
                return Refusal(503, "Too many request bodies are waiting.", "ServiceUnavailableError")
            self._taken += len(part)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> Refusal:
        return Refusal(413, f"The body is larger than {self._most} bytes.", "RequestEntityTooLargeError")


class Refusal:
    """An answer of the middleware's own, in the form of vLLM's errors (ErrorResponse, serve/engine/protocol.py)."""

    def __init__(self, status: int, message: str, kind: str, *, param: str | None = None) -> None:
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": status}

    async def answer(self, send: Send) -> None:
        """Sends it."""
        headers = {b"retry-after": _RETRY_AFTER_S} if self.status == 503 else {}
        await answer_json(send, self.status, {"error": self.error}, headers)


async def answer_json(
    send: Send, status: int, document: Mapping[str, object], headers: Mapping[bytes, bytes] | None = None
) -> None:
    """Sends one JSON document as the response."""
    body = json.dumps(document).encode()
    fixed = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
    await send({"type": "http.response.start", "status": status, "headers": list({**fixed, **(headers or {})}.items())})
    await send({"type": "http.response.body", "body": body})


def with_body(scope: Scope, body: bytes) -> Scope:
    """The scope of a request whose body has another length; one sent in chunks told none."""
    length = str(len(body)).encode()
    headers = [(key, length if key == b"content-length" else value) for key, value in scope["headers"]]
    return {**scope, "headers": headers}


def replaying(body: bytes, receive: Receive) -> Receive:
    """A `receive` that tells this body first, and whatever comes after it as it comes."""
    is_told = False

    async def replay() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def announcing(namespace: str, send: Send) -> Send:
    """A `send` that adds the header `kvrelease-namespace`, and lets the rest through as it comes."""
    told = (b"kvrelease-namespace", namespace.encode("ascii"))

    async def announce(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), told]}
        await send(message)

    return announce
