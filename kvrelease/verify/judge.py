"""The release gate's judgement: evidence in, report out; pure, so that saved evidence can be judged again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef, Verdict
from kvrelease.verify.checks import (
    BindingResult,
    Check,
    CheckId,
    CheckVerdict,
    binding_result,
    check_binding,
    check_consistency,
    check_control,
    check_degenerate,
    check_first_touch,
    check_replicas,
    check_residency,
    space_name,
)
from kvrelease.verify.claim import stale_interval
from kvrelease.verify.closeness import closeness_of, with_closeness
from kvrelease.verify.consistency import ProbeJudgement, ProbeVerdict, judge_probes
from kvrelease.verify.coverage import not_covered
from kvrelease.verify.diagnosis import Diagnosis, diagnosis_of
from kvrelease.verify.evidence import Cost, Evidence, ReplicaEvidence
from kvrelease.verify.exposure import ExposureResult, SpaceVerdict, check_exposure, exposure_results
from kvrelease.verify.floor import judging_floor
from kvrelease.verify.identity import check_identity
from kvrelease.verify.isolation import IsolationResult, check_bypass, check_flush, isolation_result
from kvrelease.verify.kept_answers import kept_answers
from kvrelease.verify.keys import check_keys
from kvrelease.verify.next_step import Action, NextStep
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.old_release import make_the_same_kv
from kvrelease.verify.open_checks import again, steps_of_checks
from kvrelease.verify.power import check_power, stale_clean_distance
from kvrelease.verify.rank import check_rank
from kvrelease.verify.repeats import ALPHA, REPEATS
from kvrelease.verify.response_cache import check_response_cache, remark, way_past, without_kept_hits
from kvrelease.verify.reuse import check_reuse

METHOD_NOTE = (
    f"suspects are asked again, {REPEATS} fresh legs of each kind, and judged by an exact permutation test, small "
    "differences by their rank among entries that are written again; a clean replica fails by these with a probability "
    f"of at most {2 * ALPHA:.1%} (docs/statistics.md)"
)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass claims: with `confidence`, fewer than `stale_below` of `population` meet a stale prefix."""

    confidence: float
    stale_below: float
    population: str


class StaleShare(msgspec.Struct, frozen=True, kw_only=True):
    """How many probes of one replica were stale, and the interval of the share at the claim's confidence.

    Attributes:
        count: proven stale.
        suspect: not proven, and not shown to be clean: they may all be stale, as the upper end has it.
        of: probes that could be judged.
        rate: proven ones among them; None where none could be.
        lower: end of the interval, 0 to 1.
        upper: likewise.
        replica: the one of which most cannot be excluded; None where there is no other. Replicas are sent the same
            probes, so that all of them together are no larger sample.
    """

    count: int
    suspect: int = 0
    of: int
    rate: float | None
    lower: float
    upper: float
    replica: str | None = None


class PowerResult(msgspec.Struct, frozen=True, kw_only=True):
    """Would staleness show? `status` is `sufficient`, `below-floor` or `unknown`."""

    stale_clean_distance: float | None
    status: str


class VerifyReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/verify"):
    """What `kvrelease verify` says.

    Attributes:
        release: that is said to be served.
        verdict: of the gate.
        reason: one sentence.
        namespace: of the release.
        claim: what a pass claims.
        checks: every check, replica by replica.
        binding: of the first replica that is not bound, else of the first.
        exposure: other key spaces.
        isolation: how each replica's reference legs were isolated.
        probes: every probe.
        stale: the stale share, of the worst replica.
        noise_floor: of the run (the largest of its replicas').
        power: would staleness show.
        prefixes: distinct shared prefixes among the probes.
        skipped: prompts too short to say anything.
        cost: of the run.
        not_covered: what this run did not tell, whatever its verdict.
        faults: what ended parts of the run early, or left replicas unjudged.
        next_steps: what to do next, in that order, whatever kept the run from a pass; empty after one.
        diagnosis: of each replica whose probes are stale or suspect, whose hits were foreign at first touch, or whose
            cache does not give back what was put in.
        method: how suspects were judged.
    """

    release: ReleaseRef
    verdict: Verdict
    reason: str
    namespace: str
    claim: Claim
    checks: tuple[Check, ...]
    binding: BindingResult
    exposure: tuple[ExposureResult, ...]
    probes: tuple[ProbeJudgement, ...]
    stale: StaleShare
    noise_floor: NoiseFloor
    power: PowerResult
    prefixes: int
    skipped: tuple[str, ...]
    cost: Cost
    isolation: tuple[IsolationResult, ...] = ()
    not_covered: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    diagnosis: tuple[Diagnosis, ...] = ()
    method: str = METHOD_NOTE


