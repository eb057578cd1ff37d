"""The checks of the release gate, one pure function each: evidence in, `Check` out.

`note` is for what is reported and does not decide: an identity nobody could prove, an exposure that production does not
use. It is never counted as a pass of something that was asked for.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from kvrelease.binding.hits import CLEAN_UP, Unattributed
from kvrelease.binding.observe import Leg, Witness
from kvrelease.engines.base import Observation
from kvrelease.verify.claim import probes_needed, provable_share
from kvrelease.verify.consistency import ProbeJudgement, ProbeVerdict
from kvrelease.verify.evidence import BindingEvidence, Limits, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.suspicion import threshold_nats

# Fewer generated tokens than this, all the same, are an answer; so many are a broken model.
REPEATED_TOKENS = 4


class CheckVerdict(enum.StrEnum):
    """The outcome of one check."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOTE = "note"


class CheckId(enum.StrEnum):
    """What is asked; the order is the order of the report."""

    IDENTITY = "identity"
    RANK = "rank"
    RESPONSE_CACHE = "response-cache"
    FIRST_TOUCH = "first-touch"
    CONTROL = "control"
    BINDING = "binding"
    BYPASS = "bypass"
    FLUSH = "flush"
    CONSISTENCY = "consistency"
    POWER = "power"
    DEGENERATE = "degenerate"
    RESIDENCY = "residency"
    EXPOSURE = "exposure"
    REUSE = "reuse"
    KEYS = "keys"
    REPLICAS = "replicas"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of the report.

    Attributes:
        id: what was asked.
        verdict: the outcome.
        detail: what was found, and on failure what the operator does next.
        replica: which one, as people read it (`EngineIdentity.shown`); None for checks over all replicas.
    """

    id: CheckId
    verdict: CheckVerdict
    detail: str
    replica: str | None = None


def space_name(key_space: str | None) -> str:
    """How reports name a key space."""
    return "unsalted" if key_space is None else key_space


def check_first_touch(replica: ReplicaEvidence, *, limits: Limits, key_space: str | None) -> Check:
    """Did the production legs hit anything that this release did not compute itself?"""
    verdict, detail = _first_touch(replica, limits=limits, space=space_name(key_space))
    return Check(id=CheckId.FIRST_TOUCH, verdict=verdict, detail=detail, replica=replica.identity.shown)


def _first_touch(replica: ReplicaEvidence, *, limits: Limits, space: str) -> tuple[CheckVerdict, str]:
    # Of each probe the leg with most foreign tokens, which is the first one wherever no other hit more.
    legs = [max(probe.production, key=lambda leg: leg.foreign_tokens or 0) for probe in replica.probes]
    cached = sum(leg.cached_tokens or 0 for leg in legs)
    foreign = sum(leg.foreign_tokens or 0 for leg in legs)
    is_untouched = limits.expects_cold or bool(replica.is_fresh)
    if legs and legs[0].foreign_tokens is None and is_untouched:
        # Before the first request there is no other of ours, whose tokens could explain what it hit.
        foreign += replica.probes[0].production[0].cached_tokens or 0
    found = f"{foreign} of {cached} cached tokens in the {space} key space were not computed by this release"
    if foreign and is_untouched:
        why = (
            "and nobody was to have sent it a request yet"
            if limits.expects_cold
            else "in a process that no request had reached before"
        )
        return CheckVerdict.FAIL, f"{found}, {why}. {CLEAN_UP}"
    unknown = sum(any(leg.cached_tokens is None for leg in probe.production) for probe in replica.probes)
    if unknown or not legs:
        return CheckVerdict.INCONCLUSIVE, (
            f"{unknown} of {len(legs)} probes have production legs without cached_tokens, and the counters of /metrics "
            "do not tell either; not known is not zero. vLLM needs --enable-prompt-tokens-details, SGLang "
            "--enable-cache-report; or verify while nobody else uses the engine. What a response cache answered tells "
            "of no hit"
            if legs
            else "no production leg was sent"
        )
    if unattributed := [leg for probe in replica.probes for leg in probe.production if leg.foreign_tokens is None]:
        return CheckVerdict.NOTE, f"{_unattributed(unattributed)}{f'; {found}' if foreign else ''}; consistency decides"
    if foreign:
        return CheckVerdict.NOTE, f"{found} as far as the ledger knows; their origin is unknown: consistency decides"
    return CheckVerdict.PASS, f"no foreign hit in {len(legs)} production legs ({space}, {cached} cached)"


def _unattributed(legs: Sequence[Leg]) -> str:
    """How much was hit of which nobody can say whose it is, and why."""
    tokens = sum(leg.cached_tokens or 0 for leg in legs)
    doubts = sorted({str(leg.doubt) for leg in legs if leg.doubt not in (None, Unattributed.NO_IDS)})
    why = f"it is not known whose they are ({', '.join(doubts)})" if doubts else "the server does not tell token ids"
    return f"{tokens} cached tokens in {len(legs)} production legs cannot be attributed, because {why}"


_MISS_CAUSES = (
    "prefix caching is off",
    "the block is larger than the prompt",
    "a router sends the two to different replicas",
)


def check_control(replica: ReplicaEvidence) -> Check:
    """Can the cache hit at all?"""

    def check(verdict: CheckVerdict, detail: str) -> Check:
        return Check(id=CheckId.CONTROL, verdict=verdict, detail=detail, replica=replica.identity.shown)

    control = replica.control
    if control is None:
        return check(CheckVerdict.INCONCLUSIVE, "no control was sent")
    first, second = control.legs
    if first.hits_mostly is None or second.hits_mostly is None:
        return check(CheckVerdict.INCONCLUSIVE, "nobody witnessed the control's hit; not known is not a hit")
    if first.hits_mostly:
        return check(
            CheckVerdict.INCONCLUSIVE,
            f"a unique prompt hit {first.cached_tokens} tokens when first sent: the reported hits are no hits",
        )
    if not second.hits_mostly:
        return check(
            CheckVerdict.INCONCLUSIVE,
            f"a unique prompt of {second.prompt_tokens} tokens, sent twice, did not hit. {_causes_of_a_miss(replica)}",
        )
    if second.witness is Witness.USAGE and control.counted_hits == 0:
        return check(
            CheckVerdict.INCONCLUSIVE,
            f"usage reports {second.cached_tokens} cached tokens, the server's hit counter did not move",
        )
    return check(
        CheckVerdict.PASS,
        f"a unique prompt of {second.prompt_tokens} tokens, sent twice, hit {second.cached_tokens}"
        + (f"; counters agree ({control.counted_hits:.0f})" if control.counted_hits else ""),
    )


def _causes_of_a_miss(replica: ReplicaEvidence) -> str:
    abilities = replica.identity.capabilities
    if abilities.why_nothing_is_cached is not None:
        return f"The engine itself says why: {abilities.why_nothing_is_cached}"
    return f"Likely causes: {'; '.join(abilities.miss_causes or _MISS_CAUSES)}"


class BindingResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether production's requests provably land in the release's namespace.

    Attributes:
        bound: None when it could not be told.
        proof: what was observed.
    """

    bound: bool | None
    proof: str


