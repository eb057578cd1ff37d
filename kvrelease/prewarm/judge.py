"""The verdict on all replicas, and why; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from kvrelease.artifacts import Verdict
from kvrelease.binding.hits import Unattributed, clean_up
from kvrelease.binding.left_out import told
from kvrelease.binding.observe import Witness
from kvrelease.prewarm.plan import Plan
from kvrelease.prewarm.proof import is_likely_warm
from kvrelease.prewarm.result import Limits, ReplicaResult
from kvrelease.printable import number_of

# Each block of a plan is computed once, by one cache; real vLLM measured at 1.00, with half the room too
# (docs/benchmarks.md), two engines behind a random balancer at 1.3. A share for a block or two of a small plan.
MAX_OVER_BOUND = 1.05
# Where an engine names no causes of its own.
_MISS_CAUSES = ("prefix caching is off", "a router sends the two to different caches", "a gateway changes the prompt")


def judge(
    replicas: Sequence[ReplicaResult],
    *,
    plan: Plan,
    limits: Limits,
    interrupted: bool,
    unready: Sequence[str] = (),
    has_ledger: bool = True,
    is_bound: bool = False,
) -> tuple[Verdict, str]:
    """The verdict on all replicas, and why.

    Args:
        replicas: that were asked.
        plan: of those that have none of their own.
        limits: what they must show.
        interrupted: the run was cut short.
        unready: replicas that could not be asked, as people read them.
        has_ledger: it knows what earlier runs computed.
        is_bound: requests carry the release's namespace, so that a new epoch is another key space.
    """
    dirt = (
        _dirt(one, has_ledger=has_ledger, cure=clean_up(is_bound=is_bound, has_flush=one.has_flush))
        for one in replicas
        if one.foreign_tokens
    )
    others = _findings(replicas, plan=plan, limits=limits, interrupted=interrupted, unready=unready)
    return next(itertools.chain(((Verdict.FAIL, why) for why in dirt), others))


def _dirt(one: ReplicaResult, *, has_ledger: bool, cure: str) -> str:
    start = f"{one.shown}: {one.foreign_tokens} cached tokens were there that"
    if not has_ledger:
        return (
            f"{start} this run did not compute, and it knows of no earlier one (--no-ledger): what an earlier run of "
            f"this very release computed looks the same. kvrelease verify tells whose they are, and a ledger would. "
            f"{cure}"
        )
    if not one.is_identified:
        return (
            f"{start} this run did not compute, and nothing tells this engine's process (is its /metrics closed?), so "
            "that what an earlier run of this very release computed is not known again, and looks the same. kvrelease "
            "verify tells whose they are; with /metrics open and the same ledger each time, the next run knows its "
            f"own. {cure}"
        )
    return (
        f"{start}, as far as this ledger knows, this release did not compute; prewarming does not repair a dirty "
        f"cache. {cure}. If only this release's own traffic can have made them, a run that was killed, or one with "
        "another ledger or to another URL of this engine (name the same ones each time), kvrelease verify tells"
    )


def _findings(
    replicas: Sequence[ReplicaResult], *, plan: Plan, limits: Limits, interrupted: bool, unready: Sequence[str]
) -> Iterator[tuple[Verdict, str]]:
    """What decides where nothing is dirty, the weightiest first: what was measured, then what is not known."""
    if not replicas:
        yield Verdict.INCONCLUSIVE, "no replica was prewarmed"
    for one in replicas:
        for why in _shortfalls(one, plan=plan, limits=limits):
            yield Verdict.FAIL, f"{one.shown}: {why}"
    if interrupted:
        where = _how_far(replicas, plan=plan)
        yield Verdict.INCONCLUSIVE, f"interrupted{where}; run it again, what is resident will not be computed twice"
    for one in replicas:
        for why in _open_questions(one, plan=plan, limits=limits):
            yield Verdict.INCONCLUSIVE, f"{one.shown}: {why}"
    if unready:
        others = "the other one is warm" if len(replicas) == 1 else f"the other {len(replicas)} are warm"
        yield Verdict.INCONCLUSIVE, f"could not be asked: {', '.join(unready)}; {others}"
    yield Verdict.PASS, _praise(replicas, plan=plan)


def _how_far(replicas: Sequence[ReplicaResult], *, plan: Plan) -> str:
    """How far the replica came that came least far."""
    if not replicas:
        return ""
    least = min(replicas, key=lambda one: one.sent + one.resumed)
    which = "" if len(replicas) == 1 else f" ({least.shown})"
    return f"{which} {least.how_far(least.plan or plan)}"


def _praise(replicas: Sequence[ReplicaResult], *, plan: Plan) -> str:
    rates = sorted(one.hit_rate_after for one in replicas if one.hit_rate_after is not None)
    if len(rates) < len(replicas):
        return (
            "likely warm by time to the first token alone, which --accept-ttft lets decide; foreign hits are not known"
        )
    rate = f"{rates[0]:.0%}" if rates[0] == rates[-1] else f"{rates[0]:.0%} to {rates[-1]:.0%}"
    worst = max((one.plan or plan for one in replicas), key=lambda own: len(own.without_slot))
    most = max((one.skipped for one in replicas), key=len)
    left_out = f"; as far as --max-error-rate allows, {told(most)}" if most else ""
    left_out += _cold_for_capacity(max((one.plan or plan for one in replicas), key=lambda own: len(own.dropped)))
    if not worst.without_slot:
        return f"foreign hits 0; asked again, {rate} of the cacheable tokens hit{left_out}"
    out = len(worst.without_slot)
    lack = "has no slot of its own and was not asked" if out == 1 else "have no slot of their own and were not asked"
    return (
        f"foreign hits 0; asked again, {rate} of the cacheable tokens of what stays in slots hit; "
        f"{out} of {number_of(len(worst.order), 'prompt')} sent {lack}{left_out}"
    )


def _cold_for_capacity(plan: Plan) -> str:
    """What the cache has no room for; empty where it holds the set."""
    if not plan.dropped:
        return ""
    every = len(plan.order) + len(plan.dropped)
    out = len(plan.dropped)
    fit = "does not fit the cache and stays cold" if out == 1 else "do not fit the cache and stay cold"
    return f". {out} of {number_of(every, 'prompt')} {fit}" + (
        "" if plan.expected_hit_rate is None else f": expect {plan.expected_hit_rate:.0%} of this set's traffic to hit"
    )


def cannot_be_cached(plan: Plan) -> str | None:
    """Why nothing is to be sent; None where something is."""
    if plan.order:
        return None
    if plan.cannot_be_cached is not None:
        return plan.cannot_be_cached
    if plan.dropped:
        out = number_of(len(plan.dropped), "prompt does not fit", "prompts do not fit")
        return f"cannot be cached: {out} the cache of {number_of(plan.blocks_available or 0, 'block')}"
    return "cannot be cached: all prompts are shorter than one block"


def _shortfalls(one: ReplicaResult, *, plan: Plan, limits: Limits) -> Iterator[str]:
    """What was measured and is not good enough; nothing of a run that did not end, or of a cache in doubt."""
    if one.fault is not None:
        return
    is_in_doubt = _doubt_of_control(one) is not None or (one.second is not None and one.second.disagree)
    if one.hit_rate_after is None or is_in_doubt:
        return
    own = one.plan or plan
    stated = "" if own.stated_block_tokens is None else ", are its blocks larger than --block-tokens states"
    for rate, what in ((one.hit_rate_after, "asked again"), (one.hit_rate_touched, "every branch asked again")):
        if rate is not None and rate < limits.min_hit_rate:
            yield (
                f"{what}, {rate:.0%} of the cacheable tokens hit, less than {limits.min_hit_rate:.0%} "
                f"({number_of(len(one.lost), 'prompt was', 'prompts were')} evicted); is the cache smaller than the "
                f"plan's {own.blocks_needed} blocks{stated}, or is it busy with other traffic?"
            )
    warm_ms = one.ttft_warm_ms.p95
    if limits.max_ttft_ms is not None and warm_ms is not None and warm_ms > limits.max_ttft_ms:
        yield (
            f"asked again, the first token took {warm_ms:,.0f} ms at p95, more than {limits.max_ttft_ms:,.0f} ms, "
            f"though {one.hit_rate_after:.0%} of the cacheable tokens hit: is the server busy?"
        )


def _open_questions(one: ReplicaResult, *, plan: Plan, limits: Limits) -> Iterator[str]:
    """What is not known, and would have to be."""
    if one.fault:
        yield one.fault.message
    nothing = cannot_be_cached(one.plan or plan)
    if nothing:
        yield nothing
    if one.skipped and not one.has_room_for_skipped(limits, order=frozenset((one.plan or plan).order)):
        yield told(one.skipped)
    is_partly_told = one.unattributed is not None and one.hit_rate_after is not None
    if one.foreign_tokens is None and (one.witness != Witness.NOBODY or is_partly_told):
        yield f"hits are told, and cannot be attributed: {(one.unattributed or Unattributed.NO_IDS).reason}"
    if one.foreign_tokens is None:
        why = _doubt_of_silence(one, limits=limits)
        if why:
            yield why
        return
    if one.hit_rate_after is None and one.errors and not one.asked_again:
        yield "the hit rate is not known, because no request that was asked again got a proper answer"
    elif one.hit_rate_after is None:
        yield "the hit rate is not known, because the engine does not tell its block size"
    doubt = _doubt_of_control(one)
    if doubt:
        yield doubt
    over = one.over_lower_bound
    if over is not None and over > MAX_OVER_BOUND and not one.resumed:
        yield (
            f"it computed {over:.2f} times the fewest tokens that the plan takes: what it had computed was missing "
            "again. Several engines or ranks answer behind this URL (name each), it is busy with other traffic, or its "
            "cache keeps only some of the blocks (hybrid and sliding-window models)"
        )
    if one.second is not None and one.second.disagree:
        yield (
            f"two witnesses disagree: asked again, {one.second.usage_tokens} tokens were cached by the responses' "
            f"usage, and {one.second.counter_tokens} by the server's counters, which counted no other client's requests"
        )
    if limits.max_ttft_ms is not None and one.ttft_warm_ms.p95 is None:
        yield "--max-ttft-ms: no time to the first token was told"


def _doubt_of_silence(one: ReplicaResult, *, limits: Limits) -> str | None:
    why = (
        "the server does not tell how many tokens came from its cache, neither in usage nor in /metrics; not known "
        "is not zero. vLLM needs --enable-prompt-tokens-details, SGLang --enable-cache-report"
    )
    if one.times is None or one.times.ratio is None:
        return why
    found = (
        f"time to the first token, asked again against uncached: {one.times.ratio:.2f} (median of {one.times.pairs})"
    )
    if not is_likely_warm(one.times):
        return f"{why}. {found}: not likely warm"
    return None if limits.accepts_ttft else f"{why}. {found}: likely warm, which --accept-ttft lets decide"


def _doubt_of_control(one: ReplicaResult) -> str | None:
    control = one.control
    if control is None:
        return "the control got no proper answer, so that nothing shows that the cache can hit at all"
    if control.hits is None:
        return "nobody witnessed the control's hit"
    if not control.hits:
        return (
            f"a unique prompt of {control.prompt_tokens} tokens, sent twice, did not hit the second time alone "
            f"({control.cached_tokens} cached). Likely causes: {'; '.join(one.miss_causes or _MISS_CAUSES)}"
        )
    return None