class _ReplicaJudgement(msgspec.Struct, frozen=True, kw_only=True):
    replica: str
    checks: tuple[Check, ...]
    probes: tuple[ProbeJudgement, ...]
    floor: NoiseFloor
    binding: BindingResult
    diagnosis: Diagnosis | None
    front: str | None


def judge(evidence: Evidence) -> VerifyReport:
    """The verdict on a run's evidence."""
    judged = tuple(_judge_replica(replica, evidence) for replica in evidence.replicas)
    probes = tuple(probe for one in judged for probe in one.probes)
    floor = max((one.floor for one in judged), key=lambda one: one.max or 0.0, default=_NO_FLOOR)
    checks = [check for one in judged for check in one.checks]
    decided = any(check.id is CheckId.FIRST_TOUCH and check.verdict is CheckVerdict.FAIL for check in checks)
    power = check_power(
        evidence.power,
        floor=floor,
        limits=evidence.limits,
        first_touch_decided=decided,
        unexplained_tokens=_unexplained_tokens(evidence),
        same_kv_as=evidence.old_release if make_the_same_kv(evidence.old_release, evidence.release) else None,
    )
    checks.append(power)
    shown = {replica.identity.shown for replica in evidence.replicas}
    unjudged = tuple(fault for fault in evidence.faults if fault.exit_code and fault.where not in shown)
    if len(judged) > 1 or unjudged:
        verdicts = [(one.replica, _worst(one.checks)) for one in judged]
        checks.append(check_replicas(verdicts, mixed=_mixed(judged), unjudged=[fault.shown for fault in unjudged]))
    bindings = [one.binding for one in judged]
    verdict = _overall(checks, evidence)
    exposure = tuple(
        result
        for replica, one in zip(evidence.replicas, judged, strict=True)
        for result in exposure_results(replica, floor=one.floor)
    )
    return VerifyReport(
        release=evidence.release,
        verdict=verdict,
        reason=_reason(verdict, checks, evidence, exposure=exposure),
        namespace=evidence.namespace,
        claim=Claim(
            confidence=evidence.limits.confidence,
            stale_below=evidence.limits.stale_below,
            population=f"requests like the {evidence.population - len(evidence.skipped)} prompts of the set that are "
            "long enough to show a stale prefix, drawn by traffic weight",
        ),
        checks=tuple(checks),
        binding=next((one for one in bindings if not one.bound), bindings[0] if bindings else _NO_BINDING),
        exposure=exposure,
        probes=probes,
        stale=_stale_share(judged, evidence),
        noise_floor=floor,
        power=_power_result(evidence, power, floor=floor),
        prefixes=len({probe.prefix for probe in probes}),
        skipped=evidence.skipped,
        cost=evidence.cost,
        isolation=tuple(isolation_result(replica) for replica in evidence.replicas),
        not_covered=not_covered(evidence, checks),
        faults=evidence.faults,
        next_steps=_next_steps(verdict, checks, evidence, judged=judged),
        diagnosis=tuple(one.diagnosis for one in judged if one.diagnosis is not None),
    )


