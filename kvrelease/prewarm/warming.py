"""One replica's run: flush where allowed, send the plan, touch, ask again; told as a `ReplicaResult` at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

import msgspec

from kvrelease.artifacts import Fault, fault_of
from kvrelease.binding.control import nonce_request
from kvrelease.binding.deployment import Replica
from kvrelease.binding.flushing import Flushing
from kvrelease.binding.hits import Unattributed, weightiest
from kvrelease.binding.observe import Leg, Witness, total
from kvrelease.engines.base import Request
from kvrelease.errors import KvreleaseError
from kvrelease.prewarm.capacity import share_saved
from kvrelease.prewarm.journal import Journal, Past
from kvrelease.prewarm.order import Schedule
from kvrelease.prewarm.pace import AUTO_CAP, Pace
from kvrelease.prewarm.planning import Planned
from kvrelease.prewarm.proof import Tally, foreign_of, percentiles, sample
from kvrelease.prewarm.proving import Proof
from kvrelease.prewarm.result import ControlResult, Limits, ReplicaResult
from kvrelease.prewarm.sending import Sender, computed_tokens
from kvrelease.prewarm.watch import Watch

# Prompts asked again, as production does, to prove residency.
PROOF_PROMPTS = 12

# Prompts that are refused one after the other before the control tells whether that is the prompts' fault, or the
# server takes nothing at all.
FIRST_TRIES = 3

# A control of which a request got no proper answer is sent anew as often, where errors are allowed at all.
CONTROL_TRIES = 3


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is to be done, the same for every replica.

    Attributes:
        concurrency: most requests in flight on one replica; None to find out.
        limits: what a replica must show.
        deadline: when to send no more of the plan, by the monotonic clock; None for no limit.
        budget_tokens: prompt tokens that a replica may compute for the plan; None for no limit.
        passes: times that the sample is asked again; the last one counts.
        replicas: of the run.
    """

    concurrency: int | None
    limits: Limits
    deadline: float | None = None
    budget_tokens: int | None = None
    passes: int = 1
    replicas: int = 1