def binding_result(replica: ReplicaEvidence) -> BindingResult:
    """What the nonce prompts showed."""
    evidence = replica.binding
    if evidence is None:
        has_salt = replica.identity.capabilities.has_salt
        lacking = f"{replica.identity.kind} has no salt: within one process its keys are tokens only"
        return BindingResult(
            bound=None if has_salt else False, proof="no nonce prompt was sent" if has_salt else lacking
        )
    if replica.leaks:
        first = replica.leaks[0]
        return BindingResult(
            bound=False,
            proof=f"{len(replica.leaks)} requests hit in key spaces that nobody had used ({first.asked}: "
            f"{first.cached_tokens} tokens): the engine, or a layer below or in front of it, ignores the salt",
        )
    hit, miss = evidence.as_production, evidence.fresh_salt
    if hit.hits_mostly is None or miss.hits_mostly is None:
        return BindingResult(bound=None, proof="nobody witnessed the hits of the nonce prompts")
    if miss.hits_mostly:
        return BindingResult(
            bound=False,
            proof=f"a nonce prompt under a fresh salt hit {miss.cached_tokens} tokens: the engine ignores the salt",
        )
    if not hit.hits_mostly:
        return _unbound(replica, evidence)
    return BindingResult(
        bound=True,
        proof=f"a nonce prompt of {hit.prompt_tokens} tokens sent inside the namespace hit {hit.cached_tokens} as "
        f"production, {miss.cached_tokens} under a fresh salt",
    )


def _unbound(replica: ReplicaEvidence, evidence: BindingEvidence) -> BindingResult:
    """What it says that production did not hit a prompt of the namespace: nothing, where nothing hits anyhow."""
    found = "a nonce prompt sent inside the namespace did not hit when sent as production"
    if evidence.as_production.key_space == evidence.inside.key_space:
        return BindingResult(bound=None, proof=f"{found}, which is the same request: nothing tells whose a hit is")
    control = replica.control
    if control is None or not control.legs[1].hits_mostly:
        return BindingResult(bound=None, proof=f"{found}, and neither did the control: nothing tells whose a hit is")
    return BindingResult(bound=False, proof=found)


