"""Filling a new release's prefix cache on every replica, and proving it is resident."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import msgspec

from kvrelease.artifacts import Fault, Verdict
from kvrelease.binding.closing import close_run, until_interrupted
from kvrelease.binding.deployment import Deployment, Replica, prepare_all
from kvrelease.binding.flushing import Flushing
from kvrelease.binding.left_out import faults_of
from kvrelease.binding.ranks import RankProof, prove_ranks, rank_fault
from kvrelease.binding.unready import Unready, require_one_ready
from kvrelease.engines.base import EngineClient
from kvrelease.fleet.names import Changes, Undone, faults_of_changes
from kvrelease.ledger.store import Ledger
from kvrelease.prewarm.journal import Journal, JournalKey
from kvrelease.prewarm.judge import cannot_be_cached, judge
from kvrelease.prewarm.pace import Slower
from kvrelease.prewarm.plan import Plan
from kvrelease.prewarm.planning import MAX_TOKENS, Planner
from kvrelease.prewarm.result import Limits, PrewarmPlan, PrewarmReport, ReplicaPlan, ReplicaResult, SlotResult
from kvrelease.prewarm.warming import Terms, Warming
from kvrelease.prewarm.watch import Watch
from kvrelease.printable import number_of
from kvrelease.progress import Progress, silent

_UNWARMED = Undone(
    what="not warmed",
    hint="run it again (what is resident is not computed twice), or let each pod warm itself at its start",
)


# Of what lowered the number of requests in flight, what its operator can see on the server; that more at once did not
# make it faster is no news.
_SLOWER = {
    Slower.ASKED: "the server asked for it, 429 or 503",
    Slower.QUEUE: "requests waited in the server's queue",
}


def journal_key(deployment: Deployment) -> JournalKey:
    """What the journal of a deployment is about."""
    return JournalKey(
        namespace=deployment.namespace,
        key_space=deployment.key_space,
        prompt_set=deployment.prompt_set.digest,
    )


async def prewarm(
    engines: Sequence[EngineClient | Unready],
    *,
    deployment: Deployment,
    ledger: Ledger,
    concurrency: int | None = None,
    limits: Limits | None = None,
    allows_flush: bool = False,
    budget_s: float | None = None,
    budget_tokens: int | None = None,
    block_tokens: int | None = None,
    passes: int = 1,
    journal: Journal | None = None,
    changes: Changes | None = None,
    progress: Progress = silent,
) -> PrewarmReport:
    """Warms every replica concurrently, and proves it.

    Args:
        engines: open, one per replica; those that could not be opened are named in the report.
        deployment: release, key space and prompts.
        ledger: what earlier runs computed, and where this one is written.
        concurrency: most requests in flight on one replica; None to find out what each takes.
        limits: what every replica must show.
        allows_flush: this engine's own cache may be emptied first.
        budget_s: no request of the plan is sent after so many seconds; None for no limit.
        budget_tokens: prompt tokens that a replica may compute for the plan; None for no limit.
        block_tokens: the block size that the user states, of engines that do not tell theirs; None for none.
        passes: times that the sample is asked again; the last one counts.
        journal: of this deployment, open; None to write none. It is deleted when the run is complete.
        changes: asked at the end for addresses that came or went meanwhile.
        progress: told after each request.

    Returns:
        The report; also when it was cancelled (Ctrl-C), with what was measured so far.

    Raises:
        KvreleaseError: no replica could be prepared; nothing was generated on any of them.
    """
    replicas, unready = await _prepared(engines, deployment=deployment, ledger=ledger, block_tokens=block_tokens)
    proofs = await prove_ranks(replicas)
    rank_faults = [rank_fault(*pair) for pair in zip(replicas, proofs, strict=True)]
    doubts = [
        fault
        for fault, proof in zip(rank_faults, proofs, strict=True)
        if fault is not None and proof is RankProof.UNPROVEN
    ]
    limits = limits or Limits()
    flushing = Flushing(ledger, command="prewarm") if allows_flush else None
    planner = Planner(concurrency=concurrency)
    await planner.fronts(replicas)
    watch = Watch(progress, replicas=len(replicas))
    terms = Terms(
        concurrency=concurrency,
        limits=limits,
        deadline=None if budget_s is None else time.monotonic() + budget_s,
        budget_tokens=budget_tokens,
        passes=passes,
        replicas=len(replicas),
    )
    warmings = [
        Warming(
            replica,
            planned=planner.plan(replica),
            terms=terms,
            flushing=flushing,
            journal=journal,
            watch=watch,
            # Whatever is sent for a rank that is not reached warms another one, and is warmed again there.
            fault=fault if proof is RankProof.IGNORED else None,
        )
        for replica, proof, fault in zip(replicas, proofs, rank_faults, strict=True)
    ]
    found: Sequence[Fault] = ()
    with until_interrupted() as interruption:
        async with asyncio.TaskGroup() as group:
            for warming in warmings:
                group.create_task(warming.run())
        found = await faults_of_changes(changes, undone=_UNWARMED)
    results = [warming.result() for warming in warmings]
    plan = warmings[0].plan
    verdict, reason = judge(
        results,
        plan=plan,
        limits=limits,
        interrupted=interruption.happened,
        unready=[one.shown for one in unready],
        has_ledger=ledger.is_lasting,
        is_bound=deployment.salt == deployment.namespace,
    )
    missed = [one for one in (*doubts, *found) if one.exit_code]
    if missed and verdict is Verdict.PASS:
        verdict, reason = Verdict.INCONCLUSIVE, f"{missed[0].shown}; of the others: {reason}"
    is_complete = all(warming.is_complete for warming in warmings) and not interruption.happened
    if journal is not None and (is_complete or any(one.foreign_tokens for one in results)):
        journal.remove()
    closing = close_run(
        replicas, deployment=deployment, ledger=ledger, command="prewarm", verdict=verdict, reason=reason
    )
    return PrewarmReport(
        release=deployment.release,
        namespace=deployment.namespace,
        key_space=deployment.key_space,
        prompt_set=deployment.prompt_set.digest,
        verdict=verdict,
        reason=reason,
        plan=plan,
        replicas=tuple(_with_own_plan(one, plan) for one in results),
        limits=limits,
        interrupted=interruption.happened,
        notes=(*_named_twice(replicas, results), *_notes(results, plan)),
        faults=(
            *(one.fault for one in unready),
            *(one.fault for one in results if one.fault),
            *_left_out(results, plan=plan, limits=limits),
            *doubts,
            *found,
            *((journal.fault,) if journal is not None and journal.fault is not None else ()),
            *closing,
        ),
    )


async def _prepared(
    engines: Sequence[EngineClient | Unready], *, deployment: Deployment, ledger: Ledger, block_tokens: int | None
) -> tuple[tuple[Replica, ...], tuple[Unready, ...]]:
    """Those that can be asked, and those that cannot.

    Raises:
        KvreleaseError: none can.
    """
    prepared = await prepare_all(
        engines,
        deployment=deployment,
        memory=ledger,
        max_tokens=MAX_TOKENS,
        leaves_out=True,
        block_tokens=block_tokens,
    )
    return require_one_ready(prepared)


def _left_out(results: Sequence[ReplicaResult], *, plan: Plan, limits: Limits) -> Iterator[Fault]:
    """Prompts that were left out of a replica's run, where more were than may."""
    for one in results:
        if not one.has_room_for_skipped(limits, order=frozenset((one.plan or plan).order)):
            yield from faults_of(one.skipped, where=one.shown)


