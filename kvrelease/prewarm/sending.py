"""How requests reach one replica: as many at a time as it takes, each counted where it got no proper answer.

Knows neither plan nor journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from kvrelease.binding.deployment import Replica
from kvrelease.binding.left_out import LeftOut, left_out_for
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Counters, Request
from kvrelease.errors import KvreleaseError, Refused, ServiceError, Unreachable, one_of
from kvrelease.prewarm.pace import Pace, Slower

# After Ctrl-C, the wait for requests in flight: a prefill, not a queue.
LAST_ANSWER_S = 5.0

# How often the server's queue is asked for, in seconds for each replica of the run: a metrics page takes its reader 15
# milliseconds, so that those of 200 replicas every two seconds would keep it from sending.
QUEUE_POLL_S = 2.0
_POLL_SHARE_S = 0.15


class Sender:
    """Sends to one replica.

    Args:
        replica: ready to be asked.
        pace: how many requests may be in flight; told of every answer.
        allows: whether the run goes on after so many errors.
        replicas: of the run.

    Attributes:
        most_in_flight: the most requests of a flow that were in flight together.
        left_out: by id, prompts that the server does not take: those it was prepared without, and what it has refused
            since. No errors, and not sent again.
    """

    def __init__(self, replica: Replica, *, pace: Pace, allows: Callable[[int], bool], replicas: int) -> None:
        self._observer = replica.observer
        self._tokens = replica.tokens or {}
        self._pace = pace
        self._allows = allows
        self._poll_s = max(QUEUE_POLL_S, _POLL_SHARE_S * replicas)
        self._failed: dict[str, bool] = {}  # by prompt, whether its last request got no proper answer either
        self._other_errors = 0
        self._in_flight = 0
        self.most_in_flight = 0
        self.left_out: dict[str, LeftOut] = dict(replica.left_out)

    @property
    def errors(self) -> int:
        """Requests without a proper answer; a prompt counts once, however often it was sent."""
        return len(self._failed) + self._other_errors

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of prompts whose last request got no proper answer."""
        return tuple(prompt_id for prompt_id, is_failed in self._failed.items() if is_failed)

    @property
    def lowered_by(self) -> dict[Slower, int]:
        """How often the number of requests in flight was lowered, by why."""
        return dict(self._pace.lowered_by)

    def is_failed(self, prompt_id: str) -> bool:
        """Whether the last request of a prompt got no proper answer."""
        return self._failed.get(prompt_id, False)

    async def counters(self) -> Counters | None:
        """The server's counters now; None where it has none."""
        return await self._observer.engine.counters()

    async def flow(
        self,
        take: Callable[[], str | None],
        send: Callable[[str], Awaitable[None]],
        *,
        most: int | None,
        is_long: bool,
    ) -> None:
        """Sends what `take` gives, as many at a time as the pace allows, until it gives nothing and all came back.

        Args:
            take: gives the id of a prompt that may be sent now; None for none, until another came back.
            send: sends one.
            most: in flight together, whatever the pace allows; None for no such limit.
            is_long: the server's queue is worth asking for.

        Raises:
            KvreleaseError: what ended it; of several the worst.
        """
        came_back = asyncio.Event()

        async def fly(prompt_id: str) -> None:
            try:
                await send(prompt_id)
            finally:
                self._in_flight -= 1
                came_back.set()

        try:
            async with asyncio.TaskGroup() as group:
                polling = group.create_task(self._poll_queue()) if is_long else None
                while True:
                    came_back.clear()
                    while self._in_flight < self._most_at_once(most) and (prompt_id := take()) is not None:
                        self._in_flight += 1
                        self.most_in_flight = max(self.most_in_flight, self._in_flight)
                        group.create_task(fly(prompt_id))
                    if not self._in_flight:
                        break
                    await came_back.wait()
                if polling is not None:
                    polling.cancel()
        except ExceptionGroup as errors:
            raise one_of(errors) from errors

    def _most_at_once(self, most: int | None) -> int:
        if not self._observer.usage_speaks:
            return 1  # counters tell one request's hits only while it is alone
        return min(self._pace.limit, most or self._pace.limit)

    async def _poll_queue(self) -> None:
        """Tells the pace of the server's queue now and then, as long as the server tells it."""
        while True:
            await asyncio.sleep(self._poll_s)
            counters = await self.counters()
            waiting = None if counters is None else counters.waiting_requests
            if waiting is None:
                return
            self._pace.queued(waiting, at_s=time.monotonic())

    async def tried(self, request: Request, *, prompt_id: str | None = None) -> Leg | None:
        """The leg of a request; None where it got no proper answer, and the run goes on without.

        It does where errors are left, or where the server refuses this one prompt, which is then left out.

        Args:
            request: what to send.
            prompt_id: of the prompt of the set that it is, whose token ids are known; None for one of our own.

        Raises:
            PromptTooLong: a request of our own does not fit the engine's context.
            ServiceError: more requests got no proper answer than may.
        """
        sent_s = time.monotonic()
        tokens = None if prompt_id is None else self._tokens.get(prompt_id)
        try:
            leg = await self._answered(request, tokens=tokens)
        except KvreleaseError as error:
            if isinstance(error, Refused) and error.was_throttled:
                self._pace.answered(sent_s=sent_s, at_s=time.monotonic(), was_throttled=True)
            if self._goes_on_after(error, prompt_id=prompt_id):
                return None
            if prompt_id is not None and not isinstance(error, Unreachable):
                error.about(f"prompt {prompt_id!r}")
            raise
        if prompt_id in self._failed:
            self._failed[prompt_id] = False
        self._pace.answered(
            sent_s=sent_s,
            at_s=time.monotonic(),
            was_throttled=leg.observation.was_throttled,
            ttft_s=leg.observation.ttft_s,
            computed_tokens=computed_tokens(leg),
        )
        return leg

    def _goes_on_after(self, error: KvreleaseError, *, prompt_id: str | None) -> bool:
        """Counts an error, or leaves the prompt out that it is about."""
        left_out = None if prompt_id is None else left_out_for(error, prompt=prompt_id)
        if prompt_id is not None and left_out is not None:
            self.left_out[prompt_id] = left_out
            self._failed.pop(prompt_id, None)
            return True
        if not isinstance(error, ServiceError):
            return False
        if prompt_id is None:
            self._other_errors += 1
        else:
            self._failed[prompt_id] = True
        return self._allows(self.errors)

    async def _answered(self, request: Request, *, tokens: tuple[int, ...] | None) -> Leg:
        """The leg of a request; cancelled meanwhile, it still waits a little for the answer.

        What the engine computes for a request that nobody waits for stays in its cache, and would look foreign to the
        next run.
        """
        sending = asyncio.ensure_future(self._observer.observe(request, tokens=tokens))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            with contextlib.suppress(KvreleaseError, TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(sending, LAST_ANSWER_S)
            raise


def computed_tokens(leg: Leg) -> int | None:
    """Of the prompt; None when nobody witnessed its hit."""
    if leg.prompt_tokens is None or leg.cached_tokens is None:
        return None
    return leg.prompt_tokens - leg.cached_tokens
