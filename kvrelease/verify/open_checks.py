"""What the operator does next about a check that failed or stayed open, beside stale prefixes (`next_step`); pure.

A step names a command or a setting, with the user's own arguments where the evidence has them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import assert_never

from kvrelease.engines.base import EngineKind
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.claim import probes_needed
from kvrelease.verify.evidence import Evidence, ReplicaEvidence
from kvrelease.verify.next_step import Action, NextStep, disabled_step, front_step, remedy_of

# What is settled first, because it decides what the others are worth: who answers at all, what it is, whether hits are
# told and possible, what they are compared with; then how much evidence there is.
_ORDER = (
    CheckId.RESPONSE_CACHE,
    CheckId.IDENTITY,
    CheckId.RANK,
    CheckId.DEGENERATE,
    CheckId.CONTROL,
    CheckId.FIRST_TOUCH,
    CheckId.BINDING,
    CheckId.BYPASS,
    CheckId.REUSE,
    CheckId.FLUSH,
    CheckId.POWER,
    CheckId.CONSISTENCY,
    CheckId.EXPOSURE,
    CheckId.KEYS,
    CheckId.RESIDENCY,
    CheckId.REPLICAS,
)

_TELLS_HITS: Mapping[EngineKind, str] = {
    EngineKind.VLLM: "--enable-prompt-tokens-details",
    EngineKind.SGLANG: "--enable-cache-report",
    EngineKind.LLAMACPP: "--metrics",
}
_TELLS_CANDIDATES: Mapping[EngineKind, str] = {EngineKind.VLLM: "--max-logprobs 20"}


def steps_of_checks(
    checks: Sequence[Check], evidence: Evidence, *, verdict: CheckVerdict, fronts: Mapping[str, str]
) -> tuple[NextStep, ...]:
    """[steps] for the checks with that verdict, in the order to take them; a step that several ask for stands once.

    Args:
        checks: of the run.
        evidence: that they judged.
        verdict: fail or inconclusive.
        fronts: by replica, what to do about a response cache that gave some of its answers.
    """
    found = sorted((check for check in checks if check.verdict is verdict), key=lambda check: _ORDER.index(check.id))
    return tuple(dict.fromkeys(step_of(check, evidence, fronts=fronts) for check in found))


def again(evidence: Evidence) -> NextStep:
    """The step of a run that was cut short, or of which some replica was not judged."""
    fault = next((fault for fault in evidence.faults if fault.exit_code), None)
    if fault is None:
        return NextStep(
            action=Action.ASK_AGAIN,
            text="verify again, and let the run end",
            call=f"kvrelease verify --release {shlex.quote(evidence.release.source)}",
            detail="as before: its other options are the same",
        )
    return NextStep(
        action=Action.ASK_AGAIN,
        text="verify again, when every replica is ready",
        call="the same command with --wait 300",
        detail=fault.shown if fault.hint is None else f"{fault.shown}: {fault.hint}",
    )


def step_of(check: Check, evidence: Evidence, *, fronts: Mapping[str, str]) -> NextStep:  # noqa: PLR0911, PLR0912 - one per check
    """What to do about one check that failed or is inconclusive."""
    replica = next((one for one in evidence.replicas if one.identity.shown == check.replica), None)
    if replica is None:
        return _power(check, evidence) if check.id is CheckId.POWER else again(evidence)
    shown, kind = replica.identity.shown, replica.identity.kind
    if not replica.probes:
        return again(evidence)
    match check.id:
        case CheckId.IDENTITY:
            return _identity(check, evidence, shown=shown)
        case CheckId.RANK:
            return NextStep(
                action=Action.ASK_AGAIN,
                text=f"name the engine's own URL, where requests for a rank reach it, or ask {shown} as a whole",
                call="the same command with --data-parallel off",
            )
        case CheckId.RESPONSE_CACHE:
            return front_step(
                shown, fronts.get(shown, "probes have to get past it: production.headers, production.body")
            )
        case CheckId.CONTROL:
            off = remedy_of(kind).off
            return NextStep(
                action=Action.RESTART,
                text=f"restart {shown} with prefix caching, and verify it again",
                call=None if off is None else f"without {off}",
                detail=replica.identity.capabilities.why_nothing_is_cached
                or "and see that no router sends equal requests to different replicas: name each with --engine-url",
            )
        case CheckId.FIRST_TOUCH if check.verdict is CheckVerdict.INCONCLUSIVE:
            return NextStep(
                action=Action.RESTART,
                text=f"have {shown} tell its cached tokens, and verify it again",
                call=_TELLS_HITS.get(kind, "its /metrics, by --engine-url of the engine itself"),
            )
        case CheckId.BINDING | CheckId.EXPOSURE | CheckId.KEYS:
            return _binding(evidence, replica)
        case CheckId.BYPASS:
            return _reference(shown)
        case CheckId.DEGENERATE:
            return NextStep(
                action=Action.LOAD,
                text=f"see whether {shown} has what was published, and restart it with that",
                call=f"kvrelease fingerprint {shlex.quote(evidence.release.source)} --check",
            )
        case CheckId.POWER:
            return _power(check, evidence)
        case CheckId.REUSE:
            return disabled_step(replica.identity)
        case CheckId.CONSISTENCY if check.verdict is CheckVerdict.INCONCLUSIVE:
            return _more_evidence(check, evidence, replica)
        case CheckId.FIRST_TOUCH | CheckId.CONSISTENCY | CheckId.FLUSH | CheckId.RESIDENCY:
            return NextStep(
                action=Action.FLUSH,
                text=f"empty the cache of {shown}, and prewarm it",
                call="kvrelease prewarm --allow-flush",
            )
        case CheckId.REPLICAS:
            return again(evidence)
        case _:
            assert_never(check.id)


def _record(evidence: Evidence) -> str:
    prompts = "PROMPTS" if evidence.prompts is None else shlex.quote(evidence.prompts)
    return (
        f"kvrelease record --release {shlex.quote(evidence.release.source)} --engine-url CLEAN_URL --prompts {prompts} "
        "-o golden.json"
    )


def _identity(check: Check, evidence: Evidence, *, shown: str) -> NextStep:
    if check.verdict is CheckVerdict.FAIL:
        return NextStep(
            action=Action.LOAD,
            text=f"restart {shown} with {evidence.release.source}, and verify it again",
            detail=f"where that was done, record a clean process of the release ({_record(evidence)}) and name it: "
            "--golden golden.json",
        )
    return NextStep(
        action=Action.RECORD,
        text="record a clean, trusted process of the release, and verify again with --golden golden.json",
        call=_record(evidence),
    )


def _binding(evidence: Evidence, replica: ReplicaEvidence) -> NextStep:
    field = remedy_of(replica.identity.kind).salt
    where = "its settings" if field is None else f"{field} {evidence.namespace}"
    return NextStep(
        action=Action.BIND,
        text=f"bind every client of {replica.identity.shown}, and every layer below it, with {where}",
        call=f"kvrelease namespace {shlex.quote(evidence.release.source)} --engine {replica.identity.kind}",
        detail="a layer that ignores the salt needs a directory or tag of the namespace's own; without a salt, declare "
        "production.salt: none in kvrelease.yaml",
    )


def _reference(shown: str) -> NextStep:
    return NextStep(
        action=Action.ASK_AGAIN,
        text=f"compare {shown} with a clean, second server of the release",
        call="the same command with --reference URL (or --reference local, where --release is a directory)",
        detail="or permit --allow-flush, which empties its cache, last of all",
    )


def _power(check: Check, evidence: Evidence) -> NextStep:
    if not evidence.power:
        return NextStep(
            action=Action.ASK_AGAIN,
            text="have it measured whether staleness would show on these prompts",
            call="the same command with --release DIRECTORY --old-release DIRECTORY",
            detail="or without --require-power, and on a quiet engine",
        )
    return NextStep(
        action=Action.ASK_AGAIN,
        text="verify again while nobody else uses the engine: noise hides what staleness does to these prompts",
        call="the same command with --engine-url of a quiet replica",
        detail=check.detail,
    )


def _more_evidence(check: Check, evidence: Evidence, replica: ReplicaEvidence) -> NextStep:
    shown, kind = replica.identity.shown, replica.identity.kind
    if "log-probabilities" in check.detail:
        return NextStep(
            action=Action.ASK_AGAIN,
            text=f"have {shown} answer with log-probabilities, and verify it again",
            call=_TELLS_CANDIDATES.get(kind, "--engine-url of the engine itself, past what drops logprobs"),
        )
    if any(not probe.reference_legs for probe in replica.probes):
        return _reference(shown)
    needed = probes_needed(stale_below=evidence.limits.stale_below, confidence=evidence.limits.confidence)
    if len(replica.probes) >= needed:
        return NextStep(
            action=Action.ASK_AGAIN,
            text=f"verify {shown} again while nobody else uses it",
            call="the same command, with --engine-url for each process behind it",
        )
    if evidence.population - len(evidence.skipped) >= needed:
        return NextStep(
            action=Action.ASK_AGAIN,
            text=f"ask {needed} probes, which the claim takes, and verify again",
            call=f"the same command with --probes {needed}",
        )
    share = _claimable(len(replica.probes), confidence=evidence.limits.confidence)
    return NextStep(
        action=Action.ASK_AGAIN,
        text=f"claim what {len(replica.probes)} probes can prove, or add prompts until {needed} are long enough",
        call=f"the same command with --stale-below {share:.2f}, or kvrelease prompts select LOG",
    )


def _claimable(probes: int, *, confidence: float) -> float:
    """The smallest share, in whole hundredths, that so many clean probes exclude; 0 to 1."""
    hundredths = next(
        (one for one in range(1, 91) if probes_needed(stale_below=one / 100, confidence=confidence) <= probes), 90
    )
    return hundredths / 100
