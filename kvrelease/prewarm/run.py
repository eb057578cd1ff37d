"""Filling a new release's prefix cache on every replica, and proving it is resident."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from kvrelease.artifacts import Fault, Verdict, fault_of
from kvrelease.binding.closing import close_run, until_interrupted
from kvrelease.binding.control import nonce_request
from kvrelease.binding.deployment import Deployment, Replica, prepare_all
from kvrelease.binding.observe import Leg, Witness, known_total, total
from kvrelease.binding.production import refuse_own_salts
from kvrelease.binding.ranks import prove_ranks, rank_fault
from kvrelease.binding.unready import Unready, require_one_ready
from kvrelease.engines.base import EngineClient, Request
from kvrelease.errors import KvreleaseError, UsageError, one_of
from kvrelease.ledger.store import Ledger
from kvrelease.prewarm.plan import Plan, make_plan, plan_without_tokens
from kvrelease.prewarm.result import (
    ControlResult,
    Percentiles,
    PrewarmReport,
    ReplicaResult,
    judge,
    percentiles,
    rate,
)
from kvrelease.progress import Progress, ProgressEvent, silent

# The share of cacheable tokens that a warm replica must serve from its cache; --min-hit-rate changes it.
DEFAULT_MIN_HIT_RATE = 0.9

# Prompts asked again, as production does, to prove residency: the heaviest.
PROOF_PROMPTS = 12

MAX_TOKENS = 1

# After Ctrl-C, the wait for requests in flight: a prefill, not a queue.
LAST_ANSWER_S = 5.0


async def prewarm(
    engines: Sequence[EngineClient | Unready],
    *,
    deployment: Deployment,
    ledger: Ledger,
    concurrency: int,
    min_hit_rate: float = DEFAULT_MIN_HIT_RATE,
    allows_flush: bool = False,
    budget_s: float | None = None,
    progress: Progress = silent,
) -> PrewarmReport:
    """Warms every replica concurrently, and proves it.

    Args:
        engines: open, one per replica.
        deployment: release, key space and prompts.
        ledger: what earlier runs computed, and where this one is written.
        concurrency: most requests in flight on one replica.
        min_hit_rate: share of cacheable tokens that must hit when asked again, 0 to 1.
        allows_flush: this engine's own cache may be emptied first.
        budget_s: no request of the plan is sent after so many seconds; None for no limit.
        progress: told after each request.

    Returns:
        The report; also when it was cancelled (Ctrl-C), with what was measured so far.

    Raises:
        KvreleaseError: no replica could be prepared; nothing was generated on any of them.
    """
    refuse_own_salts(deployment.prompt_set, action="prewarming")
    prepared = await prepare_all(engines, deployment=deployment, memory=ledger, max_tokens=MAX_TOKENS)
    replicas, unready = require_one_ready(prepared)
    proofs = await prove_ranks(replicas)
    doubts = [fault for pair in zip(replicas, proofs, strict=True) if (fault := rank_fault(*pair)) is not None]
    left_open = (*(one.fault for one in unready), *doubts)
    deadline = None if budget_s is None else time.monotonic() + budget_s
    watch = _Watch(progress)
    warmings = [
        _Warming(
            replica,
            ledger=ledger,
            concurrency=concurrency,
            allows_flush=allows_flush,
            deadline=deadline,
            watch=watch,
        )
        for replica in replicas
    ]
    with until_interrupted() as interruption:
        async with asyncio.TaskGroup() as group:
            for warming in warmings:
                group.create_task(warming.run())
    results = tuple(warming.result() for warming in warmings)
    verdict, reason = judge(results, min_hit_rate=min_hit_rate, interrupted=interruption.happened)
    if left_open and verdict is Verdict.PASS:
        named = ", ".join(fault.where for fault in left_open)
        verdict, reason = Verdict.INCONCLUSIVE, f"not proven: {named}; of the others: {reason}"
    closing = close_run(
        replicas, deployment=deployment, ledger=ledger, command="prewarm", verdict=verdict, reason=reason
    )
    return PrewarmReport(
        release=deployment.release,
        namespace=deployment.namespace,
        key_space=deployment.salt,
        prompt_set=deployment.prompt_set.digest,
        verdict=verdict,
        reason=reason,
        plan=results[0].plan,
        replicas=results,
        min_hit_rate=min_hit_rate,
        interrupted=interruption.happened,
        faults=(*left_open, *(one.fault for one in results if one.fault), *closing),
    )


class _Watch:
    """Counts requests over all replicas for one progress line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._done = 0
        self._total = 0

    def expect(self, requests: int) -> None:
        self._total += requests

    def answered(self) -> None:
        self._done += 1
        self._progress(
            ProgressEvent(stage="prewarming", done=self._done, total=max(self._done, self._total), unit="requests")
        )


