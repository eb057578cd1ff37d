"""A gateway in front of a real engine that withholds what a gateway may withhold: usage details, `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx

from tests.http_servers import ManyClientsServer


@contextmanager
def gateway(upstream: str, *, hides_metrics: bool) -> Iterator[str]:
    """The URL of a gateway that nulls `prompt_tokens_details` in every answer; streams pass as one piece."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            if hides_metrics and self.path == "/metrics":
                self._answer(404, b"not found", "text/plain")
            else:
                self._forward("GET", None)

        def do_POST(self) -> None:
            self._forward("POST", self.rfile.read(int(self.headers.get("content-length", 0))))

        def _forward(self, method: str, body: bytes | None) -> None:
            reply = client.request(
                method, upstream + self.path, content=body, headers={"content-type": "application/json"}
            )
            kind = reply.headers.get("content-type", "application/octet-stream")
            self._answer(reply.status_code, _without_details(reply.content, kind), kind)

        def _answer(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with httpx.Client(timeout=120) as client:
        server = ManyClientsServer(("127.0.0.1", 0), Handler)
        server.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.stop()


def _without_details(data: bytes, kind: str) -> bytes:
    if kind.startswith("application/json"):
        return json.dumps(_stripped(json.loads(data))).encode()
    if kind.startswith("text/event-stream"):
        return b"\n".join(_stripped_event(line) for line in data.split(b"\n"))
    return data


def _stripped_event(line: bytes) -> bytes:
    payload = line.removeprefix(b"data: ")
    if payload == line or payload.strip() == b"[DONE]":
        return line
    return b"data: " + json.dumps(_stripped(json.loads(payload))).encode()


def _stripped(document: Any) -> Any:
    if isinstance(document, dict) and isinstance(document.get("usage"), dict):
        document["usage"]["prompt_tokens_details"] = None
    return document
