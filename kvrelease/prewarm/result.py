"""What prewarming showed: the artifact and its parts."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef, Verdict
from kvrelease.binding.hits import Unattributed
from kvrelease.binding.left_out import LeftOut
from kvrelease.config import DEFAULT_MIN_HIT_RATE
from kvrelease.engines.base import shown_replica
from kvrelease.prewarm.pace import Slower
from kvrelease.prewarm.plan import Plan
from kvrelease.printable import number_of


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Two percentiles of a set of times, milliseconds; None without any."""

    p50: float | None
    p95: float | None


class ControlResult(msgspec.Struct, frozen=True, kw_only=True):
    """A unique prompt sent twice.

    Attributes:
        hits: the second time, and not the first; None when nobody witnessed.
        cached_tokens: of the second, or of the first where that one hit already.
        prompt_tokens: of the prompt.
    """

    hits: bool | None
    cached_tokens: int | None
    prompt_tokens: int | None


class SecondWitness(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's counters say of the requests that were asked again, beside what their usage says.

    Attributes:
        usage_tokens: cached tokens by the responses' own usage; None where it does not tell.
        counter_tokens: by the counters; None where they are closed, were reset, or count other clients' requests too.
        is_shared: the counters moved by more than our requests: others were on the engine.
    """

    usage_tokens: int | None
    counter_tokens: int | None
    is_shared: bool = False

    @property
    def disagree(self) -> bool:
        """Both speak of our requests alone, and one saw less than half of what the other did."""
        if self.usage_tokens is None or self.counter_tokens is None:
            return False
        low, high = sorted((self.usage_tokens, self.counter_tokens))
        return 2 * low < high


class StoreUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica asked of the store outside its process, since the process started.

    Attributes:
        queried_tokens: looked up there, > 0.
        cached_tokens: of these, found.
    """

    queried_tokens: int
    cached_tokens: int


class TimeWitness(msgspec.Struct, frozen=True, kw_only=True):
    """Times to the first token, where nobody tells cached tokens.

    Attributes:
        pairs: prompts that were asked once as they are and once with a prefix that nobody has cached.
        ratio: median of warm by cold; None without a pair.
    """

    pairs: int
    ratio: float | None


class SlotResult(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of an engine that has them, asked by its number for the prompt that was sent to it.

    Attributes:
        slot: its number.
        prompt: id of the prompt.
        cached_tokens: that came from it; None when nobody witnessed.
        cacheable_tokens: of the prompt; None when not known.
    """

    slot: int
    prompt: str
    cached_tokens: int | None
    cacheable_tokens: int | None

    @property
    def is_warm(self) -> bool | None:
        """All of the prompt that can be cached is; None when that is not known."""
        if self.cached_tokens is None or self.cacheable_tokens is None:
            return None
        return self.cached_tokens >= self.cacheable_tokens


class ReplicaResult(msgspec.Struct, frozen=True, kw_only=True):
    """One replica after prewarming.

    Attributes:
        url: which one.
        name: the name of which `url` is one address; None where the URL is what was given.
        rank: data-parallel rank, None where the engine has one cache.
        is_identified: its process could be told, by which the ledger knows what earlier runs computed there.
        has_flush: it empties its cache when it is told to.
        labels: what it claims about its weights; hints, never deciding.
        plan: what was to be sent; None where it is the plan of the report.
        planned: requests of the plan.
        expected_hit_rate: as that of the plan, with what was sent of it so far, by this run or one that was cut short.
        sent: requests of the plan that were answered.
        resumed: requests of the plan that an earlier run, which was cut short, had answered already.
        restarted: an earlier run was cut short, and its engine process is gone: nothing of it counts.
        touched: requests of the touch pass, counted apart.
        asked_again: requests of the proof that were answered, of its last pass.
        errors: requests of any part of the run that were not answered properly; a prompt counts once.
        retries: requests sent again before they were answered.
        foreign_tokens: hits that this release did not compute; of what is known where there are any, None when there
            is no such hit and some cannot be told.
        unattributed: why hits cannot be attributed, of several reasons that which explains most; None where they can.
        computed_tokens: prompt tokens the engine computed for the plan; None when hits are not known.
        cached_tokens: prompt tokens it took from its cache while the plan was sent; None likewise.
        touch_computed_tokens: prompt tokens it computed in the touch pass; None likewise.
        given_tokens: of the fewest that an empty cache would have had to compute for what was sent, those that were
            resident already (an earlier run, `record`); None likewise.
        hit_rate_touched: cached tokens per cacheable token of every branch, asked once more in the (last) touch pass;
            None when not known, and on an engine with slots, which gets none.
        lost: ids of prompts that had lost half of their cacheable tokens when they were last asked again.
        over_lower_bound: computed tokens by the fewest possible for what was sent, without those given; 1 or more, and
            above it only where something was computed twice; None likewise.
        hit_rate_before: foreign tokens per cacheable token; None when not known.
        hit_rate_after: cached tokens per cacheable token when asked again; None when not known.
        evicted: of the prompts asked again, how many had lost half of their cacheable tokens.
        ttft_cold_ms: time to first token while the plan was sent, of requests that computed most of their prompt.
        ttft_warm_ms: of requests asked again.
        control: could the cache hit at all; None when the run stopped before, or the control got no proper answer.
        slots: on an engine with slots, what each showed when it was asked by its number, up to the first that does not
            have its prompt.
        miss_causes: what, on this engine, lets an identical prompt miss; most likely first.
        witness: who told the hits: `usage`, `counters` or `nobody`.
        second: the other witness, of the requests that were asked again; None when they were not.
        store: what it asked of a store outside its process, by its counters; None where it has none, or does not tell.
        times: where nobody told the hits, what times to the first token suggest; None elsewhere.
        most_in_flight: the most requests that were in flight together.
        throttled: times that concurrency was lowered.
        lowered_by: the same by why: the server asked for it (429, 503), requests waited in its queue, or more of them
            at once did not make it faster.
        plan_s: seconds from the first request of the plan to the last answer.
        skipped: prompts that the server does not take, each with why: too long for its context, refused, or without
            ids. No errors; counted with them against `Limits.max_error_rate`.
        failed: prompts whose last request got no proper answer, by id: the budget of errors allowed for them, or one of
            them ended the run.
        is_flushed: this run emptied the cache first, and proved it.
        fault: what ended this replica's run early.
    """

    url: str
    name: str | None = None
    rank: int | None = None
    is_identified: bool = True
    has_flush: bool = True
    labels: dict[str, str] = {}
    plan: Plan | None = None
    planned: int = 0
    expected_hit_rate: float | None = None
    sent: int
    resumed: int = 0
    restarted: bool = False
    touched: int
    asked_again: int = 0
    errors: int
    retries: int
    foreign_tokens: int | None
    unattributed: Unattributed | None = None
    computed_tokens: int | None
    cached_tokens: int | None
    touch_computed_tokens: int | None = None
    given_tokens: int | None = None
    over_lower_bound: float | None = None
    hit_rate_touched: float | None = None
    lost: tuple[str, ...] = ()
    hit_rate_before: float | None
    hit_rate_after: float | None
    evicted: int
    ttft_cold_ms: Percentiles
    ttft_warm_ms: Percentiles
    control: ControlResult | None
    slots: tuple[SlotResult, ...] = ()
    miss_causes: tuple[str, ...] = ()
    witness: str
    second: SecondWitness | None = None
    store: StoreUse | None = None
    times: TimeWitness | None = None
    most_in_flight: int = 0
    throttled: int = 0
    lowered_by: dict[Slower, int] = {}
    plan_s: float | None = None
    skipped: tuple[LeftOut, ...] = ()
    failed: tuple[str, ...] = ()
    is_flushed: bool = False
    fault: Fault | None = None

    @property
    def shown(self) -> str:
        """How people read which replica this is."""
        return shown_replica(self.url, name=self.name, rank=self.rank)

    def how_far(self, plan: Plan) -> str:
        """How much of a plan was sent, and what that is worth: for a run that ended before all was."""
        found = f"after {self.sent + self.resumed} of {number_of(len(plan.order), 'request')}"
        if self.expected_hit_rate is None or plan.expected_hit_rate is None:
            return found
        now, whole = f"{self.expected_hit_rate:.0%}", f"{plan.expected_hit_rate:.0%}"
        more = "" if now == whole else f", {whole} with all of them"
        return f"{found}: expect {now} of this set's traffic to hit{more}"

    def has_room_for_skipped(self, limits: Limits, *, order: Collection[str]) -> bool:
        """Whether the prompts left out are few enough, together with the errors, for the rate that is allowed.

        Args:
            limits: of the run.
            order: ids of the plan, those left out before it was made apart.
        """
        before = sum(one.prompt not in order for one in self.skipped)
        return limits.allows_errors(self.errors + len(self.skipped), planned=len(order) + before)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a run must show to pass.

    Attributes:
        min_hit_rate: share of cacheable tokens that must hit when asked again.
        max_ttft_ms: the largest p95 of time to first token when asked again; None for any.
        max_error_rate: requests that may stay without a proper answer, of whatever part of the run, as a share of the
            plan's; one more ends the replica's run. Prompts that are left out count as well, and end nothing.
        accepts_ttft: where nobody tells cached tokens, times to the first token may decide.
    """

    min_hit_rate: float = DEFAULT_MIN_HIT_RATE
    max_ttft_ms: float | None = None
    max_error_rate: float = 0.0
    accepts_ttft: bool = False

    def allows_errors(self, errors: int, *, planned: int) -> bool:
        """Whether a replica's run goes on after so many, with so many requests in its plan."""
        return errors / max(planned, 1) <= self.max_error_rate


class PrewarmReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/prewarm"):
    """What `kvrelease prewarm` says.

    Attributes:
        schema: 2 has `order` in place of a plan's `waves`, and a replica's plan only where it differs from the first.
        release: that was prewarmed.
        namespace: of that release.
        key_space: the name of the one that requests asked in, never a secret; None for unsalted.
        prompt_set: digest of the prompt set.
        verdict: pass when every replica is clean and warm.
        reason: one sentence.
        plan: of the first replica.
        replicas: one entry each, of those that could be asked.
        limits: what was asked for.
        interrupted: the run was cut short; what was measured is kept.
        notes: what the operator should know, and what changes nothing about the verdict.
        faults: what ended replicas early, who could not be asked, and what could not be written down.
    """

    schema: int = 2
    release: ReleaseRef
    namespace: str
    key_space: str | None
    prompt_set: str
    verdict: Verdict
    reason: str
    plan: Plan
    replicas: tuple[ReplicaResult, ...]
    limits: Limits = Limits()
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()


class ReplicaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica would be sent.

    Attributes:
        url: which one.
        name: the name of which `url` is one address; None where the URL is what was given.
        rank: data-parallel rank, None where the engine has one cache.
        plan: what would be sent; None where it is the plan of the report.
        resumed: of its requests, those that an earlier run has answered already.
        skipped: prompts that the server does not take, each with why.
        seconds: that computing the lower bound takes at the rate given; None when no rate is known.
    """

    url: str
    name: str | None = None
    rank: int | None = None
    plan: Plan | None = None
    resumed: int = 0
    skipped: tuple[LeftOut, ...] = ()
    seconds: float | None = None

    @property
    def shown(self) -> str:
        """How people read which replica this is."""
        return shown_replica(self.url, name=self.name, rank=self.rank)


class PrewarmPlan(Artifact, frozen=True, kw_only=True, tag="kvrelease/prewarm-plan"):
    """What `kvrelease prewarm --dry-run` says; nothing was generated.

    Attributes:
        release: that would be prewarmed.
        namespace: of that release.
        key_space: the name of the one that requests would ask in, never a secret; None for unsalted.
        prompt_set: digest of the prompt set.
        plan: of the first replica.
        replicas: one entry each, of those that can be asked.
        rate: tokens that a replica computes in a second, as it was given; None when not known.
        notes: what the operator should know.
        faults: who cannot be asked.
    """

    release: ReleaseRef
    namespace: str
    key_space: str | None
    prompt_set: str
    plan: Plan
    replicas: tuple[ReplicaPlan, ...]
    rate: float | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
