"""A real uvicorn on loopback, before an application that tells what reached it and streams when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn

from kvrelease.binding.middleware import Bound

NAMESPACE = "kv1-abcdefghijklmnopqrstuvwxyz234567-0a1b2c3d-e0"
NEXT = "kv1-abcdefghijklmnopqrstuvwxyz234567-0a1b2c3d-e1"
ADAPTER = "kv1-bcdefghijklmnopqrstuvwxyz234567a-0a1b2c3d-e0"
TOKEN = "a token of these tests"
_PATIENCE_S = 20


class Echo:
    """An engine's application: what it got comes back; a body with `"wait": true` is answered when somebody says go.

    Attributes:
        seen: method, path and body of each request that reached it, in order.
        left: how many clients went away while they waited.
    """

    def __init__(self, *, api_server_count: object = None) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.left = 0
        self.go = asyncio.Event()
        self.arrived = threading.Semaphore(0)
        self.started = False
        self.routes: tuple[Any, ...] = ()
        self.state = SimpleNamespace(args=SimpleNamespace(api_server_count=api_server_count))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self.started = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise AssertionError(scope["type"])

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.seen.append((scope["method"], scope["path"], body))
        self.arrived.release()
        headers = [(b"x-received-" + name, value) for name, value in scope["headers"]]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if b'"wait": true' in body:
            await send({"type": "http.response.body", "body": b"first ", "more_body": True})
            going, leaving = asyncio.ensure_future(self.go.wait()), asyncio.ensure_future(receive())
            done, pending = await asyncio.wait((going, leaving), return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            if going not in done:
                self.left += 1
                return
        await send({"type": "http.response.body", "body": body})


class Served:
    """A server in a thread of its own, with a client that is kept open."""

    def __init__(self, app: Any, server: uvicorn.Server, port: int) -> None:
        self.app = app
        self.port = port
        self.server = server
        self.loop: asyncio.AbstractEventLoop | None = None
        self.exit_code: int | str | None = None
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)

    def send(self, document: object, *, route: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        return self.client.post(route, content=body, headers=headers, **options)

    def control(self, name: str, **fields: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {TOKEN}"}
        if name == "state":
            return self.client.get("/kvrelease/state", headers=headers)
        return self.client.post(f"/kvrelease/{name}", json=fields, headers=headers)

    def state(self) -> dict[str, Any]:
        document: dict[str, Any] = self.control("state").raise_for_status().json()
        return document

    def until(self, **expected: object) -> dict[str, Any]:
        """The state, as soon as it says this."""
        end = time.monotonic() + _PATIENCE_S
        while not all((state := self.state())[name] == value for name, value in expected.items()):
            assert time.monotonic() < end, f"{state} never became {expected}"
            threading.Event().wait(0.005)
        return state

    def go(self) -> None:
        """Who waits in the application waits no more."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.app.go.set)


@contextlib.contextmanager
def served(app: Any = None, *, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Serves an application behind the middleware, with a namespace and a control token unless told otherwise."""
    echo = Echo() if app is None else app
    given = {"KVRELEASE_NAMESPACE": NAMESPACE, "KVRELEASE_CONTROL_TOKEN": TOKEN, **(environment or {})}
    bound = Bound(echo, given)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        # Starlette says so itself, before any middleware.
        await bound({**scope, "app": echo}, receive, send)

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_config=None, timeout_graceful_shutdown=1))
    found = Served(echo, server, listener.getsockname()[1])

    async def serve() -> None:
        found.loop = asyncio.get_running_loop()
        await server.serve(sockets=[listener])

    def run() -> None:
        try:
            asyncio.run(serve())
        except SystemExit as end:
            found.exit_code = end.code

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            threading.Event().wait(0.005)
        yield found
    finally:
        found.client.close()
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()
