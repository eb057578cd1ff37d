"""Was the reference leg really cold, by which way, and why not by the others? Was a cache emptied for it?"""

from __future__ import annotations

import msgspec

from kvrelease.engines.base import EngineKind
from kvrelease.verify.calibration import kernel_distance
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.evidence import Isolation, ReplicaEvidence, Rung, RungOutcome


class IsolationResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the reference legs of one replica were isolated.

    Attributes:
        replica: which one (`EngineIdentity.shown`).
        used: the way that was used last; `none` where none was proved.
        rungs: every way, in the order of trying.
    """

    replica: str
    used: Isolation
    rungs: tuple[Rung, ...]


def isolation_result(replica: ReplicaEvidence) -> IsolationResult:
    """How its reference legs were isolated."""
    return IsolationResult(replica=replica.identity.shown, used=replica.isolation, rungs=replica.rungs)


def check_bypass(replica: ReplicaEvidence) -> Check:
    """Is the reference leg really cold?"""
    if replica.isolation is Isolation.NONE:
        verdict = CheckVerdict.INCONCLUSIVE
        detail = f"no reference leg could be proved cold: {_why_none(replica)}. {_way_out(replica)}"
    else:
        cold = [probe.cold for probe in replica.probes if probe.cold is not None]
        verdict = CheckVerdict.PASS
        detail = f"reference legs by {_ways(replica)}: 0 foreign tokens in {len(cold)} legs{_kernels(replica)}"
        detail += _others(replica)
    return Check(id=CheckId.BYPASS, verdict=verdict, detail=detail, replica=replica.identity.shown)


def _why_none(replica: ReplicaEvidence) -> str:
    return "; ".join(_told(rung) for rung in replica.rungs)


def _way_out(replica: ReplicaEvidence) -> str:
    flush = next((rung for rung in replica.rungs if rung.isolation is Isolation.FLUSH), None)
    if flush is None or flush.outcome is not RungOutcome.NOT_ASKED_FOR:
        return "Name a clean second server with --reference URL"
    return "Name a clean second server with --reference URL, or permit to empty this engine's cache with --allow-flush"


def _ways(replica: ReplicaEvidence) -> str:
    used = [rung for rung in replica.rungs if rung.outcome is RungOutcome.USED]
    if len(used) < 2:
        return str(replica.isolation)
    return " and ".join(f"{rung.isolation} ({rung.proved})" for rung in used)


def _kernels(replica: ReplicaEvidence) -> str:
    if replica.isolation is not Isolation.REFERENCE:
        return ""
    measured = kernel_distance(replica)
    where = "in process" if replica.reference and replica.reference.kind is EngineKind.LOCAL else "on another engine"
    apart = "not measured" if measured is None else f"{measured:.4f} nats in the median of unique prompts"
    return f", {where} (kernels apart: {apart})"


def _others(replica: ReplicaEvidence) -> str:
    """Why the other ways were not used."""
    told = [_told(rung) for rung in replica.rungs if rung.outcome is not RungOutcome.USED or rung.failed]
    return f". Other ways: {'; '.join(told)}" if told else ""


def _told(rung: Rung) -> str:
    return f"{rung.isolation} {rung.outcome} ({rung.detail})"


def check_flush(replica: ReplicaEvidence) -> Check | None:
    """What became of a cache that was to be emptied; None where none was."""
    flush = replica.flush
    if flush is None:
        return None
    before = (
        f"after {flush.requests_before} requests, when everything that needs the cache as it was had been recorded; "
        f"{flush.probe} hit {flush.cached_before} tokens before"
    )
    if flush.refusal is not None:
        detail = f"nothing was emptied: {flush.refusal}"
    elif not flush.is_done:
        detail = f"the cache was about to be emptied, {before}; what follows was not recorded"
    elif flush.is_proved:
        detail = (
            f"the engine's cache was EMPTIED (--allow-flush), {before}, and 0 after. What users had warmed is gone: "
            "prewarm again"
        )
    else:
        claim = "the engine says that it emptied its cache" if flush.says_done else "the engine was asked to empty it"
        after = "not known how many" if flush.cached_after is None else f"{flush.cached_after}"
        detail = (
            f"{claim} (--allow-flush), {before}, and {after} after: nothing is proved to be emptied, and no reference "
            "leg comes of it. A tier below may fill it again, or other clients did. Prewarm again all the same: some "
            "of it may be gone, and the ledger has forgotten what was there"
        )
    return Check(id=CheckId.FLUSH, verdict=CheckVerdict.NOTE, detail=detail, replica=replica.identity.shown)
