"""The middleware itself: what becomes of each request, from arrival to the end of its response."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from kvrelease.binding.middleware.body import NotBound, read_fields, with_salt
from kvrelease.binding.middleware.control import Control
from kvrelease.binding.middleware.declared import api_servers, declared_salts
from kvrelease.binding.middleware.exchange import (
    App,
    Buffered,
    Receive,
    Refusal,
    Scope,
    Send,
    Upload,
    announcing,
    header,
    replaying,
    with_body,
)
from kvrelease.binding.middleware.gate import Gate, TurnedAway
from kvrelease.binding.middleware.routes import Routes, Treatment, route_of
from kvrelease.binding.middleware.settings import UNSALTED_ROUTES, Settings, read_settings
from kvrelease.binding.tenant_salt import bound_salt
from kvrelease.errors import UsageError

logger = logging.getLogger(__name__)

# SageMaker's header, whose adapter takes the place of the body's model on its route alone.
_ADAPTER_ROUTE, _ADAPTER_HEADER = "/invocations", b"x-amzn-sagemaker-adapter-identifier"

# The name of a hold: its holder's own requests pass.
HOLD_HEADER = b"kvrelease-hold"


class Bound:
    """Binds an engine's requests to the namespaces of its environment.

    An environment without a namespace does not raise: servers take an exception here for an application without a
    lifespan, and serve on. Starting up fails instead, in ASGI's own words, and no request is let through.

    Args:
        app: the engine's application.
        environment: of its process.
    """

    def __init__(self, app: App, environment: Mapping[str, str] = os.environ) -> None:
        self._app = app
        self._bound: _Requests | None = None
        self._fault = ""
        try:
            self._bound = _Requests(app, read_settings(environment))
        except UsageError as error:
            self._fault = f"kvrelease: {error.message}" + (f"; {error.hint}" if error.hint else "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if self._bound is None:
            await self._refuse_all(scope, receive, send)
        elif scope["type"] == "http":
            await self._bound.http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._bound.web_socket(scope, receive, send)
        else:
            self._bound.learn(scope)
            await self._app(scope, receive, send)

    async def _refuse_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            logger.critical("%s", self._fault)
            await send({"type": "lifespan.startup.failed", "message": self._fault})
        elif scope["type"] == "websocket":
            await _refuse_socket(receive, send)
        else:
            await Refusal(503, self._fault, "ServiceUnavailableError").answer(send)


class _Requests:
    """What becomes of the requests of an engine with a namespace."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._gate = Gate(settings.namespaces, hold_s=settings.hold_s)
        self._buffered = Buffered(settings.buffer_bytes)
        self._routes = Routes(unsalted=settings.unsalted_routes, has_control=settings.control_token is not None)
        self._control = None
        if settings.control_token is not None:
            self._control = Control(self._gate, token=settings.control_token)
        self._has_learned = False

    def learn(self, scope: Scope) -> None:
        """Asks the application, once, what it says of its routes."""
        self._has_learned = True
        app = scope.get("app")
        for route in self._routes.learn(declared_salts(app)):
            logger.warning("kvrelease: this engine takes no salt on %s, so requests to it are refused", route)
        for route in sorted(self._settings.unsalted_routes):
            logger.warning("kvrelease: requests to %s are not bound to a namespace (%s)", route, UNSALTED_ROUTES)
        if self._control is not None:
            self._control.api_servers = api_servers(app)
        logger.info("kvrelease: requests are bound to %s", self._gate.namespaces.default)

    async def http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if not self._has_learned:
            self.learn(scope)
        route = route_of(scope)
        match self._routes.treatment(scope, route):
            case Treatment.BIND:
                await self._bind(scope, receive, send, route=route)
            case Treatment.HARMLESS:
                await self._app(scope, receive, send)
            case Treatment.UNSALTED:
                await self._pass_unsalted(scope, receive, send)
            case Treatment.CONTROL:
                assert self._control is not None
                await self._control.answer(scope, receive, send, route=route)
            case Treatment.REFUSE:
                refusal = Refusal(
                    501,
                    f"{route} takes no cache salt as far as kvrelease knows, so its KV could not be told from another "
                    f"release's. {UNSALTED_ROUTES} names the routes that are let through without one.",
                    "NotImplementedError",
                )
                await refusal.answer(send)

    async def web_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One web socket: none that we know of takes a salt. A hold lets none begin, and waits for those there are."""
        if self._routes.treatment(scope, route_of(scope)) is not Treatment.UNSALTED or await self._gate.open():
            await _refuse_socket(receive, send)
            return
        with self._gate:
            await self._app(scope, receive, send)

    async def _pass_unsalted(self, scope: Scope, receive: Receive, send: Send) -> None:
        turned = await self._gate.open()
        if turned is not None:
            await _turn_away(turned, send)
            return
        with self._gate:
            await self._app(scope, receive, announcing("none", send))

    async def _bind(self, scope: Scope, receive: Receive, send: Send, *, route: str) -> None:
        if (header(scope, b"content-encoding") or b"identity").strip().lower() != b"identity":
            await Refusal(415, "A compressed body cannot be bound to a namespace.", "UnsupportedMediaType").answer(send)
            return
        with Upload(self._buffered, most=self._settings.body_bytes) as upload:
            body = await upload.read(scope, receive)
            if body is None:
                return
            if isinstance(body, Refusal):
                await body.answer(send)
                return
            hold = header(scope, HOLD_HEADER)
            is_holders = hold is not None and self._gate.is_holder(hold.decode("latin-1"))
            if not is_holders:
                turned = await _unless_gone(self._gate, receive)
                if turned is not None:
                    if turned is not _GONE:
                        await _turn_away(turned, send)
                    return
            with self._gate.holders_flight() if is_holders else self._gate as namespaces:
                fields = read_fields(body, with_model=bool(namespaces.by_model))
                if isinstance(fields, NotBound):
                    await Refusal(400, fields.message, "BadRequestError", param=fields.param).answer(send)
                    return
                model = fields.model
                if route == _ADAPTER_ROUTE and (adapter := header(scope, _ADAPTER_HEADER)):
                    model = adapter.decode("latin-1")
                namespace = namespaces.of(model)
                salt = bound_salt(namespace, fields.own)
                if is_holders and salt == namespace:
                    await _NO_KEY_SPACE.answer(send)
                    return
                if salt != fields.own:
                    body = with_salt(fields.body, salt)
                    scope = with_body(scope, body)
                upload.release()
                await self._app(scope, replaying(body, receive), announcing(namespace, send))


# Whose weights answer under a hold is not settled yet: what they compute must not lie where users will look for it.
_NO_KEY_SPACE = Refusal(400, "A request under a hold needs a salt of its own.", "BadRequestError", param="cache_salt")
_GONE = TurnedAway("the client went away")


async def _unless_gone(gate: Gate, receive: Receive) -> TurnedAway | None:
    """Waits for the gate as long as the client does; its body was read, so all it can still say is that it goes."""
    if gate.is_open:
        return None
    opening, leaving = asyncio.ensure_future(gate.open()), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            return _GONE
    finally:
        opening.cancel()
        leaving.cancel()
        await asyncio.gather(opening, leaving, return_exceptions=True)
    # Another hold may have come while the two tasks ended.
    return opening.result() or await _unless_gone(gate, receive)


async def _turn_away(turned: TurnedAway, send: Send) -> None:
    await Refusal(503, f"This engine answers nobody now: {turned.reason}.", "ServiceUnavailableError").answer(send)


async def _refuse_socket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1013})