async def plan_only(
    engines: Sequence[EngineClient | Unready],
    *,
    deployment: Deployment,
    ledger: Ledger,
    concurrency: int | None = None,
    block_tokens: int | None = None,
    journal: Journal | None = None,
    rate: float | None = None,
) -> PrewarmPlan:
    """What `prewarm` would send, and what it costs; nothing is generated, nothing is written.

    Args:
        engines: as for `prewarm`.
        deployment: likewise.
        ledger: what earlier runs computed.
        concurrency: likewise.
        block_tokens: likewise.
        journal: of an earlier run that was cut short; None without one.
        rate: tokens that a replica computes in a second; None when nobody knows.

    Raises:
        KvreleaseError: no replica could be prepared.
    """
    replicas, unready = await _prepared(engines, deployment=deployment, ledger=ledger, block_tokens=block_tokens)
    planner = Planner(concurrency=concurrency)
    await planner.fronts(replicas)
    plans = [planner.plan(replica).plan for replica in replicas]
    first = plans[0]
    nothing = cannot_be_cached(first)
    return PrewarmPlan(
        release=deployment.release,
        namespace=deployment.namespace,
        key_space=deployment.key_space,
        prompt_set=deployment.prompt_set.digest,
        plan=first,
        replicas=tuple(
            _replica_plan(replica, plan=plan, first=first, journal=journal, rate=rate)
            for replica, plan in zip(replicas, plans, strict=True)
        ),
        rate=rate,
        notes=(*((nothing,) if nothing else ()), *first.warnings),
        faults=(
            *(one.fault for one in unready),
            *(fault for one in replicas for fault in faults_of(one.left_out.values(), where=one.identity.shown)),
        ),
    )


