"""What the environment of the engine's process says to the middleware."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from kvrelease.binding.middleware.namespaces import Namespaces, checked_namespaces
from kvrelease.errors import UsageError

NAMESPACE = "KVRELEASE_NAMESPACE"
NAMESPACES = "KVRELEASE_NAMESPACES"
CONTROL_TOKEN = "KVRELEASE_CONTROL_TOKEN"  # noqa: S105 - the name of a variable
HOLD_SECONDS = "KVRELEASE_HOLD_SECONDS"
BODY_BYTES = "KVRELEASE_BODY_BYTES"
BUFFER_BYTES = "KVRELEASE_BUFFER_BYTES"
UNSALTED_ROUTES = "KVRELEASE_UNSALTED_ROUTES"

_LEAST_TOKEN = 16  # characters; below that a token can be guessed
_HOLD_S = 60.0  # what load balancers commonly wait for an answer before they give up themselves
_BODY_BYTES = 64 * 2**20  # a chat with a dozen photographs in it
_BUFFER_BYTES = 512 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The middleware's settings.

    Attributes:
        namespaces: where requests belong until a reload says otherwise.
        control_token: who may hold and resume; None for nobody, and there are no control endpoints.
        hold_s: how long a hold lasts at most, and so the longest that a request waits.
        body_bytes: of one request's body at most.
        buffer_bytes: of all bodies that were read and not yet handed to the engine at most.
        unsalted_routes: routes that take no salt, and are let through all the same.
    """

    namespaces: Namespaces
    control_token: str | None = dataclasses.field(default=None, repr=False)
    hold_s: float = _HOLD_S
    body_bytes: int = _BODY_BYTES
    buffer_bytes: int = _BUFFER_BYTES
    unsalted_routes: frozenset[str] = frozenset()


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings of an environment.

    Raises:
        UsageError: no namespace, or a value that means nothing.
    """
    token = environment.get(CONTROL_TOKEN) or None
    if token is not None and (len(token) < _LEAST_TOKEN or not token.isascii()):
        raise UsageError(
            f"{CONTROL_TOKEN} is a secret of at least {_LEAST_TOKEN} ASCII characters",
            hint="openssl rand -hex 32, or leave it out: then nobody can hold and resume",
        )
    return Settings(
        namespaces=_namespaces(environment),
        control_token=token,
        hold_s=_positive(environment, HOLD_SECONDS, default=_HOLD_S),
        body_bytes=int(_positive(environment, BODY_BYTES, default=_BODY_BYTES)),
        buffer_bytes=int(_positive(environment, BUFFER_BYTES, default=_BUFFER_BYTES)),
        unsalted_routes=_routes(environment),
    )


def _namespaces(environment: Mapping[str, str]) -> Namespaces:
    default = environment.get(NAMESPACE, "")
    checked_namespaces(default, {}, where=NAMESPACE)
    text = environment.get(NAMESPACES) or "{}"
    try:
        by_model = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{NAMESPACES} is not JSON: {error}", hint='{"adapter": "kv1-…"}') from error
    return checked_namespaces(default, by_model, where=NAMESPACES)


def _positive(environment: Mapping[str, str], name: str, *, default: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"{name}={text!r} is no number") from error
    if not 0 < value < float("inf"):
        raise UsageError(f"{name}={text!r} is no positive number")
    return value


def _routes(environment: Mapping[str, str]) -> frozenset[str]:
    routes = [route.strip() for route in environment.get(UNSALTED_ROUTES, "").split(",") if route.strip()]
    for route in routes:
        if not route.startswith("/"):
            raise UsageError(f"{UNSALTED_ROUTES}: {route!r} is no route", hint="/v1/audio/transcriptions,/v1/realtime")
    return frozenset(route.rstrip("/") for route in routes)
