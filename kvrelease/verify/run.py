"""The release gate on running engines: observe everything first, judge after."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from kvrelease.artifacts import Fault, ReleaseRef, fault_of
from kvrelease.binding.closing import Doubt, close_run, until_interrupted
from kvrelease.binding.deployment import Deployment, Replica, prepare, prepare_all
from kvrelease.binding.flushing import Flushing, require_flush
from kvrelease.binding.observe import total
from kvrelease.binding.production import stray_namespaces
from kvrelease.binding.ranks import RankProof, prove_ranks
from kvrelease.binding.unready import Unready, require_one_ready
from kvrelease.engines.base import EngineClient
from kvrelease.errors import InputError, KvreleaseError, PromptSetError
from kvrelease.fleet.names import Changes, Undone, faults_of_changes
from kvrelease.ledger.records import CacheOrigin
from kvrelease.ledger.store import Ledger
from kvrelease.progress import Progress, silent
from kvrelease.verify.checks import CheckId, CheckVerdict
from kvrelease.verify.claim import probes_needed
from kvrelease.verify.evidence import (
    Cost,
    Evidence,
    Limits,
    ReplicaEvidence,
)
from kvrelease.verify.flushes import Flushes
from kvrelease.verify.in_process import InProcess
from kvrelease.verify.judge import VerifyReport, judge
from kvrelease.verify.legs import Collector
from kvrelease.verify.probes import draw, long_enough
from kvrelease.verify.recheck import Cause
from kvrelease.verify.record import MAX_TOKENS, Record
from kvrelease.verify.twins import Twins

# Namespaces of earlier releases that are probed for exposure, latest first.
OTHER_NAMESPACES = 2

_UNJUDGED = Undone(what="not judged", hint="verify again, so that it is judged before it serves users")


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence of a run, and what ended parts of it early.

    Attributes:
        evidence: of all replicas.
        replicas: that were asked.
        faults: what ended parts of it early.
        interrupted: by Ctrl-C or SIGTERM.
    """

    evidence: Evidence
    replicas: tuple[Replica, ...]
    faults: tuple[Fault, ...]
    interrupted: bool


def keeps_nothing(evidence: Evidence) -> None:
    """Nothing is saved before a flush."""