def _next_steps(
    verdict: Verdict, checks: Sequence[Check], evidence: Evidence, *, judged: Sequence[_ReplicaJudgement]
) -> tuple[NextStep, ...]:
    """What to do first, what then: about what failed, and where nothing did about what stayed open.

    A failed identity comes before stale prefixes: other weights are no matter of a cache. Replicas of which nothing is
    wrong by itself have no step.
    """
    if verdict is Verdict.PASS:
        return ()
    fronts = {one.replica: one.front for one in judged if one.front is not None}
    diagnosed = {one.diagnosis.replica: one.diagnosis for one in judged if one.diagnosis is not None}
    worst = CheckVerdict.FAIL if verdict is Verdict.FAIL else CheckVerdict.INCONCLUSIVE
    # What a diagnosis knows better: the engine's own calls, by tier and binding.
    left = [check for check in checks if not (check.replica in diagnosed and check.id in _DIAGNOSED)]
    told = steps_of_checks(
        [check for check in left if check.id is not CheckId.REPLICAS], evidence, verdict=worst, fronts=fronts
    )
    first = [step for step in told if step.action in (Action.FRONT, Action.LOAD)]
    steps = [*first, *(step for one in diagnosed.values() for step in one.next_steps), *told]
    if evidence.interrupted or not steps:
        steps.append(again(evidence))
    return tuple(dict.fromkeys(steps))


_DIAGNOSED = (CheckId.CONSISTENCY, CheckId.FIRST_TOUCH, CheckId.REUSE)


_NO_FLOOR = NoiseFloor(pairs=0, p50=None, max=None, quantum=None)
_NO_BINDING = BindingResult(bound=None, proof="no replica was observed")


def _judge_replica(replica: ReplicaEvidence, evidence: Evidence) -> _ReplicaJudgement:
    floor = judging_floor(replica)
    shown = replica.identity.shown
    kept = kept_answers(replica)
    response_cache = check_response_cache(replica, kept, floor=floor)
    replica = without_kept_hits(replica, kept)
    closeness = closeness_of(replica, floor=floor)
    capacity = replica.identity.capacity_tokens
    judged = judge_probes(replica.probes, floor=floor, replica=shown, capacity_tokens=capacity)
    probes = with_closeness(judged, closeness)
    flush = check_flush(replica)
    exposure = check_exposure(replica, floor=floor, namespace=evidence.namespace)
    checks = (
        check_identity(replica, floor=floor),
        response_cache,
        check_first_touch(replica, limits=evidence.limits, key_space=evidence.production_salt),
        check_control(replica),
        check_binding(
            replica,
            namespace=evidence.namespace,
            production_salt=evidence.production_salt,
            stray_fields=evidence.stray_fields,
        ),
        check_bypass(replica),
        check_consistency(probes, floor=floor, limits=evidence.limits, replica=shown),
        check_degenerate(replica),
        check_residency(replica),
        *(
            found
            for found in (
                check_rank(replica),
                exposure,
                flush,
                check_reuse(replica),
                check_keys(replica, namespace=evidence.namespace, production_salt=evidence.production_salt),
            )
            if found is not None
        ),
    )
    checks = tuple(remark(check, kept) for check in checks)
    front = way_past(kept) if kept.signs else None
    return _ReplicaJudgement(
        replica=shown,
        checks=checks,
        probes=probes,
        floor=floor,
        binding=binding_result(replica),
        diagnosis=diagnosis_of(
            replica,
            probes,
            closeness=closeness,
            floor=floor,
            checks=checks,
            namespace=evidence.namespace,
            key_space=evidence.production_salt,
            front=front,
        ),
        front=front,
    )


def _worst(checks: tuple[Check, ...]) -> CheckVerdict:
    found = {check.verdict for check in checks}
    order = (CheckVerdict.FAIL, CheckVerdict.INCONCLUSIVE)
    return next((verdict for verdict in order if verdict in found), CheckVerdict.PASS)


def _overall(checks: list[Check], evidence: Evidence) -> Verdict:
    worst = _worst(tuple(checks))
    if worst is CheckVerdict.FAIL:
        return Verdict.FAIL
    if worst is CheckVerdict.INCONCLUSIVE or evidence.interrupted or not evidence.replicas:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


