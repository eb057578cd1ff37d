"""A gateway of its own in front of an engine, which keeps answers and gives them back, as LiteLLM or a CDN does.

It names each answer (`id`, `created`), as gateways do, and gives a kept one back with everything as it was.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from kvrelease.engines.base import EngineKind
from tests.engines.scripted import ScriptedEngine
from tests.http_servers import ManyClientsServer, QuickHandler

Json = dict[str, Any]


class CachingGateway:
    """The URL of a gateway before `engine`. Use as a context manager.

    Args:
        engine: what is asked where nothing is kept.
        keeps: whether it keeps answers at all.
        passes_over: fields of a body that make no other entry of the cache.
        is_semantic: similar prompts get one answer: those of one system prompt.
        says: headers of a kept answer.
    """

    def __init__(
        self,
        engine: ScriptedEngine,
        *,
        keeps: bool = True,
        passes_over: tuple[str, ...] = (),
        is_semantic: bool = False,
        says: Mapping[str, str] | None = None,
    ) -> None:
        self.kind: EngineKind = engine.kind
        self.kept: dict[str, tuple[bytes, str]] = {}
        self.answered = 0
        self._engine = engine
        self._keeps = keeps
        self._passes_over = passes_over
        self._is_semantic = is_semantic
        self._says = dict(says or {})
        self._client = httpx.Client(timeout=5, verify=False)
        self._lock = threading.Lock()
        self._server = ManyClientsServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"gateway": self}))

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        self._client.close()

    def answer(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes, str, dict[str, str]]:
        """Status, body, content type and further headers."""
        is_generation = path in ("/v1/chat/completions", "/v1/completions") and data is not None
        key = self._key(json.loads(data)) if is_generation and data is not None else None
        if key is not None and self._keeps and key in self.kept:
            body, kind = self.kept[key]
            return 200, body, kind, self._says
        reply = self._client.request(method, self._engine.url + path, content=data)
        kind, body = reply.headers.get("content-type", "text/plain"), reply.content
        if key is not None and reply.status_code == 200:
            body = self._named(body)
            self.kept[key] = (body, kind)
        return reply.status_code, body, kind, {}

    def _key(self, body: Json) -> str:
        if self._is_semantic:
            return str(body["messages"][0]["content"])
        return json.dumps({name: value for name, value in body.items() if name not in self._passes_over})

    def _named(self, data: bytes) -> bytes:
        with self._lock:
            self.answered += 1
            mark = {"id": f"chatcmpl-{self.answered}", "created": int(time.time())}
        if data.startswith(b"{"):
            return json.dumps(json.loads(data) | mark).encode()
        return b"\n".join(
            b"data: " + json.dumps(json.loads(line[6:]) | mark).encode() if line.startswith(b"data: {") else line
            for line in data.split(b"\n")
        )


class _Handler(QuickHandler):
    gateway: CachingGateway

    def do_GET(self) -> None:
        self._answer("GET", None)

    def do_POST(self) -> None:
        self._answer("POST", self.rfile.read(int(self.headers.get("content-length", 0))))

    def _answer(self, method: str, data: bytes | None) -> None:
        status, body, kind, more = self.gateway.answer(method, self.path, data)
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