def check_binding(
    replica: ReplicaEvidence, *, namespace: str, production_salt: str | None, stray_fields: tuple[str, ...] = ()
) -> Check:
    """Does production traffic land in the release's namespace, where it is said to?

    Args:
        replica: what it showed.
        namespace: of the release.
        production_salt: the key space that users use, None for unsalted.
        stray_fields: of production's body, which hold a namespace where no engine looks for one.
    """
    result = binding_result(replica)
    claims = production_salt == namespace or bool(stray_fields)
    if result.bound:
        verdict, detail = CheckVerdict.PASS, result.proof
    elif claims and result.bound is None:
        verdict, detail = CheckVerdict.INCONCLUSIVE, result.proof
    elif claims:
        verdict = CheckVerdict.FAIL
        detail = f"production is said to use {namespace}, but {result.proof}{_misspelt(stray_fields)}"
    else:
        verdict = CheckVerdict.NOTE
        known = "not known" if result.bound is None else "not bound"
        detail = f"{known}: {result.proof}. Judged: the {space_name(production_salt)} key space, which users get"
    return Check(id=CheckId.BINDING, verdict=verdict, detail=detail, replica=replica.identity.shown)


def _misspelt(stray_fields: tuple[str, ...]) -> str:
    if not stray_fields:
        return ""
    return (
        f"; production's body has it as {', '.join(stray_fields)}, and no engine reads a key space from there: unknown "
        "fields are accepted and ignored. vLLM reads cache_salt, SGLang extra_key or cache_salt"
    )


_ASK_AGAIN = (
    "verify again on a quiet engine, and each process and rank behind this URL by itself (--replicas takes ranks)"
)
_ASK_FOR_THEM = (
    "have the server answer with log-probabilities (some gateways drop `logprobs` and `top_logprobs`: name the "
    "engine's own URL), and verify again"
)


def tells_candidates(judgements: Sequence[ProbeJudgement], floor: NoiseFloor) -> bool:
    """Whether the server tells candidates of a token at all, so that more of the same may tell more."""
    return floor.candidates is not None or any(one.distance is not None for one in judgements)


def check_consistency(
    judgements: tuple[ProbeJudgement, ...], *, floor: NoiseFloor, limits: Limits, replica: str
) -> Check:
    """Do production legs agree with clean ones, and is that enough evidence for the claim?"""

    def check(verdict: CheckVerdict, detail: str) -> Check:
        return Check(id=CheckId.CONSISTENCY, verdict=verdict, detail=detail, replica=replica)

    by = {verdict: [one for one in judgements if one.verdict is verdict] for verdict in ProbeVerdict}
    stale, suspect, unjudged = by[ProbeVerdict.STALE], by[ProbeVerdict.SUSPECT], by[ProbeVerdict.UNJUDGED]
    floor_text = f"threshold {threshold_nats(floor):.4f} nats from {floor.pairs} clean pairs"
    if stale:
        prefixes = sorted({one.prefix for one in stale})
        return check(
            CheckVerdict.FAIL,
            f"{len(stale)} of {len(judgements)} probes answer from KV that this release did not make ({floor_text})"
            + (f", {len(suspect)} more are suspect and were not repeated" if suspect else "")
            + f"; prefixes: {', '.join(prefixes)}. Stop traffic to this replica. {CLEAN_UP}. Then prewarm, and "
            "verify again",
        )
    if unjudged:
        return check(
            CheckVerdict.INCONCLUSIVE,
            f"{len(unjudged)} probes could not be judged: {unjudged[0].detail}"
            + ("" if tells_candidates(unjudged, floor) else f"; {_ASK_FOR_THEM}"),
        )
    if suspect:
        return check(
            CheckVerdict.INCONCLUSIVE,
            f"{len(suspect)} probes differ from their clean twins, which proves nothing yet ({suspect[0].detail}); "
            + (_ASK_AGAIN if tells_candidates(suspect, floor) else _ASK_FOR_THEM),
        )
    needed = probes_needed(stale_below=limits.stale_below, confidence=limits.confidence)
    if len(judgements) < needed:
        share = provable_share(clean_probes=len(judgements), confidence=limits.confidence)
        return check(
            CheckVerdict.INCONCLUSIVE,
            f"{len(judgements)} clean probes prove a stale share below {share:.0%}; below {limits.stale_below:.0%} "
            f"takes {needed}: add prompts, or ask for less with --stale-below",
        )
    return check(CheckVerdict.PASS, f"{len(judgements)} probes within the noise floor ({floor_text})")


