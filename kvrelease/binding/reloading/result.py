"""What a reload says of itself: its records, and the words for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef, Verdict
from kvrelease.binding.reloading.plan import Ending, Start, Step, Taken, decisive, may_have_swapped
from kvrelease.binding.runtime import Runtime


class Reloading(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to each replica.

    Attributes:
        release: the new one.
        namespace: of it.
        runtime: declared or undeclared.
        weights_path: of it, as the engine's machine sees it.
        drain_timeout_s: how long requests in flight may take.
        hold_timeout_s: after so long who waits is turned away; None to leave that to the middleware.
        reload_timeout_s: deadline of the call that loads the weights.
        allows_flush: the engine's own cache may be emptied.
    """

    release: ReleaseRef
    namespace: str
    runtime: Runtime
    weights_path: str
    drain_timeout_s: float
    hold_timeout_s: float | None
    reload_timeout_s: float
    allows_flush: bool


class ReplicaReload(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one replica.

    Attributes:
        url: which.
        old_namespace: that requests were bound to before.
        new_namespace: of the new release.
        gate: `open`, `held` or `closed`, as it was found.
        ending: what clients meet now; None of a dry run.
        steps: in the order taken.
        hold_s: seconds in which nobody was let through; None where nothing was held.
        held: requests that waited, at most at once; None where nothing was held.
        verdict: None of a dry run.
        reason: one sentence.
        next_step: what to do; None where there is nothing.
    """

    url: str
    old_namespace: str
    new_namespace: str
    gate: str
    ending: Ending | None = None
    steps: tuple[Taken, ...] = ()
    hold_s: float | None = None
    held: int | None = None
    verdict: Verdict | None = None
    reason: str = ""
    next_step: str | None = None


class ReloadReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/reload"):
    """What `kvrelease reload` says.

    Attributes:
        release: the new one.
        namespace: of it.
        replicas: that were asked, one after the other.
        not_reached: URLs of those that were left alone after one that failed.
        verdict: None of a dry run.
        reason: one sentence.
        interrupted: the run was cut short.
        faults: of engines and of the ledger.
    """

    release: ReleaseRef
    namespace: str
    replicas: tuple[ReplicaReload, ...]
    not_reached: tuple[str, ...] = ()
    verdict: Verdict | None
    reason: str
    interrupted: bool = False
    faults: tuple[Fault, ...] = ()


def reason_of(taken: Sequence[Taken], *, ending: Ending, survives: bool) -> str:
    """What clients meet, and because of what.

    Args:
        taken: every step.
        ending: what they meet.
        survives: the new namespace is the old one.
    """
    because = decisive(taken, ending=ending)
    found = "" if because is None else ", ".join(filter(None, (f"{because.step}: {because.outcome}", because.detail)))
    match ending:
        case Ending.NEW:
            kept = "; the namespace is the same, so what was cached is valid and was kept" if survives else ""
            if not any(one.step is Step.ASK_NEW for one in taken):
                return f"the new release is served; its weights are unproven, as there was nothing to ask them{kept}"
            return f"the new release is served{f'; {found}' if found else ', by its own answers'}{kept}"
        case Ending.OLD:
            return f"the old release is served as before; {found}"
        case Ending.CLOSED:
            return f"the gate is closed, and everybody is turned away; {found}"
        case Ending.UNKNOWN:
            return f"it is not known whether the gate is open; {found}"
        case _:
            assert_never(ending)


def advice_of(
    ending: Ending, *, start: Start, taken: Sequence[Taken], reloading: Reloading, hold_s: float
) -> str | None:
    """What to do now.

    Args:
        ending: what clients meet.
        start: how it was found.
        taken: every step.
        reloading: what was to be done.
        hold_s: how long a hold lasts at most.
    """
    restart = (
        "restart the engine with the release that it is to serve and KVRELEASE_NAMESPACE of that (kvrelease namespace "
        f"{reloading.release.source} --engine vllm), or reload it again once it is known to be done loading"
    )
    match ending:
        case Ending.NEW:
            return "kvrelease verify, which asks as users do, then says whether anything of the old release is served"
        case Ending.OLD:
            return "mend what the step says, then kvrelease reload again"
        case Ending.CLOSED:
            return restart
        case Ending.UNKNOWN:
            safe = f"a hold that nobody ends closes the gate after {hold_s:g} s"
            swapped = f"; {restart}" if may_have_swapped(taken) or not start.was_open else ", then reload again"
            return f"look at the engine: {safe}{swapped}"
        case _:
            assert_never(ending)


def whole_verdict(replicas: Sequence[ReplicaReload], *, left: Sequence[str]) -> Verdict:
    """The worst of all, and no pass where some were left alone."""
    verdicts = {one.verdict for one in replicas}
    if Verdict.FAIL in verdicts or left:
        return Verdict.FAIL
    return Verdict.INCONCLUSIVE if Verdict.INCONCLUSIVE in verdicts else Verdict.PASS


def whole_reason(replicas: Sequence[ReplicaReload], *, left: Sequence[str], is_dry: bool) -> str:
    """One sentence about all of them."""
    if is_dry:
        return f"dry run: nothing was changed, and nothing speaks against {', '.join(one.url for one in replicas)}"
    last = replicas[-1]
    if left or last.ending is not Ending.NEW:
        untouched = f"; left alone: {', '.join(left)}" if left else ""
        return f"{last.url}: {last.reason}{untouched}"
    unproven = [one for one in replicas if one.verdict is Verdict.INCONCLUSIVE]
    if unproven:
        return f"{unproven[0].url}: {unproven[0].reason}"
    return "every replica serves the new release, by its own answers"
