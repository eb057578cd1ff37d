"""The gate that requests pass on their way to the engine, and the switch that a reload drives.

    open ── hold ──> held ── resume ──> open
                      │ └── close, or the hold ran out ──> closed ── resume, or another hold ──> open, held

- *Open*: a request takes the namespaces of this moment and runs. It takes them here and not on arrival, because what
  was salted on arrival could run after the swap.
- *Held*: nothing passes. Requests wait, at most until the hold runs out; those that are in flight go on to their end.
- *Closed*: requests are turned away at once. A hold that ran out ends here, because whoever held may have died between
  two steps, and nobody then knows whose weights the engine has.

Who holds may ask the engine itself meanwhile, by the hold's name: new weights are asked before anybody meets them.

Another namespace is taken only while nothing is in flight: a request of the old one would write the new weights' KV
under the old name. A hold has a name, and only who knows it may resume or close: a driver that was given up cannot undo
what the next one does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvrelease.binding.middleware.namespaces import Namespaces


class State(enum.Enum):
    """Whether requests pass."""

    OPEN = "open"
    HELD = "held"
    CLOSED = "closed"


class NotNow(Exception):
    """The gate is not in the state that was asked for; the message says which it is in."""


@dataclasses.dataclass(frozen=True)
class TurnedAway:
    """A request that does not pass."""

    reason: str


class Gate:
    """The gate of one engine process. Its methods belong to one event loop."""

    def __init__(self, namespaces: Namespaces, *, hold_s: float) -> None:
        self.namespaces = namespaces
        self.hold_s = hold_s
        self.state = State.OPEN
        self.reason = ""
        self.in_flight = 0
        self.waiting = 0
        self._hold = ""
        self._since = 0.0
        self._change = asyncio.Event()
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests pass now."""
        return self.state is State.OPEN

    @property
    def held_s(self) -> float | None:
        """Seconds since the hold began that nobody has ended yet; None while open."""
        return None if self.state is State.OPEN else time.monotonic() - self._since

    async def open(self) -> TurnedAway | None:
        """Waits until the gate is open, or tells why it will not be."""
        while self.state is State.HELD:
            self.waiting += 1
            try:
                await self._change.wait()
            finally:
                self.waiting -= 1
        return TurnedAway(self.reason) if self.state is State.CLOSED else None

    def __enter__(self) -> Namespaces:
        """One more request is in flight, in these namespaces; the gate is open, and nothing was awaited since."""
        assert self.state is State.OPEN
        self.in_flight += 1
        return self.namespaces

    def __exit__(self, *_: object) -> None:
        """Its response is over."""
        self.in_flight -= 1

    def is_holder(self, hold: str) -> bool:
        """Whether a text is the name of the hold that nobody has ended yet."""
        return self.state is not State.OPEN and secrets.compare_digest(hold.encode(), self._hold.encode())

    @contextmanager
    def holders_flight(self) -> Iterator[Namespaces]:
        """One request of whoever holds: in flight like any other, so that no other namespace is taken meanwhile."""
        self.in_flight += 1
        try:
            yield self.namespaces
        finally:
            self.in_flight -= 1

    def hold(self) -> str:
        """Lets nothing pass any more; the hold's name.

        Raises:
            NotNow: somebody holds already.
        """
        if self.state is State.HELD:
            raise NotNow(f"another hold began {self.held_s:.1f} s ago")
        self._hold = secrets.token_hex(8)
        self._since = time.monotonic()
        self._become(State.HELD, "new weights are being loaded")
        run_out = f"the hold ran out after {self.hold_s:g} s, and nobody said what the engine has now"
        self._end = asyncio.get_running_loop().call_later(self.hold_s, self._become, State.CLOSED, run_out)
        return self._hold

    def resume(self, hold: str, namespaces: Namespaces) -> None:
        """Lets requests pass, into these namespaces.

        Raises:
            NotNow: no hold of that name, or another namespace while requests of the present one are in flight.
        """
        self._check(hold)
        if namespaces != self.namespaces and self.in_flight:
            raise NotNow(f"{self.in_flight} requests of {self.namespaces.default} are still in flight")
        self.namespaces = namespaces
        self._become(State.OPEN, "")

    def close(self, hold: str, reason: str) -> None:
        """Turns everybody away until somebody resumes.

        Raises:
            NotNow: no hold of that name.
        """
        self._check(hold)
        self._become(State.CLOSED, reason)

    def _check(self, hold: str) -> None:
        if self.state is State.OPEN:
            raise NotNow("nobody holds: the gate is open")
        if not self.is_holder(hold):
            raise NotNow("another hold came after this one")

    def _become(self, state: State, reason: str) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
        self.state, self.reason = state, reason
        # Who waits for a change waits for this one; who comes later, for the next.
        self._change.set()
        self._change = asyncio.Event()