def _fault(observation: Observation) -> str | None:
    if not observation.text and not observation.tokens:
        # A reasoning model may spend a small budget on what the server hides: alive, and `consistency` is unjudged.
        return None if observation.finish_reason == "length" else "an empty answer"
    texts = [token.token for token in observation.tokens]
    if len(texts) >= REPEATED_TOKENS and len(set(texts)) == 1:
        return f"{len(texts)} times the same token"
    if any(token.logprob is None for token in observation.tokens):
        return "a missing or NaN log-probability"
    return None


def check_degenerate(replica: ReplicaEvidence) -> Check:
    """Is the output alive?"""
    if not replica.probes:
        detail = "no production leg was sent"
        return Check(
            id=CheckId.DEGENERATE, verdict=CheckVerdict.INCONCLUSIVE, detail=detail, replica=replica.identity.shown
        )
    faults = {
        probe.id: fault for probe in replica.probes if (fault := _fault(probe.production[0].observation)) is not None
    }
    if not faults:
        verdict, detail = CheckVerdict.PASS, f"{len(replica.probes)} answers are alive"
    else:
        shown = ", ".join(f"{name} ({fault})" for name, fault in list(faults.items())[:5])
        verdict, detail = CheckVerdict.FAIL, f"{len(faults)} of {len(replica.probes)} answers are degenerate: {shown}"
    return Check(id=CheckId.DEGENERATE, verdict=verdict, detail=detail, replica=replica.identity.shown)


def check_residency(replica: ReplicaEvidence) -> Check:
    """Is what was warm before the run still resident after it? Never more than a note where it is not."""
    verdict, detail = _residency(replica)
    return Check(id=CheckId.RESIDENCY, verdict=verdict, detail=detail, replica=replica.identity.shown)


def _residency(replica: ReplicaEvidence) -> tuple[CheckVerdict, str]:
    # Of each probe that was asked again its first leg, and the last.
    looks = [(probe.production[0], probe.production[-1]) for probe in replica.probes if len(probe.production) > 1]
    warm = [(before, after) for before, after in looks if before.hits_wholly]
    if replica.flush is not None and replica.flush.is_done:
        return CheckVerdict.NOTE, "the cache was emptied (--allow-flush): prewarm again"
    if not replica.residency:
        heals = replica.identity.capabilities.reference_heals
        why = ": a reference leg replaces what this engine holds; prewarm it after verify" if heals else ""
        return CheckVerdict.NOTE, f"not asked again{why}"
    if any(after.cached_tokens is None for _, after in looks):
        return CheckVerdict.NOTE, "not known: nobody witnessed the hits"
    if not warm:
        hits = sum(after.cached_tokens or 0 for _, after in looks)
        return CheckVerdict.NOTE, (
            f"no prompt that was asked again was warm before the run ({len(looks)} of them now hit {hits} tokens)"
        )
    kept = sum((after.cached_tokens or 0) >= (before.cached_tokens or 0) for before, after in warm)
    found = f"the warm set is still resident: {kept} of {len(warm)} prompts that were asked again"
    if kept < len(warm):
        return CheckVerdict.NOTE, f"{found}. The rest was evicted meanwhile: prewarm again"
    return CheckVerdict.PASS, found


def check_replicas(
    verdicts: Sequence[tuple[str, CheckVerdict]], *, mixed: tuple[str, ...], unjudged: Sequence[str] = ()
) -> Check:
    """Does every replica pass, and do all run the same release?

    Args:
        verdicts: of each replica; two of one name (ranks behind one URL, say) count by themselves.
        mixed: those that run other weights than the rest.
        unjudged: what is known of those that nobody could ask, or that came meanwhile.
    """
    failed = [replica for replica, verdict in verdicts if verdict is CheckVerdict.FAIL]
    if mixed:
        return Check(
            id=CheckId.REPLICAS, verdict=CheckVerdict.FAIL, detail=f"other weights than the rest: {', '.join(mixed)}"
        )
    if failed:
        return Check(id=CheckId.REPLICAS, verdict=CheckVerdict.FAIL, detail=f"failed: {', '.join(failed)}")
    unsure = [replica for replica, verdict in verdicts if verdict is CheckVerdict.INCONCLUSIVE]
    if unsure or unjudged:
        parts = [f"inconclusive: {', '.join(unsure)}"] if unsure else []
        parts += [f"not judged: {'; '.join(unjudged)}"] if unjudged else []
        return Check(id=CheckId.REPLICAS, verdict=CheckVerdict.INCONCLUSIVE, detail="; ".join(parts))
    return Check(id=CheckId.REPLICAS, verdict=CheckVerdict.PASS, detail=f"all {len(verdicts)} pass")