class _Warming:
    """One replica's run; `result` tells what it has so far, at any time."""

    def __init__(
        self,
        replica: Replica,
        *,
        ledger: Ledger,
        concurrency: int,
        allows_flush: bool,
        deadline: float | None,
        watch: _Watch,
    ) -> None:
        self.replica = replica
        self._ledger = ledger
        self._limit = asyncio.Semaphore(concurrency)
        self._allows_flush = allows_flush
        self._deadline = deadline
        self._watch = watch
        self._prompts = {prompt.id: prompt for prompt in replica.deployment.prompt_set.prompts}
        self._plan = self._make_plan()
        self._sent: list[Leg] = []
        self._touched: list[Leg] = []
        self._proof: list[Leg] = []
        self._control: ControlResult | None = None
        self._errors = 0
        self._fault: Fault | None = None
        self._was_asked_to_flush = False
        self._is_out_of_time = False

    def _make_plan(self) -> Plan:
        weights = {prompt.id: prompt.weight for prompt in self._prompts.values()}
        if self.replica.tokens is None:
            return plan_without_tokens(self.replica.tree, weights=weights)
        return make_plan(
            self.replica.tree,
            weights=weights,
            capacity_tokens=self.replica.identity.capacity_tokens,
            most_valuable_last=self._has_slots,
        )

    @property
    def _has_slots(self) -> bool:
        return self.replica.identity.capabilities.cacheable_limit is not None

    async def run(self) -> None:
        """Flush where allowed, send the plan, touch, prove; a fault of the engine ends it and is kept."""
        try:
            await self._run()
            await self.replica.observer.require_same_process()
        except KvreleaseError as error:
            self._errors += 1
            self._fault = fault_of(error, where=self.replica.identity.url)

    async def _run(self) -> None:
        proof = self._proof_ids()
        self._watch.expect(len(self._plan.senders) * (1 if self._has_slots else 2) + 2 + len(proof))
        if self._allows_flush:
            await self._flush()
        for number, wave in enumerate(self._plan.waves):
            # The first wave has one prompt of every shared prefix: it meets whatever was there before us.
            await self._send_wave(wave, into=self._sent)
            if self._is_dirty or self._is_out_of_time:
                return
            if number == 0:
                await self._send_control()
        if not self._has_slots:
            for prompt_id in reversed(self._plan.senders):
                await self._send(prompt_id, into=self._touched)
        for prompt_id in proof:
            await self._send(prompt_id, into=self._proof)

    @property
    def _is_dirty(self) -> bool:
        return any(leg.foreign_tokens for leg in (*self._sent, *self._touched, *self._proof))

    def _proof_ids(self) -> tuple[str, ...]:
        senders = self._plan.senders
        limit = self.replica.identity.capabilities.cacheable_limit
        if limit is not None:
            return tuple(reversed(senders[-limit:]))
        heaviest = sorted(senders, key=lambda prompt_id: -self._prompts[prompt_id].weight)
        return tuple(heaviest[:PROOF_PROMPTS])

    async def _flush(self) -> None:
        identity = self.replica.identity
        if not identity.capabilities.has_flush:
            raise UsageError(
                f"--allow-flush: {identity.kind} at {identity.url} cannot empty its cache on request",
                hint="restart the engine, or bump the epoch",
            )
        answer = await self.replica.observer.engine.flush()
        if answer is False:
            raise UsageError(
                f"--allow-flush: {identity.url} refused to empty its cache, which it does while requests run",
                hint="drain the engine, then prewarm again",
            )
        # Proof comes from what is sent next: after a flush that worked, no hit is foreign.
        self._was_asked_to_flush = True
        if identity.process is not None:
            self._ledger.forget(replica=identity.url, process=identity.process)

    async def _send_wave(self, wave: tuple[str, ...], *, into: list[Leg]) -> None:
        if self.replica.observer.usage_speaks:
            try:
                async with asyncio.TaskGroup() as group:
                    for prompt_id in wave:
                        group.create_task(self._send(prompt_id, into=into))
            except ExceptionGroup as errors:
                raise one_of(errors) from errors
        else:  # counters tell one request's hits only while it is alone
            for prompt_id in wave:
                await self._send(prompt_id, into=into)

    async def _send(self, prompt_id: str, *, into: list[Leg]) -> None:
        async with self._limit:
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._is_out_of_time = True
                return
            if self._is_dirty:
                return
            request = self.replica.request(
                self._prompts[prompt_id], salt=self.replica.deployment.salt, max_tokens=MAX_TOKENS, streams=True
            )
            into.append(await self._answered(request))
            self._watch.answered()

    async def _answered(self, request: Request) -> Leg:
        """The leg of a request; cancelled meanwhile, it still waits a little for the answer.

        What the engine computes for a request that nobody waits for stays in its cache, and would look foreign to the
        next run.
        """
        sending = asyncio.ensure_future(self.replica.observer.observe(request))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            with contextlib.suppress(KvreleaseError, TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(sending, LAST_ANSWER_S)
            raise

    async def _send_control(self) -> None:
        observer = self.replica.observer
        prompt = self._prompts[self._plan.senders[0]]
        request = await nonce_request(
            observer,
            route=self.replica.request(prompt, salt=None, max_tokens=MAX_TOKENS).route,
            production=self.replica.deployment.production,
            model=self.replica.identity.model,
            salt=self.replica.deployment.salt,
        )
        first, again = await observer.observe(request), await observer.observe(request)
        self._watch.answered()
        self._watch.answered()
        told = first if first.hits_mostly else again
        hits = None if first.hits_mostly is None or again.hits_mostly is None else told is again and again.hits_mostly
        self._control = ControlResult(hits=hits, cached_tokens=told.cached_tokens, prompt_tokens=told.prompt_tokens)

    def result(self) -> ReplicaResult:
        """What this replica has shown so far."""
        legs = (*self._sent, *self._touched, *self._proof)
        foreign = known_total([leg.foreign_tokens for leg in legs])
        cached = total([leg.cached_tokens for leg in self._sent])
        prompt_tokens = total([leg.prompt_tokens for leg in self._sent])
        fault = self._fault
        if fault is None and self._is_out_of_time:
            fault = Fault(
                where=self.replica.identity.url,
                exit_code=0,
                message=f"the time budget ended after {len(self._sent)} of {len(self._plan.senders)} requests",
                hint="run it again: what is resident is not computed twice",
            )
        return ReplicaResult(
            url=self.replica.identity.url,
            rank=self.replica.identity.rank,
            labels=self.replica.identity.labels,
            plan=self._plan,
            sent=len(self._sent),
            touched=len(self._touched),
            errors=self._errors,
            retries=sum(leg.observation.retries for leg in legs),
            foreign_tokens=foreign,
            computed_tokens=None if cached is None or prompt_tokens is None else prompt_tokens - cached,
            cached_tokens=cached,
            hit_rate_before=rate(known_total([leg.foreign_tokens for leg in self._sent]), self._sent),
            hit_rate_after=rate(total([leg.cached_tokens for leg in self._proof]), self._proof),
            evicted=sum(leg.hits_mostly is False for leg in self._proof),
            ttft_cold_ms=_ttft([leg for leg in self._sent if leg.hits_mostly is False]),
            ttft_warm_ms=_ttft(self._proof),
            control=self._control,
            witness=str(legs[0].witness if legs else Witness.NOBODY),
            is_flushed=self._was_asked_to_flush and bool(self._sent) and foreign == 0,
            fault=fault,
        )


def _ttft(legs: Sequence[Leg]) -> Percentiles:
    return percentiles([leg.observation.ttft_s for leg in legs if leg.observation.ttft_s is not None])