def _reason(verdict: Verdict, checks: list[Check], evidence: Evidence, *, exposure: tuple[ExposureResult, ...]) -> str:
    decisive = {Verdict.FAIL: CheckVerdict.FAIL, Verdict.INCONCLUSIVE: CheckVerdict.INCONCLUSIVE}.get(verdict)
    names = ", ".join(dict.fromkeys(str(check.id) for check in checks if check.verdict is decisive))
    match verdict:
        case Verdict.FAIL:
            return f"failed: {names}"
        case Verdict.INCONCLUSIVE if evidence.interrupted:
            return "the run ended before all evidence was in" + (f"; open: {names}" if names else "")
        case Verdict.INCONCLUSIVE:
            return f"not enough evidence: {names or 'no replica was observed'}"
        case Verdict.PASS:
            limits = evidence.limits
            return (
                f"with confidence {limits.confidence:.0%}, fewer than {limits.stale_below:.0%} of requests meet a "
                f"stale prefix in the {space_name(evidence.production_salt)} key space"
            ) + _reservations(checks, evidence, exposure=exposure)


def _reservations(checks: list[Check], evidence: Evidence, *, exposure: tuple[ExposureResult, ...]) -> str:
    """What a pass leaves open, for the line that people read."""
    unproved = [str(check.id) for check in checks if check.verdict is CheckVerdict.NOTE and check.id in _PROVABLE]
    unexplained = _unexplained_tokens(evidence)
    parts = [f"{unexplained} hit tokens are of unknown origin"] if unexplained else []
    parts += [f"{name} unproven" for name in dict.fromkeys(unproved)]
    stale = [space_name(one.key_space) for one in exposure if one.verdict is SpaceVerdict.STALE]
    parts += [f"{space} requests would meet a stale prefix" for space in dict.fromkeys(stale)]
    suspect = [space_name(one.key_space) for one in exposure if one.verdict is SpaceVerdict.SUSPECT]
    parts += [f"{space} requests may meet a stale prefix" for space in dict.fromkeys(suspect) if space not in stale]
    return f" ({'; '.join(parts)})" if parts else ""


_PROVABLE = (CheckId.IDENTITY, CheckId.POWER)


def _stale_share(judged: Sequence[_ReplicaJudgement], evidence: Evidence) -> StaleShare:
    shares = [
        msgspec.structs.replace(_share_of(one.probes, evidence), replica=one.replica if len(judged) > 1 else None)
        for one in judged
    ]
    return max(shares, key=lambda share: (share.upper, share.count), default=_share_of((), evidence))


def _share_of(probes: Sequence[ProbeJudgement], evidence: Evidence) -> StaleShare:
    counted = Counter(probe.verdict for probe in probes)
    stale, suspect = counted[ProbeVerdict.STALE], counted[ProbeVerdict.SUSPECT]
    of, confidence = len(probes) - counted[ProbeVerdict.UNJUDGED], evidence.limits.confidence
    lower, _ = stale_interval(stale=stale, probes=of, confidence=confidence)
    _, upper = stale_interval(stale=stale + suspect, probes=of, confidence=confidence)
    return StaleShare(count=stale, suspect=suspect, of=of, rate=stale / of if of else None, lower=lower, upper=upper)


def _power_result(evidence: Evidence, check: Check, *, floor: NoiseFloor) -> PowerResult:
    median = stale_clean_distance(evidence.power, candidates=floor.candidates)
    if median is None:
        return PowerResult(stale_clean_distance=None, status="unknown")
    status = "sufficient" if check.verdict is CheckVerdict.PASS else "below-floor"
    return PowerResult(stale_clean_distance=median, status=status)


def _unexplained_tokens(evidence: Evidence) -> int:
    """Cached tokens of all production legs that nothing explains; of a hit that cannot be attributed, all of them."""
    legs = [leg for replica in evidence.replicas for probe in replica.probes for leg in probe.production]
    return sum((leg.cached_tokens or 0) if leg.foreign_tokens is None else leg.foreign_tokens for leg in legs)


def _mixed(judged: Sequence[_ReplicaJudgement]) -> tuple[str, ...]:
    """Replicas that run other weights, where at least one is proved to run the release."""
    verdicts = [(one.replica, check.verdict) for one in judged for check in one.checks if check.id is CheckId.IDENTITY]
    if all(verdict is not CheckVerdict.PASS for _, verdict in verdicts):
        return ()
    return tuple(replica for replica, verdict in verdicts if verdict is CheckVerdict.FAIL)
