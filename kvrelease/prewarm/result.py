"""What prewarming showed, and the verdict on it; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef, Verdict
from kvrelease.binding.hits import CLEAN_UP
from kvrelease.binding.observe import Leg, Witness, total
from kvrelease.prewarm.plan import Plan


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


class ReplicaResult(msgspec.Struct, frozen=True, kw_only=True):
    """One replica after prewarming.

    Attributes:
        url: which one.
        rank: data-parallel rank, None where the engine has one cache.
        labels: what it claims about its weights; hints, never deciding.
        plan: what was to be sent.
        sent: requests of the plan that were answered.
        touched: requests of the touch pass, counted apart.
        errors: requests that were not answered properly.
        retries: requests sent again before they were answered.
        foreign_tokens: hits that this release did not compute; of what is known where there are any, None when there
            is no such hit and some cannot be told.
        computed_tokens: prompt tokens the engine computed for the plan; None when hits are not known.
        cached_tokens: prompt tokens it took from its cache while the plan was sent; None likewise.
        hit_rate_before: foreign tokens per cacheable token; None when not known.
        hit_rate_after: cached tokens per cacheable token when asked again; None when not known.
        evicted: of the prompts asked again, how many had lost half of their cacheable tokens.
        ttft_cold_ms: time to first token while the plan was sent, of requests that computed most of their prompt.
        ttft_warm_ms: of requests asked again.
        control: could the cache hit at all; None when the run stopped before.
        witness: who told the hits: `usage`, `counters` or `nobody`.
        is_flushed: this run emptied the cache first, and proved it.
        fault: what ended this replica's run early.
    """

    url: str
    rank: int | None = None
    labels: dict[str, str] = {}
    plan: Plan
    sent: int
    touched: int
    errors: int
    retries: int
    foreign_tokens: int | None
    computed_tokens: int | None
    cached_tokens: int | None
    hit_rate_before: float | None
    hit_rate_after: float | None
    evicted: int
    ttft_cold_ms: Percentiles
    ttft_warm_ms: Percentiles
    control: ControlResult | None
    witness: str
    is_flushed: bool = False
    fault: Fault | None = None


class PrewarmReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/prewarm"):
    """What `kvrelease prewarm` says.

    Attributes:
        release: that was prewarmed.
        namespace: of that release.
        key_space: the salt that requests carried, None for unsalted.
        prompt_set: digest of the prompt set.
        verdict: pass when every replica is clean and warm.
        reason: one sentence.
        plan: of the first replica.
        replicas: one entry each.
        min_hit_rate: what was asked for.
        interrupted: the run was cut short; what was measured is kept.
        faults: what ended replicas early, and what could not be written down.
    """

    release: ReleaseRef
    namespace: str
    key_space: str | None
    prompt_set: str
    verdict: Verdict
    reason: str
    plan: Plan
    replicas: tuple[ReplicaResult, ...]
    min_hit_rate: float
    interrupted: bool = False
    faults: tuple[Fault, ...] = ()


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """p50 and p95 by the nearest-rank method."""
    if not seconds:
        return Percentiles(p50=None, p95=None)
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(1000 * ordered[math.ceil(share * len(ordered)) - 1], 1)

    return Percentiles(p50=at(0.50), p95=at(0.95))


def rate(tokens: int | None, legs: Sequence[Leg]) -> float | None:
    """Tokens per cacheable token of some legs; None when either is not known or nothing is cacheable."""
    cacheable = total([leg.cacheable_tokens for leg in legs])
    return None if tokens is None or not cacheable else tokens / cacheable


def judge(replicas: Sequence[ReplicaResult], *, min_hit_rate: float, interrupted: bool) -> tuple[Verdict, str]:
    """The verdict on all replicas, and why."""
    dirty = [one for one in replicas if one.foreign_tokens]
    if dirty:
        worst = dirty[0]
        return Verdict.FAIL, (
            f"{worst.url}: {worst.foreign_tokens} cached tokens were there that, as far as this ledger knows, this "
            f"release did not compute; prewarming does not repair a dirty cache. {CLEAN_UP}. If only this release's "
            "own traffic, or a run with another ledger, can have made them, kvrelease verify tells"
        )
    if not replicas:
        return Verdict.INCONCLUSIVE, "no replica was prewarmed"
    if interrupted:
        return Verdict.INCONCLUSIVE, "interrupted; run it again, what is resident will not be computed twice"
    for one in replicas:
        why = _open_question(one)
        if why:
            return Verdict.INCONCLUSIVE, f"{one.url}: {why}"
    for one in replicas:
        if one.hit_rate_after is not None and one.hit_rate_after < min_hit_rate:
            return Verdict.FAIL, (
                f"{one.url}: asked again, {one.hit_rate_after:.0%} of the cacheable tokens hit, less than "
                f"{min_hit_rate:.0%} ({one.evicted} prompts were evicted); is the cache smaller than the plan's "
                f"{one.plan.blocks_needed} blocks, or busy with other traffic?"
            )
    rates = ", ".join(f"{one.hit_rate_after:.0%}" for one in replicas if one.hit_rate_after is not None)
    return Verdict.PASS, f"foreign hits 0; asked again, {rates} of the cacheable tokens hit"


def _open_question(one: ReplicaResult) -> str | None:
    if one.fault:
        return one.fault.message
    if not one.plan.senders:
        dropped = len(one.plan.dropped)
        why = f"{dropped} prompts do not fit the cache" if dropped else "all prompts are shorter than one block"
        return f"nothing of these prompts can be cached: {why}"
    if one.foreign_tokens is None and one.witness != Witness.NOBODY:
        return (
            "hits are told, and cannot be attributed: the server does not tell token ids (does a gateway close its "
            "/tokenize route?)"
        )
    if one.foreign_tokens is None:
        return (
            "the server does not tell how many tokens came from its cache, neither in usage nor in /metrics; not known "
            "is not zero. vLLM needs --enable-prompt-tokens-details"
        )
    if one.hit_rate_after is None:
        return "the hit rate is not known, because the engine does not tell its block size"
    return _doubt_of_control(one.control)


def _doubt_of_control(control: ControlResult | None) -> str | None:
    if control is None or control.hits is None:
        return "nobody witnessed the control's hit"
    if not control.hits:
        return (
            f"a unique prompt of {control.prompt_tokens} tokens, sent twice, did not hit the second time alone "
            f"({control.cached_tokens} cached): is prefix caching on, is the block larger than the prompt, does a "
            "router send the two to different replicas?"
        )
    return None
