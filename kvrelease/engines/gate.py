"""The gate that the middleware puts before an engine, as whoever has its control token drives it.

Source: kvrelease/binding/middleware/control.py, and docs/middleware.md.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.http import Transport
from kvrelease.engines.replies import Reply, parse_object, refusal
from kvrelease.errors import UnexpectedReply, UsageError

# A request with the name of a hold in it passes while others wait.
HOLD_HEADER = "kvrelease-hold"
_NAMESPACE_HEADER = "kvrelease-namespace"

OPEN, HELD, CLOSED = "open", "held", "closed"


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate says of itself.

    Attributes:
        state: `open`, `held` or `closed`.
        reason: why it is not open; empty while it is.
        namespace: that requests are bound to.
        namespaces: of adapters that have one of their own, by served name.
        in_flight: requests that passed and are not over.
        waiting: requests that wait for the hold to end.
        held_s: seconds since the hold began; None while open.
        hold_s: how long a hold lasts at most, seconds.
        api_servers: processes that listen at this address; None where the engine does not say.
        hold: the name of the hold, in the answer to the call that began it alone.
    """

    state: str
    reason: str
    namespace: str
    namespaces: dict[str, str]
    in_flight: int
    waiting: int
    held_s: float | None
    hold_s: float
    api_servers: int | None
    hold: str = ""


class Gate:
    """One gate. Opened with `async with`; whoever opens closes the connection, never the gate itself."""

    def __init__(self, transport: Transport) -> None:
        """Speaks over `transport`, which carries the token and is closed with it."""
        self._transport = transport

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connections."""
        await self._transport.aclose()

    async def state(self) -> GateState:
        """What it says of itself.

        Raises:
            UsageError: there is no middleware, or none that this token controls.
            ServiceError: no proper answer.
        """
        reply = await self._transport.get("/kvrelease/state")
        if reply.status in (404, 405):
            raise await self._absence()
        return self._told(reply)

    async def hold(self) -> GateState:
        """Lets nothing pass any more; `hold` of the answer is the name of the hold.

        Raises:
            Refused: somebody else holds, or several processes listen here; nothing was changed.
            ServiceError: no proper answer, and it may be held.
        """
        return await self._act("hold", {})

    async def resume(self, hold: str, *, namespace: str) -> GateState:
        """Lets requests pass, into a namespace; `waiting` of the answer is how many were held.

        Raises:
            Refused: not this hold's gate any more, or requests of another namespace are in flight.
            ServiceError: no proper answer, and it may be open.
        """
        return await self._act("resume", {"hold": hold, "namespace": namespace})

    async def close(self, hold: str, *, reason: str) -> GateState:
        """Turns everybody away; `waiting` of the answer is how many were held.

        Raises:
            Refused: not this hold's gate any more.
            ServiceError: no proper answer.
        """
        return await self._act("close", {"hold": hold, "reason": reason})

    async def _act(self, name: str, body: JsonObject) -> GateState:
        return self._told(await self._transport.post(f"/kvrelease/{name}", body, is_repeatable=False))

    def _told(self, reply: Reply) -> GateState:
        if reply.status == 401:
            raise UsageError(
                f"{reply.what}: the middleware wants another control token",
                hint="--control-token-env names the variable that holds the engine's KVRELEASE_CONTROL_TOKEN",
            )
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor)
        try:
            return msgspec.convert(parse_object(reply), GateState)
        except msgspec.ValidationError as error:
            raise UnexpectedReply(f"{reply.what}: no state of a gate ({error})") from error

    async def _absence(self) -> UsageError:
        """Why nobody answers for the gate. A body without anything in it is refused by every engine, and tells."""
        reply = await self._transport.post("/v1/completions", {})
        if _NAMESPACE_HEADER in reply.headers:
            return UsageError(
                f"{self._transport.url}: the middleware is there, and no control token, so nobody can hold its gate",
                hint="start the engine with KVRELEASE_CONTROL_TOKEN=… (openssl rand -hex 32)",
            )
        return UsageError(
            f"{self._transport.url}: no kvrelease middleware is before this engine, so its requests cannot be held",
            hint="start vLLM with --middleware kvrelease.binding.middleware.Bound and KVRELEASE_CONTROL_TOKEN=…, or "
            "restart it with the new release instead",
        )
