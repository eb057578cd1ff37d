"""Takes one replica through the protocol: asks the gate and the engine for each step of the plan."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Protocol, TypeVar

import msgspec

from kvrelease.artifacts import Fault, fault_of
from kvrelease.binding.reloading.plan import Outcome, Start, Step, Taken, ending_of, next_step, verdict_of
from kvrelease.binding.reloading.ready import Ready
from kvrelease.binding.reloading.result import Reloading, ReplicaReload, advice_of, reason_of
from kvrelease.engines.base import EngineClient
from kvrelease.engines.gate import OPEN, Gate, GateState
from kvrelease.errors import KvreleaseError, Refused, ServiceError
from kvrelease.progress import Progress, ProgressEvent

T = TypeVar("T")

_POLL_S = 0.1  # a drain takes as long as its longest answer, which is seconds
_LAST = (Step.RESUME_NEW, Step.RESUME_OLD, Step.CLOSE)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What answers of the engine say of its weights.

    Attributes:
        outcome: DONE where they are those asked for, DISAGREES, or UNPROVEN.
        detail: what was found, one sentence.
    """

    outcome: Outcome
    detail: str


class Witness(Protocol):
    """Asks one engine a few questions, each in a key space that nobody else uses."""

    async def ask_old(self, engine: EngineClient) -> Told:
        """Keeps the answers of the weights that are there before."""

    async def ask_again(self, engine: EngineClient) -> Told:
        """Whether the same weights are still there."""

    async def ask_new(self, engine: EngineClient) -> Told:
        """Whether the new release's are."""