def _replica_plan(
    replica: Replica, *, plan: Plan, first: Plan, journal: Journal | None, rate: float | None
) -> ReplicaPlan:
    identity = replica.identity
    done = frozenset[str]()
    if journal is not None:
        done = journal.past(identity.shown, process=identity.process).done
    bound = plan.lower_bound_tokens
    return ReplicaPlan(
        url=identity.url,
        name=identity.name,
        rank=identity.rank,
        plan=None if plan == first else plan,
        resumed=len(done & frozenset(plan.order)),
        skipped=tuple(replica.left_out.values()),
        seconds=None if rate is None or bound is None else bound / rate,
    )


def _with_own_plan(one: ReplicaResult, plan: Plan) -> ReplicaResult:
    """The result without its plan where that is the report's."""
    is_same = one.plan is plan or one.plan == plan
    return msgspec.structs.replace(one, plan=None) if is_same else one


def _named_twice(replicas: Sequence[Replica], results: Sequence[ReplicaResult]) -> Iterator[str]:
    """Of a replica that is dirty, another one of this run that tells the same process: it may be the same engine."""
    for replica, found in zip(replicas, results, strict=True):
        process = replica.identity.process
        if not found.foreign_tokens or process is None or found.rank is not None:
            continue
        twins = [one.identity.shown for one in replicas if one is not replica and one.identity.process == process]
        if twins:
            yield (
                f"{found.shown} tells the same process as {', '.join(twins)}: where that is one engine by two URLs, "
                "each took the other's entries for foreign ones; name it once"
            )


def _notes(results: Sequence[ReplicaResult], plan: Plan) -> tuple[str, ...]:
    notes = list(plan.warnings)
    resumed = sum(one.resumed for one in results)
    if resumed:
        sent = number_of(resumed, "request that it sent is", "requests that it sent are")
        notes.append(f"an earlier run was cut short: {sent} not sent again")
    restarted = [one.shown for one in results if one.restarted]
    if restarted:
        notes.append(
            f"an earlier run was cut short, and the engine process is another one by now, so everything is sent anew: "
            f"{', '.join(restarted)}"
        )
    asking = [one.shown for one in results if one.store is not None]
    if len(asking) > 1 and not any(one.store.cached_tokens for one in results if one.store is not None):
        notes.append(
            f"{len(asking)} replicas look prompts up in a store outside their processes, and none of them has ever "
            "found anything there: they hash differently (PYTHONHASHSEED, LMCache's pre_caching_hash_algorithm), "
            "have stores of their own, or have only warmed at the same moment"
        )
    for one in results:
        if one.slots:
            notes.append(f"{one.shown}: {_told_of_slots(one.slots)}")
        if one.second is not None and one.second.counter_tokens is None and one.second.is_shared:
            notes.append(f"{one.shown}: other clients were on the engine: its counters are no second witness")
        told = [f"{_SLOWER[why]} ({count} ×)" for why, count in one.lowered_by.items() if why in _SLOWER]
        if told:
            notes.append(f"{one.shown}: fewer requests in flight, because {' and '.join(told)}")
    return tuple(notes)


def _told_of_slots(slots: Sequence[SlotResult]) -> str:
    """What the slots showed that were asked by their numbers."""
    cold = next((one for one in slots if one.is_warm is False), None)
    if cold is not None:
        return (
            f"slot {cold.slot}, asked by its number for {cold.prompt}, served {cold.cached_tokens} of "
            f"{cold.cacheable_tokens} cacheable tokens: a request of somebody else took it, or something on the way "
            "drops id_slot; what production's own requests hit is the hit rate"
        )
    if any(one.is_warm is None for one in slots):
        return "whether each slot holds the prompt that was sent to it is not known: nobody tells its hits"
    which = "the slot" if len(slots) == 1 else f"each of {len(slots)} slots"
    return (
        f"{which}, asked by its number, served all cacheable tokens of its own prompt "
        f"({sum(one.cached_tokens or 0 for one in slots):,} in all)"
    )
