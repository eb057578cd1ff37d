"""Waiting until an engine can serve: it lists the model *and* has generated a token.

A health route answers 200 before the model can; so does a port whose weights are still being read.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from kvrelease.artifacts import JsonObject
from kvrelease.binding.salts import probe_salt
from kvrelease.engines.base import EngineClient, EngineKind, Request, Route
from kvrelease.errors import (
    KvreleaseError,
    NoModel,
    Refused,
    ServiceTimeout,
    UnexpectedReply,
    Unreachable,
    WrongModel,
)
from kvrelease.progress import Progress, ProgressEvent

# Engines load for minutes; asking more often makes a pod ready no sooner.
MAX_PAUSE_S = 5.0

# Answers of servers that load, and of gateways in front of them; the rest of 4xx stays as it is.
_NOT_YET = frozenset({404, 408, 425, 429, 500, 502, 503, 504})
# In every vocabulary, behind single bytes and control tokens.
_FIRST_WORD, _WORDS = 400, 200
# A route that this server does not have, or a prompt that it does not take there.
_OTHER_ROUTE = frozenset({400, 404, 405, 422, 501})


class Waiting:
    """What the replicas of one run still wait for, for one line of progress."""

    def __init__(self, progress: Progress, *, wait_s: float) -> None:
        """Tells `progress`; `wait_s` is the time that there is."""
        self._progress = progress
        self._start = time.monotonic()
        self._wait_s = wait_s
        self._reasons: dict[str, str] = {}

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self._wait_s - (time.monotonic() - self._start)

    @property
    def wait_s(self) -> float:
        """Seconds that there were."""
        return self._wait_s

    def tell(self, shown: str, reason: str) -> None:
        """One replica waits for something."""
        self._reasons[shown] = reason
        others = len(self._reasons) - 1
        more = f" (and {others} more)" if others else ""
        done = min(int(self._wait_s - self.left_s), int(self._wait_s))
        self._progress(
            ProgressEvent(
                stage="waiting for replicas",
                done=done,
                total=int(self._wait_s),
                unit="s",
                detail=f"{shown}{more}: {reason}",
            )
        )

    def is_ready(self, shown: str) -> None:
        """One replica waits for nothing more."""
        self._reasons.pop(shown, None)


async def wait_for(
    attempt: Callable[[float], Awaitable[None]], *, shown: str, waiting: Waiting, pause_s: float
) -> None:
    """Repeats an attempt until it succeeds.

    Args:
        attempt: takes the seconds that it may last.
        shown: how messages name the replica.
        waiting: the time that there is.
        pause_s: before the second attempt; each further one is twice as long, up to `MAX_PAUSE_S`.

    Raises:
        ServiceTimeout: the time is over; the message says what the last attempt found.
        WrongModel: likewise, and other models were listed.
        KvreleaseError: what waiting does not change: other credentials, a prompt or an option that is refused.
    """
    last: KvreleaseError | None = None
    while True:
        try:
            async with asyncio.timeout(max(waiting.left_s, 0.0)):
                await attempt(max(waiting.left_s, 0.001))
        except TimeoutError as error:
            raise _too_late(shown, waiting, last) from error
        except KvreleaseError as error:
            if not may_become_ready(error):
                raise
            last = error
            if waiting.left_s <= pause_s:
                raise _too_late(shown, waiting, last) from error
            waiting.tell(shown, _reason(error))
        else:
            waiting.is_ready(shown)
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def may_become_ready(error: KvreleaseError) -> bool:
    """Whether an engine that gives this answer may give another one when it has loaded.

    An ingress shows a page, or a placeholder's model, until the pod behind it is there; a base is listed before its
    adapters are.
    """
    if isinstance(error, Refused):
        return error.status in _NOT_YET
    return isinstance(error, Unreachable | ServiceTimeout | UnexpectedReply | WrongModel)


async def generate_one_token(engine: EngineClient) -> None:
    """One generation of one token, of a unique prompt in a key space of its own: it warms nothing that users ask.

    Raises:
        KvreleaseError: the engine cannot generate, on either route.
    """
    identity = await engine.identify()
    salt = probe_salt("ready") if identity.capabilities.has_salt else None
    nonce = secrets.token_hex(8)
    # A slot has no key space of its own, and reuses any common start: ids of rare words, without the token that every
    # text begins with, have none in common with a text.
    prompt = [_FIRST_WORD + secrets.randbelow(_WORDS)] if identity.kind is EngineKind.LLAMACPP else nonce
    try:
        await engine.complete(_request(Route.COMPLETIONS, {"prompt": prompt}, salt=salt))
    except Refused as error:
        if error.status not in _OTHER_ROUTE:
            raise
        message = {"role": "user", "content": nonce}
        await engine.complete(_request(Route.CHAT, {"messages": [message]}, salt=salt))


def _request(route: Route, body: JsonObject, *, salt: str | None) -> Request:
    return Request(route=route, body={**body, "temperature": 0}, salt=salt, max_tokens=1)


def _reason(error: KvreleaseError) -> str:
    match error:
        case Unreachable():
            return "nobody answers there yet"
        case NoModel():
            return "it lists no model yet"
        case Refused(status=int(status)):
            return f"it answers {status}"
        case WrongModel() | UnexpectedReply():
            return error.message
        case _:
            return "it does not answer in time yet"


def _too_late(shown: str, waiting: Waiting, last: KvreleaseError | None) -> KvreleaseError:
    found = "no answer came in time" if last is None else f"last, {last.message}"
    text = f"{shown} was not ready within {waiting.wait_s:g} s: {found}"
    hint = "raise --wait, or look at the engine's log"
    if isinstance(last, WrongModel | UnexpectedReply) and last.hint is not None:
        hint = f"{last.hint}; {hint}"
    if isinstance(last, WrongModel) and not isinstance(last, NoModel):
        return WrongModel(text, hint=hint)
    return ServiceTimeout(text, hint=hint)