class Warming:
    """One replica's run."""

    def __init__(
        self,
        replica: Replica,
        *,
        planned: Planned,
        terms: Terms,
        flushing: Flushing | None,
        journal: Journal | None,
        watch: Watch,
        fault: Fault | None = None,
    ) -> None:
        """Prepares the run; nothing is sent yet.

        Args:
            replica: ready to be asked.
            planned: its plan.
            terms: of the run.
            flushing: empties the cache first; None where nobody permits it.
            journal: where what was sent is written; None for nowhere.
            watch: told after each request.
            fault: why nothing is sent at all; None where it is.
        """
        self.replica = replica
        self.plan = planned.plan
        self._tree = planned.tree
        self._requests = planned.requests
        self._cost_tokens = planned.cost_tokens
        self._without_numbers = planned.without_numbers
        self._terms = terms
        self._flushing = flushing
        self._journal = journal
        self._watch = watch
        self._prompts = {prompt.id: prompt for prompt in replica.deployment.prompt_set.prompts}
        self._past = Past()
        self._schedule = Schedule(self._tree, self.plan.order)
        pace = Pace(terms.concurrency or AUTO_CAP)
        self._sender = Sender(replica, pace=pace, allows=self._allows, replicas=terms.replicas)
        self._sent, self._touched, self._retouched = Tally(), Tally(), Tally()
        self._proof = Proof(
            replica,
            sender=self._sender,
            requests=self._requests,
            note=self._note_hit,
            heard=lambda: watch.answered(self.name),
        )
        self._control: ControlResult | None = None
        self._lost: dict[str, None] = {}
        self._fault = fault
        self._was_asked_to_flush = False
        self._ended_by: str | None = None
        self._refused_tokens: int | None = None
        self._spent_tokens = 0
        self._given_tokens = 0
        self._least_tokens = 0
        self._answered: set[str] = set()  # prompts of the plan, by this run
        self._plan_s: float | None = None

    @property
    def name(self) -> str:
        """How people read which replica this is."""
        return self.replica.identity.shown

    @property
    def _has_slots(self) -> bool:
        return self.replica.identity.capabilities.cacheable_limit is not None

    @property
    def _resumed(self) -> frozenset[str]:
        """Prompts of the plan that an earlier run in this process has sent."""
        return self._past.done & frozenset(self.plan.order)

    async def run(self) -> None:
        """The whole run; a fault of the engine ends it and is kept."""
        if self._fault is not None:
            return
        try:
            await self._run()
            await self.replica.observer.require_same_process()
        except KvreleaseError as error:
            self._fault = fault_of(error, where=self.name)

    @property
    def is_complete(self) -> bool:
        """Everything that was planned was sent."""
        return self._fault is None and self._ended_by is None and self._schedule.is_over

    async def _run(self) -> None:
        if self._flushing is not None:
            await self._flushing.flush(self.replica)
            self._was_asked_to_flush = True  # after a flush that worked, no hit is foreign
        self._resume()
        touch = () if self._has_slots else tuple(reversed(self.plan.order))
        asked_again = len(touch) + self._terms.passes * len(self._proof_ids()) + len(self.plan.slot_of)
        self._watch.expect(self.name, self._schedule.left + asked_again + 2 * bool(self.plan.order))
        if not self.plan.order:
            return
        await self._send_plan()
        if self._is_over:
            return
        await self._touch(touch)
        if self._is_dirty:
            return
        proof = tuple(prompt_id for prompt_id in self._proof_ids() if prompt_id not in self._sender.left_out)
        # By the control, not by the plan: of a plan that an earlier run had sent in whole nothing was sent.
        is_untold = self._control is not None and self._control.hits is None
        for _ in range(self._terms.passes):
            await self._proof.ask(proof, with_times=is_untold)
        slots = self.plan.slot_of.items()
        await self._proof.ask_slots({one: slot for one, slot in slots if one not in self._sender.left_out})

    @property
    def _passes(self) -> tuple[Tally, ...]:
        return (self._sent, self._touched, self._retouched, *self._proof.passes, self._proof.by_slot)

    @property
    def _is_over(self) -> bool:
        return self._ended_by is not None or self._is_dirty

    @property
    def _is_dirty(self) -> bool:
        return any(one.is_dirty for one in self._passes)

    # --- before the first request ------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Takes over what an earlier run, which was cut short, did in this very process."""
        process = self.replica.identity.process
        if self._journal is None or process is None:
            return  # without a process identity nothing tells whether the cache is still the same
        if not self._was_asked_to_flush:
            self._past = self._journal.past(self.name, process=process)
        self._journal.follow(self.name, process=process, anew=self._was_asked_to_flush)
        for prompt_id in (self._past.done | self._past.begun) & frozenset(self.plan.order):
            # What was in flight may be there in part or in whole: whatever of it hits is this release's own.
            if self.replica.tokens is not None:
                self.replica.observer.learn(self._requests[prompt_id], self.replica.tokens[prompt_id])
        self._schedule = Schedule(self._tree, self.plan.order, done=self._resumed)

    def _proof_ids(self) -> tuple[str, ...]:
        if self.plan.proof_first:
            return self.plan.proof_first
        weights = {prompt_id: self._prompts[prompt_id].weight for prompt_id in self.plan.order}
        return sample(self.plan.order, weights=weights, size=PROOF_PROMPTS)

    # --- the plan ----------------------------------------------------------------------------------------------------

    async def _send_plan(self) -> None:
        """The first prompt alone, which tells whether usage speaks; the control; then the rest.

        A run that resumes on slots sends the control before anything else: into one whose prompt is yet to be sent.
        """
        began = time.monotonic()
        first = None if self._has_slots and self._resumed else await self._send_first()
        if not self._is_over:
            sent = (*self._resumed, *(() if first is None else (first,)))
            await self._send_control(sent)
            lost = self.plan.numbers.lost_to_control(sent, resumed=self._resumed)
            await self._flow(self._each(lost), into=self._touched)
        await self._flow(self._next, into=self._sent, is_planned=True)
        self._plan_s = time.monotonic() - began

    async def _send_first(self) -> str | None:
        """The first prompt of the plan that the server takes, of a few; None where there is none."""
        for _ in range(FIRST_TRIES):
            first = self._next()
            if first is None:
                return None
            await self._flow(self._each((first,)), into=self._sent, is_planned=True)
            if first not in self._sender.left_out:
                return first
        return None

    async def _touch(self, prompt_ids: tuple[str, ...]) -> None:
        """Asks for every branch once more, and for all of them again where too few hit.

        Draft heads let the first repeat of a prompt miss; a cache that is too small misses both times, because what the
        first pass computes anew throws out what it found.
        """
        await self._flow(self._each(prompt_ids), into=self._touched)
        rate = self._touched.hit_rate
        if rate is not None and rate < self._terms.limits.min_hit_rate:
            self._watch.expect(self.name, len(prompt_ids))
            await self._flow(self._each(prompt_ids), into=self._retouched)

    def _allows(self, errors: int) -> bool:
        return self._terms.limits.allows_errors(errors, planned=len(self.plan.order))

    async def _flow(self, take: Callable[[], str | None], *, into: Tally, is_planned: bool = False) -> None:
        """Sends what `take` gives, until it gives nothing and all came back."""

        async def send(prompt_id: str) -> None:
            await self._send(prompt_id, into=into, is_planned=is_planned)

        await self._sender.flow(take, send, most=self.plan.most_in_flight, is_long=is_planned)

    def _on_its_slot(self, prompt_id: str) -> Request:
        """The request, to the slot that the plan has for it; as production sends it where there is none."""
        request = self._requests[prompt_id]
        slot = self.plan.slot_of.get(prompt_id)
        return request if slot is None else msgspec.structs.replace(request, slot=slot)

    def _each(self, prompt_ids: Iterable[str]) -> Callable[[], str | None]:
        """Gives the ids one by one, and None after the last, or once the run is over."""
        wanted = (prompt_id for prompt_id in prompt_ids if prompt_id not in self._sender.left_out)
        return lambda: None if self._is_over else next(wanted, None)

    def _next(self) -> str | None:
        """The next prompt of the plan that may start and that the budgets allow; None for none now."""
        if self._is_over:
            return None
        if self._terms.deadline is not None and time.monotonic() > self._terms.deadline:
            self._ended_by = "the time budget"
            return None
        prompt_id = self._schedule.start()
        if prompt_id is None:
            return None
        cost = self._cost_of(prompt_id)
        budget = self._terms.budget_tokens
        if budget is not None and self._spent_tokens + cost > budget:
            self._schedule.give_up(prompt_id)
            self._ended_by, self._refused_tokens = "the token budget", cost
            return None
        self._spent_tokens += cost
        return prompt_id

    def _cost_of(self, prompt_id: str) -> int:
        """The fewest tokens that a prompt in flight makes the engine compute."""
        known = self._cost_tokens.get(prompt_id)
        return self._schedule.cost(prompt_id) if known is None else known

    async def _send(self, prompt_id: str, *, into: Tally, is_planned: bool) -> None:
        if is_planned and self._journal is not None:
            self._journal.begin(self.name, prompt_id)
        is_late = not is_planned and self._sender.is_failed(prompt_id)
        leg: Leg | None = None
        try:
            leg = await self._sender.tried(self._on_its_slot(prompt_id), prompt_id=prompt_id)
        finally:
            if is_planned and leg is None:
                self._spent_tokens -= self._cost_of(prompt_id)
                self._schedule.give_up(prompt_id)
        if leg is None:
            return
        # What failed while the plan was sent, and is answered when it is touched, is sent late: no miss of a repeat.
        (self._sent if is_late else into).add(leg)
        if not is_planned and not is_late:
            self._note_hit(prompt_id, leg)
        else:
            self._answered.add(prompt_id)
        if is_planned:
            self._count_bound(self._cost_of(prompt_id), computed=computed_tokens(leg))
            self._schedule.finish(prompt_id)
        elif is_late:
            self._least_tokens += computed_tokens(leg) or 0
        if (is_planned or is_late) and self._journal is not None and not leg.foreign_tokens:
            self._journal.finish(self.name, prompt_id)
        self._watch.answered(self.name)

    def _note_hit(self, prompt_id: str, leg: Leg) -> None:
        """Keeps which prompts were not there when they were asked again."""
        if leg.hits_mostly is False:
            self._lost[prompt_id] = None
        else:
            self._lost.pop(prompt_id, None)

    def _count_bound(self, cost: int, *, computed: int | None) -> None:
        """Adds what a request of the plan had to compute: no more than its cost, and less where blocks were there."""
        given = 0 if computed is None else max(0, cost - computed)
        self._given_tokens += given
        self._least_tokens += cost - given

    async def _send_control(self, sent: Collection[str]) -> None:
        """The control; anew, with another prompt, where a request of it got no proper answer and errors are left."""
        for _ in range(CONTROL_TRIES):
            self._control = await self._controlled(sent)
            if self._control is not None:
                break
        self._watch.answered(self.name)
        self._watch.answered(self.name)

    async def _controlled(self, sent: Collection[str]) -> ControlResult | None:
        """A unique prompt twice; on slots, another in between, and both times to the same slot by its number.

        None where that says nothing: not all was answered, or an attempt that nobody heard of may have been computed.
        """
        request = await nonce_request(
            self.replica.observer,
            route=self._requests[self.plan.order[0]].route,
            production=self.replica.deployment.production,
            model=self.replica.identity.model,
            salt=self.replica.deployment.salt,
        )
        numbers = self.plan.numbers
        to_slot = msgspec.structs.replace(request, slot=numbers.for_control(self._resumed))
        first = await self._sender.tried(to_slot)
        if first is None or (first.hits_mostly and first.observation.retries):
            return None
        between = numbers.beside_control(sent, resumed=self._resumed)
        if between is not None:
            beside = await self._sender.tried(self._requests[between], prompt_id=between)
            if beside is None:
                return None
            self._touched.add(beside)
            self._watch.answered(self.name)
        again = await self._sender.tried(to_slot)
        if again is not None and between is not None and again.hits_mostly is False:
            self._do_without_numbers(sent)
            again = await self._sender.tried(request)
        if again is None:
            return None
        told = first if first.hits_mostly else again
        hits = None if first.hits_mostly is None or again.hits_mostly is None else told is again and again.hits_mostly
        return ControlResult(hits=hits, cached_tokens=told.cached_tokens, prompt_tokens=told.prompt_tokens)

    def _do_without_numbers(self, sent: Collection[str]) -> None:
        """Goes on with the plan for a server that did not keep in a slot what was sent to it by its number."""
        assert self._without_numbers is not None, "only slots are sent to by their numbers"
        self.plan, self._cost_tokens = self._without_numbers.plan, self._without_numbers.cost_tokens
        self._schedule = Schedule(self._tree, self.plan.order, done=frozenset(sent))

    # --- what it showed ----------------------------------------------------------------------------------------------

    def result(self) -> ReplicaResult:
        """What this replica has shown so far."""
        identity = self.replica.identity
        foreign = foreign_of(self._passes)
        computed = self._sent.computed_tokens
        doubt = weightiest({doubt for one in self._passes for doubt in one.doubts})
        # A bound of other ids than those that are computed says nothing.
        least = None if doubt is Unattributed.OTHER_IDS else self._least_tokens
        has_bound = computed is not None and least is not None and self.plan.lower_bound_tokens is not None
        touches = [one for one in (self._touched, self._retouched) if one.answered]
        found = ReplicaResult(
            url=identity.url,
            name=identity.name,
            rank=identity.rank,
            is_identified=identity.process is not None,
            has_flush=identity.capabilities.has_flush,
            labels=identity.labels,
            plan=self.plan,
            planned=len(self.plan.order),
            expected_hit_rate=self._expected_hit_rate(),
            sent=self._sent.answered,
            resumed=len(self._resumed),
            restarted=self._past.is_of_another_process,
            touched=self._touched.answered + self._retouched.answered,
            asked_again=self._proof.last.answered,
            errors=self._sender.errors,
            retries=sum(one.retries for one in self._passes),
            foreign_tokens=foreign,
            unattributed=doubt,
            computed_tokens=computed,
            cached_tokens=self._sent.cached_tokens,
            touch_computed_tokens=total([one.computed_tokens for one in touches]),
            hit_rate_touched=None if self._has_slots or not touches else touches[-1].hit_rate,
            lost=tuple(self._lost),
            given_tokens=self._given_tokens if has_bound else None,
            over_lower_bound=computed / least if computed is not None and least else None,
            hit_rate_before=self._sent.rate_of(self._sent.foreign_tokens),
            hit_rate_after=self._proof.last.hit_rate,
            evicted=self._proof.last.evicted,
            ttft_cold_ms=percentiles(self._sent.cold_s),
            ttft_warm_ms=percentiles(self._proof.last.times_s),
            control=self._control,
            slots=tuple(self._proof.slots),
            miss_causes=identity.capabilities.miss_causes,
            witness=str(next((one.witness for one in self._passes if one.answered), Witness.NOBODY)),
            second=self._proof.second,
            store=self._proof.store,
            times=self._proof.times,
            most_in_flight=self._sender.most_in_flight,
            throttled=sum(self._sender.lowered_by.values()),
            lowered_by=self._sender.lowered_by,
            plan_s=self._plan_s,
            skipped=tuple(self._sender.left_out.values()),
            failed=self._sender.failed,
            is_flushed=self._was_asked_to_flush and bool(self._sent.answered) and foreign == 0,
        )
        return msgspec.structs.replace(found, fault=self._fault or self._end_of_budget(found))

    def _expected_hit_rate(self) -> float | None:
        if self.plan.expected_hit_rate is None:
            return None
        staying = self.plan.proof_first if self._has_slots else self.plan.order
        resident = (self._answered | self._resumed).intersection(staying)
        weights = {prompt_id: prompt.weight for prompt_id, prompt in self._prompts.items()}
        return share_saved(self._tree, weights, resident=resident)

    def _end_of_budget(self, found: ReplicaResult) -> Fault | None:
        if self._ended_by is None:
            return None
        return Fault(
            where=self.name,
            exit_code=0,
            message=f"{self._ended_by} ended {found.how_far(self.plan)}",
            hint=self._after_budget(),
        )

    def _after_budget(self) -> str:
        if self._sent.answered:
            return "run it again: what is resident is not computed twice"
        if self._refused_tokens is None:
            return "raise --budget: nothing was sent before it ended"
        return f"raise --budget-tokens: the next request computes {self._refused_tokens} tokens at least"