async def observe(
    engines: Sequence[EngineClient | Unready],
    *,
    deployment: Deployment,
    ledger: Ledger,
    limits: Limits,
    twins: Twins,
    old_release: ReleaseRef | None = None,
    max_probes: int | None = None,
    seed: int = 0,
    allows_flush: bool = False,
    before_flush: Callable[[Evidence], None] = keeps_nothing,
    changes: Changes | None = None,
    progress: Progress = silent,
) -> Observed:
    """All observations of the gate, replica after replica, one request at a time.

    Args:
        engines: open, one per replica; one that cannot be asked leaves the run incomplete, the others are judged.
        deployment: release, key space and prompts.
        ledger: what earlier runs computed.
        limits: what is to be proved; decides how many probes are drawn.
        twins: second opinions.
        old_release: the one before, where it is named.
        max_probes: most probes; None for as many as the claim takes.
        seed: of the draw.
        allows_flush: an engine's own cache may be emptied, once, after everything that needs it as it was.
        before_flush: saves what was observed so far, before anything is emptied; where it cannot, nothing is.
        changes: asked at the end for addresses that came or went meanwhile.
        progress: told after each request.

    Returns:
        The evidence, also of a run that was cancelled or whose engine failed midway.

    Raises:
        KvreleaseError: no replica could be prepared, or a record is of something else; a flush is allowed that an
            engine cannot do.
    """
    started = time.monotonic()
    require_same(twins.golden, option="--golden", deployment=deployment, same_release=True)
    require_same(twins.baseline, option="--baseline", deployment=deployment, same_release=False)
    memory = _Amnesia(ledger) if limits.expects_cold else ledger
    prepared = await prepare_all(engines, deployment=deployment, memory=memory, max_tokens=MAX_TOKENS)
    replicas, unready = require_one_ready(prepared)
    if allows_flush:
        require_flush(replicas)
    reference = await _reference(twins.reference, deployment=deployment)
    first = replicas[0]
    usable, skipped = long_enough(
        deployment.prompt_set.prompts, [replica.tree if replica.tokens is not None else None for replica in replicas]
    )
    if not usable:
        blocks = sorted({replica.identity.capabilities.block_tokens or 0 for replica in replicas} - {0})
        raise PromptSetError(
            f"no prompt of {deployment.prompt_set.source} is longer than two blocks of "
            f"{' and '.join(map(str, blocks))} tokens on every replica, so none can show a stale prefix",
            hint="use prompts with production's shared system prompt, or serve with smaller blocks",
        )
    wanted = max_probes or probes_needed(stale_below=limits.stale_below, confidence=limits.confidence)
    probes = draw(usable, count=wanted, seed=seed)
    collectors = [
        Collector(
            replica,
            probes=probes,
            other_spaces=_other_spaces(replica, ledger=ledger),
            reference=reference,
            allows_flush=allows_flush,
            progress=progress,
        )
        for replica in replicas
    ]
    faults = [one.fault for one in unready]
    in_process = InProcess(probes=probes, replica=first, twins=twins, progress=progress)
    flushes = Flushes(collectors, Flushing(ledger, command="verify"))

    def seen(*, is_cut_short: bool) -> Evidence:
        parts = [_with_proof(in_process.joined(one), proof) for one, proof in zip(collectors, proofs, strict=True)]
        return Evidence(
            release=deployment.release,
            namespace=deployment.namespace,
            production_salt=deployment.key_space,
            prompt_set=deployment.prompt_set.digest,
            population=len(deployment.prompt_set),
            skipped=skipped,
            limits=limits,
            replicas=tuple(parts),
            power=tuple(in_process.power),
            stray_fields=stray_namespaces(deployment.production.body),
            cost=_cost(replicas, reference=reference, seconds=time.monotonic() - started),
            faults=(*faults, *found),
            interrupted=is_cut_short,
            prompts=deployment.prompt_set.source,
            old_release=old_release,
            is_salt_declared=deployment.is_salt_declared,
        )

    found: tuple[Fault, ...] = ()
    proofs: Sequence[RankProof | None] = (None,) * len(replicas)
    with until_interrupted() as interruption:
        for collector in collectors:
            try:
                await collector.collect()
            except KvreleaseError as error:
                faults.append(fault_of(error, where=collector.replica.identity.shown))
                flushes.leave_out(collector)
        # Unique prompts, so last: they go into the caches that production's legs have to find as they were.
        proofs = await prove_ranks(replicas)
        try:
            await in_process.run()
            for collector in collectors:
                await in_process.answer_unique(collector)
        except KvreleaseError as error:
            in_process.failure = error.message
        faults += await flushes.run(save=lambda: before_flush(seen(is_cut_short=True)))
        await in_process.answer_stale(collectors)
        found = await faults_of_changes(changes, undone=_UNJUDGED)
    return Observed(
        evidence=seen(is_cut_short=interruption.happened or bool(faults)),
        replicas=replicas,
        faults=(*faults, *found),
        interrupted=interruption.happened,
    )


def conclude(observed: Observed, *, deployment: Deployment, ledger: Ledger) -> tuple[VerifyReport, tuple[Fault, ...]]:
    """The judgement on a run, written to the ledger; and all that went wrong on the way."""
    report = judge(observed.evidence)
    failed = {(check.replica, check.id) for check in report.checks if check.verdict is CheckVerdict.FAIL}
    # What another layer answered, this release did not compute: it explains no later hit.
    replayed = {
        check.replica for check in report.checks if check.id is CheckId.RESPONSE_CACHE and check.verdict in _OPEN
    }

    wrong_models = {one.replica for one in report.diagnosis if one.cause.cause is Cause.MODEL}
    misrouted = {check.replica for check in report.checks if check.id is CheckId.RANK and check.verdict in _OPEN}
    # What is cached there now was computed after the flush, by this very release; one flush empties all ranks of a URL.
    emptied = {one.identity.url for one in observed.evidence.replicas if one.flush is not None and one.flush.is_proved}

    def doubt_of(replica: Replica) -> Doubt:
        shown = replica.identity.shown
        if (shown, CheckId.IDENTITY) in failed or shown in wrong_models:
            return Doubt.PROCESS
        is_dirty = (shown, CheckId.FIRST_TOUCH) in failed or (shown, CheckId.CONSISTENCY) in failed
        if shown in misrouted and not is_dirty:
            return Doubt.ORIGIN
        is_emptied = replica.identity.url in emptied
        return Doubt.KEY_SPACE if (is_dirty and not is_emptied) or shown in replayed else Doubt.NONE

    closing = close_run(
        observed.replicas,
        deployment=deployment,
        ledger=ledger,
        command="verify",
        verdict=report.verdict,
        reason=report.reason,
        doubt_of=doubt_of,
    )
    return msgspec.structs.replace(report, faults=report.faults + closing), observed.faults + closing


def _with_proof(replica: ReplicaEvidence, proof: RankProof | None) -> ReplicaEvidence:
    """The evidence of one replica; where requests are not proved to reach its rank, its counters say nothing."""
    is_fresh = replica.is_fresh if proof in (None, RankProof.PROVEN) else None
    return msgspec.structs.replace(replica, rank_proof=proof, is_fresh=is_fresh)


