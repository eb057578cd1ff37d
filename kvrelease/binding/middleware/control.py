"""The endpoints that a reload drives the gate with: `/kvrelease/state`, `hold`, `resume` and `close`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

from kvrelease.binding.middleware.exchange import Buffered, Receive, Refusal, Scope, Send, Upload, answer_json, header
from kvrelease.binding.middleware.gate import Gate, NotNow
from kvrelease.binding.middleware.namespaces import checked_namespaces
from kvrelease.binding.middleware.routes import CONTROL_PREFIX
from kvrelease.errors import UsageError

Document = dict[str, Any]

_MOST_BYTES = 1 << 20  # namespaces of thousands of adapters


class Control:
    """Answers for one gate, to whoever has the token."""

    def __init__(self, gate: Gate, *, token: str) -> None:
        self._gate = gate
        self._token = b"Bearer " + token.encode("ascii")
        self.api_servers: int | None = None
        self._acts: dict[tuple[str, str], Callable[[Document], Document]] = {
            ("GET", "state"): lambda _: {},
            ("POST", "hold"): self._hold,
            ("POST", "resume"): self._resume,
            ("POST", "close"): self._close,
        }

    async def answer(self, scope: Scope, receive: Receive, send: Send, *, route: str) -> None:
        """Answers one request."""
        given = header(scope, b"authorization") or b""
        if not secrets.compare_digest(given, self._token):
            await Refusal(401, "The control token is missing or another one.", "Unauthorized").answer(send)
            return
        with Upload(Buffered(_MOST_BYTES), most=_MOST_BYTES) as upload:
            body = await upload.read(scope, receive)
        if body is None:
            return
        found = body if isinstance(body, Refusal) else self._act(scope["method"], route, body)
        if isinstance(found, Refusal):
            await found.answer(send)
        else:
            await answer_json(send, 200, found)

    def _act(self, method: str, route: str, body: bytes) -> Document | Refusal:
        act = self._acts.get((method, route.removeprefix(CONTROL_PREFIX)))
        if act is None:
            return Refusal(404, "There is no such control endpoint.", "NotFoundError")
        try:
            return {**act(_document(body)), **self._state()}
        except UsageError as error:
            return Refusal(400, error.message, "BadRequestError")
        except NotNow as error:
            return Refusal(409, str(error), "ConflictError")

    def _hold(self, _: Document) -> Document:
        if self.api_servers is not None and self.api_servers > 1:
            raise NotNow(
                f"{self.api_servers} API servers share this address, and this one holds only its own requests: "
                "start the engine with --api-server-count 1"
            )
        return {"hold": self._gate.hold()}

    def _resume(self, document: Document) -> Document:
        namespaces = checked_namespaces(document.get("namespace"), document.get("namespaces", {}), where="resume")
        self._gate.resume(_text(document, "hold"), namespaces)
        return {}

    def _close(self, document: Document) -> Document:
        self._gate.close(_text(document, "hold"), _text(document, "reason"))
        return {}

    def _state(self) -> Document:
        gate = self._gate
        return {
            "state": gate.state.value,
            "reason": gate.reason,
            "namespace": gate.namespaces.default,
            "namespaces": dict(gate.namespaces.by_model),
            "in_flight": gate.in_flight,
            "waiting": gate.waiting,
            "held_s": gate.held_s,
            "hold_s": gate.hold_s,
            "api_servers": self.api_servers,
        }


def _document(body: bytes) -> Document:
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError("the body is not JSON") from error
    if not isinstance(document, dict):
        raise UsageError("the body is not a JSON object")
    return document


def _text(document: Document, name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name!r} is no text")
    return value