class Drive:
    """One replica on its way through the protocol.

    Attributes:
        was_interrupted: somebody wanted to stop; no further replica should be begun.
        taken: the steps so far.
        faults: of those that an error ended.
    """

    def __init__(
        self, one: Ready, *, gate: Gate, reloading: Reloading, witness: Witness | None, progress: Progress
    ) -> None:
        self.was_interrupted = False
        self.faults: tuple[Fault, ...] = ()
        self.taken: list[Taken] = []
        self._one, self._gate, self._reloading = one, gate, reloading
        self._witness, self._progress = witness, progress
        self._start = Start(was_open=one.gate.state == OPEN, asks=witness is not None, flushes=reloading.allows_flush)
        self._hold = ""
        self._held_since: float | None = None
        self._hold_s: float | None = None
        self._held = 0

    async def run(self) -> ReplicaReload:
        """Takes every step; never raises what the outside world does."""
        limit: asyncio.Task[None] | None = None
        while (step := next_step(self.taken, start=self._start)) is not None:
            if limit is not None and step in _LAST:
                limit.cancel()
            await self._take(step)
            if step is Step.HOLD and self._hold and self._reloading.hold_timeout_s is not None:
                limit = asyncio.create_task(self._turn_away_after(self._reloading.hold_timeout_s))
        if limit is not None:
            await self._to_its_end(asyncio.wait([limit]))
        ending = ending_of(self.taken, start=self._start)
        old = self._one.gate.namespace
        return ReplicaReload(
            url=self._one.identity.shown,
            old_namespace=old,
            new_namespace=self._reloading.namespace,
            gate=self._one.gate.state,
            ending=ending,
            steps=tuple(self.taken),
            hold_s=self._hold_s,
            held=self._held if self._hold else None,
            verdict=verdict_of(self.taken, ending=ending),
            reason=reason_of(self.taken, ending=ending, survives=old == self._reloading.namespace),
            next_step=advice_of(
                ending, start=self._start, taken=self.taken, reloading=self._reloading, hold_s=self._one.gate.hold_s
            ),
        )

    async def _take(self, step: Step) -> None:
        self._tell(step, "")
        begun = time.monotonic()
        try:
            told = await self._done(step)
        except asyncio.CancelledError:
            self._interrupt()
            told = Told(outcome=Outcome.INTERRUPTED, detail="cut short")
        except KvreleaseError as error:
            told = Told(outcome=_outcome_of(error), detail=error.message)
            self.faults += (fault_of(error, where=self._one.identity.shown),)
        seconds = time.monotonic() - begun
        self.taken.append(Taken(step=step, outcome=told.outcome, seconds=round(seconds, 3), detail=told.detail))
        if step in _LAST and self._held_since is not None:
            self._hold_s = round(time.monotonic() - self._held_since, 3)
        self._tell(step, f" ({told.outcome}, {seconds:.1f} s)")

    def _tell(self, step: Step, what: str) -> None:
        done = len(self.taken)
        self._progress(
            ProgressEvent(
                stage=f"reload {self._one.identity.shown}", done=done, total=None, unit="steps", detail=f"{step}{what}"
            )
        )

    async def _done(self, step: Step) -> Told:
        acts: Mapping[Step, Callable[[], Awaitable[Told]]] = {
            Step.HOLD: self._begin,
            Step.DRAIN: self._drain,
            Step.ASK_OLD: lambda: self._ask(step),
            Step.SWAP: self._swap,
            Step.ASK_AGAIN: lambda: self._ask(step),
            Step.ASK_NEW: lambda: self._ask(step),
            Step.FLUSH: self._flush,
            Step.RESUME_NEW: lambda: self._resume(self._reloading.namespace),
            Step.RESUME_OLD: lambda: self._resume(self._one.gate.namespace),
            Step.CLOSE: self._close,
        }
        return await acts[step]()

    async def _swap(self) -> Told:
        path = self._reloading.weights_path
        await self._one.engine.reload_weights(path, timeout_s=self._reloading.reload_timeout_s)
        return Told(outcome=Outcome.DONE, detail=f"the engine says that it loaded {path}")

    async def _flush(self) -> Told:
        if await self._one.engine.flush() is False:
            return Told(outcome=Outcome.REFUSED, detail="the engine did not empty its cache")
        return Told(outcome=Outcome.DONE, detail="")

    async def _begin(self) -> Told:
        # A hold whose name nobody learnt could be ended by nobody: the answer is waited for, whoever interrupts.
        state, was_cut = await self._to_its_end(self._gate.hold())
        self._hold, self._held_since = state.hold, time.monotonic()
        if was_cut:
            return Told(outcome=Outcome.INTERRUPTED, detail="cut short")
        return Told(outcome=Outcome.DONE, detail=f"{state.in_flight} requests in flight")

    async def _drain(self) -> Told:
        end = time.monotonic() + self._reloading.drain_timeout_s
        while True:
            state = self._seen(await self._gate.state())
            if state.state == OPEN or state.namespace != self._one.gate.namespace:
                return Told(outcome=Outcome.FAILED, detail="the gate is not held any more: the engine was restarted")
            if state.in_flight == 0:
                return Told(outcome=Outcome.DONE, detail="")
            if time.monotonic() >= end:
                limit_s = self._reloading.drain_timeout_s
                return Told(
                    outcome=Outcome.LATE, detail=f"{state.in_flight} requests are in flight after {limit_s:g} s"
                )
            await asyncio.sleep(_POLL_S)

    async def _ask(self, step: Step) -> Told:
        assert self._witness is not None, "the plan asks only where there is a witness"
        engine = self._one.engine.holding(self._hold)
        try:
            match step:
                case Step.ASK_OLD:
                    return await self._witness.ask_old(engine)
                case Step.ASK_AGAIN:
                    return await self._witness.ask_again(engine)
                case _:
                    await self._require_same_process()
                    return await self._witness.ask_new(engine)
        finally:
            await engine.aclose()

    async def _require_same_process(self) -> None:
        before, now = self._one.identity.process, await self._one.engine.current_process()
        if before is not None and now != before:
            raise ServiceError(
                f"{self._one.identity.shown}: another engine process answers now ({now}, before {before})",
                hint="it was restarted, and has the weights that it was started with",
            )

    async def _resume(self, namespace: str) -> Told:
        try:
            state, _ = await self._to_its_end(self._gate.resume(self._hold, namespace=namespace))
        except ServiceError as error:
            # The call may have got through, and its answer not.
            state, _ = await self._to_its_end(self._gate.state())
            if state.state != OPEN or state.namespace != namespace:
                raise error from None
        self._seen(state)
        return Told(outcome=Outcome.DONE, detail=f"{state.waiting} requests waited, and go on")

    async def _close(self) -> Told:
        last = self.taken[-1]
        reason = f"new weights could not be loaded safely ({last.step}: {last.outcome})"
        state, _ = await self._to_its_end(self._gate.close(self._hold, reason=reason))
        self._seen(state)
        return Told(outcome=Outcome.DONE, detail=f"{state.waiting} requests waited, and were turned away")

    def _seen(self, state: GateState) -> GateState:
        self._held = max(self._held, state.waiting)
        return state

    async def _turn_away_after(self, limit_s: float) -> None:
        """Turns away who has waited too long, while the reload goes on: a gate that is closed can be resumed."""
        await asyncio.sleep(limit_s)
        # What cannot be told now is told by the middleware's own limit.
        with contextlib.suppress(KvreleaseError):
            self._seen(await self._gate.close(self._hold, reason=f"loading new weights takes over {limit_s:g} s"))

    async def _to_its_end(self, call: Coroutine[object, object, T]) -> tuple[T, bool]:
        """The result of a short call that is not left half-way, and whether somebody wanted to."""
        task = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(task), False
        except asyncio.CancelledError:
            self._interrupt()
            return await task, True

    def _interrupt(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        task.uncancel()
        self.was_interrupted = True


def _outcome_of(error: KvreleaseError) -> Outcome:
    """What an error says of whether anything was done."""
    if isinstance(error, Refused) and error.status == 500:
        return Outcome.FAILED  # the engine's own answer; whatever it began is over
    if isinstance(error, ServiceError):
        return Outcome.LOST if error.may_have_run else Outcome.REFUSED
    return Outcome.REFUSED