_OPEN = (CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE)


class _Amnesia:
    """A memory that recalls nothing: where nobody was to have sent a request yet, no earlier run explains a hit.

    Args:
        ledger: what is learnt goes there all the same; None to keep nothing (a reference engine's cache is no concern
            of the ledger's).
    """

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger

    def computed_prefixes(self, origin: CacheOrigin) -> frozenset[bytes]:  # noqa: ARG002 - the protocol's signature
        return frozenset()

    def sent_prefixes(self, origin: CacheOrigin) -> frozenset[bytes]:  # noqa: ARG002 - likewise
        return frozenset()

    def sister_prefixes(self, *, namespace: str, key_space: str | None) -> frozenset[bytes]:  # noqa: ARG002 - likewise
        return frozenset()

    def add_computed_prefixes(self, origin: CacheOrigin, prefixes: frozenset[bytes]) -> None:
        if self._ledger is not None:
            self._ledger.add_computed_prefixes(origin, prefixes)

    def add_sent_prefixes(self, origin: CacheOrigin, prefixes: frozenset[bytes]) -> None:
        if self._ledger is not None:
            self._ledger.add_sent_prefixes(origin, prefixes)


def require_same(record: Record | None, *, option: str, deployment: Deployment, same_release: bool) -> None:
    """Checks that a record is of this deployment's prompts, and of its release or of another one.

    Args:
        record: None where there is none.
        option: that named it.
        deployment: that it is held against.
        same_release: it has to be a clean one of this release; else of another.

    Raises:
        InputError: it is not.
    """
    if record is None:
        return
    if record.prompt_set != deployment.prompt_set.digest:
        raise InputError(
            f"{option}: it was recorded with another prompt set than {deployment.prompt_set.source}",
            hint="record it again with these prompts",
        )
    if same_release and record.release.kv_name != deployment.release.kv_name:
        raise InputError(
            f"{option}: it is a record of {record.release.name} ({record.release.kv_name}), not of "
            f"{deployment.release.name} ({deployment.release.kv_name})",
            hint="record the new release in staging, or name the right file",
        )
    if not same_release and record.release.kv_name == deployment.release.kv_name:
        raise InputError(
            f"{option}: it is a record of {record.release.name} ({record.release.kv_name}) itself, not of the release "
            "before it",
            hint="name the record of the old release, or use this one as --golden",
        )
    kept = next((found for one in record.observations if (found := one.leg.observation.cached_in_front)), None)
    if kept is not None:
        raise InputError(
            f"{option}: {kept}, so it is no record of what an engine computes",
            hint="record it again at the engine's own URL",
        )
    if same_release and (record.foreign_tokens != 0 or record.ended_early is not None):
        found = f"{record.foreign_tokens} of its cached tokens were not computed by that release"
        if record.ended_early is not None:
            found = record.ended_early
        elif record.foreign_tokens is None:
            found = "it is not known whether that release computed its cached tokens"
        raise InputError(
            f"{option}: {found}, so it proves nothing", hint="record it again from a clean, trusted process"
        )


async def _reference(engine: EngineClient | None, *, deployment: Deployment) -> Replica | None:
    """The second engine, prepared."""
    if engine is None:
        return None
    undeclared = msgspec.structs.replace(
        deployment, runtime=msgspec.structs.replace(deployment.runtime, digest=None, fields={})
    )
    return await prepare(engine, deployment=undeclared, memory=_Amnesia(None), max_tokens=MAX_TOKENS)


def _other_spaces(replica: Replica, *, ledger: Ledger) -> tuple[str | None, ...]:
    """Key spaces besides production's: unsalted, the release's own, and earlier namespaces seen on this replica."""
    deployment = replica.deployment
    earlier = ledger.other_namespaces_served(
        replica=replica.identity.url, namespace=deployment.namespace, limit=OTHER_NAMESPACES
    )
    spaces = (None, deployment.namespace, *earlier)
    return tuple(space for space in spaces if space != deployment.salt)


def _cost(replicas: Sequence[Replica], *, reference: Replica | None, seconds: float) -> Cost:
    elsewhere = () if reference is None else (reference,)
    spent = [replica.observer.spent for replica in (*replicas, *elsewhere)]
    return Cost(
        requests=sum(one.requests for one in spent),
        retries=sum(one.retries for one in spent),
        tokens=sum(one.prompt_tokens for one in spent),
        computed_tokens=total([one.computed_tokens for one in spent]),
        on_reference=sum(one.observer.spent.requests for one in elsewhere),
        seconds=round(seconds, 1),
    )
