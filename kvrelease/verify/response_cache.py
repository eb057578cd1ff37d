"""Did the engine compute what users get, or did a response cache in front of it give back what it had kept?

The signs of single answers are `kept_answers`'; one more is of the engine: it looked up fewer tokens than a unique
prompt, sent twice, has. What a kept answer tells of hits, another request had: it counts as not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from kvrelease.binding.observe import Leg, Witness
from kvrelease.engines.base import EngineKind, Observation
from kvrelease.engines.front_cache import next_step
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import BindingEvidence, ProbeEvidence, ReplicaEvidence
from kvrelease.verify.kept_answers import UNIT_S, Answer, Kept, clock_of, ids_tell
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.suspicion import WRITTEN_APART_NATS, threshold_nats
from kvrelease.verify.weighing import MORE_THAN_ONE_QUANTUM

_STARTED = re.compile(r"started:([0-9]+(?:\.[0-9]+)?)")
_SHOWN = 3
_GENERAL = (
    "find the response cache between this URL and the engine; empty it when a release is promoted, or put the release "
    "into its keys"
)
_AFTER = (
    "Then verify again. Probes that get past it (`production:` in kvrelease.yaml) judge the engine, not what users get"
)


def check_response_cache(replica: ReplicaEvidence, kept: Kept, *, floor: NoiseFloor) -> Check:
    """Did the engine compute what users get, or is there a response cache that answers in its place?"""
    verdict, detail = _verdict(replica, kept, floor=floor)
    return Check(id=CheckId.RESPONSE_CACHE, verdict=verdict, detail=detail, replica=replica.identity.shown)


def without_kept_hits(replica: ReplicaEvidence, kept: Kept) -> ReplicaEvidence:
    """The evidence without the hits that kept answers tell of: another request had them, maybe elsewhere."""
    if not kept.signs:
        return replica
    observations = kept.observations()

    def told(leg: Leg) -> Leg:
        if leg.observation not in observations:
            return leg
        return replace(leg, cached_tokens=None, foreign_tokens=None, witness=Witness.NOBODY)

    control, binding = replica.control, replica.binding
    if control is not None:
        first, second = control.legs
        control = replace(control, legs=(told(first), told(second)))
    if binding is not None:
        binding = BindingEvidence(
            inside=told(binding.inside),
            as_production=told(binding.as_production),
            fresh_salt=told(binding.fresh_salt),
        )
    return replace(
        replica,
        probes=tuple(replace(one, production=tuple(told(leg) for leg in one.production)) for one in replica.probes),
        residency=tuple(told(leg) for leg in replica.residency),
        exposure=tuple(replace(one, leg=told(one.leg)) for one in replica.exposure),
        control=control,
        binding=binding,
        leaks=tuple(one for one in replica.leaks if one.leg is None or one.leg.observation not in observations),
    )


def remark(check: Check, kept: Kept) -> Check:
    """The check, with the response cache named where that may be what a check of hits stumbled over."""
    if not kept.signs or check.verdict is CheckVerdict.PASS or check.id not in _ABOUT_HITS:
        return check
    return replace(
        check,
        detail=f"{check.detail}. A response cache gave {len(kept.signs)} of {len(kept.answers)} answers "
        "(response-cache): what it kept tells of no hit, so settle that first",
    )


_ABOUT_HITS = frozenset({CheckId.FIRST_TOUCH, CheckId.CONTROL, CheckId.BINDING, CheckId.BYPASS})


def _verdict(replica: ReplicaEvidence, kept: Kept, *, floor: NoiseFloor) -> tuple[CheckVerdict, str]:
    answers, signs = kept.answers, kept.signs
    if replica.identity.kind is EngineKind.LOCAL:
        return CheckVerdict.NOTE, "in process: nothing is in front"
    uncomputed = _uncomputed_tokens(replica)
    if not signs and uncomputed is None:
        return _no_sign(replica, answers)
    if not signs:
        return CheckVerdict.INCONCLUSIVE, (
            f"{uncomputed}: something in front of it answered, or /metrics is another process's. Otherwise {_GENERAL}. "
            f"{_AFTER}"
        )
    step = way_past(kept)
    kinds = list(dict.fromkeys(signs.values()))
    found = f"{len(signs)} of {len(answers)} answers were not computed for this run: {'; '.join(kinds[:_SHOWN])}"
    if len(kinds) > _SHOWN:
        found += f"; and {len(kinds) - _SHOWN} more"
    wrong = _wrong(replica, kept, floor=floor)
    if wrong:
        return (
            CheckVerdict.FAIL,
            f"{found}. Users get what this release did not compute: {wrong}. Next: {step}. {_AFTER}",
        )
    found += _other_texts(replica, kept)
    return CheckVerdict.INCONCLUSIVE, f"{found}. They say nothing of the engine behind. Next: {step}. {_AFTER}"


def way_past(kept: Kept) -> str:
    """What to do about the response cache: what its maker documents, where an answer names it."""
    named = [one.observation.cached_in_front for one in kept.answers if one.observation.cached_in_front is not None]
    return next((found for sentence in named if (found := next_step(sentence)) is not None), _GENERAL)


def _no_sign(replica: ReplicaEvidence, answers: Sequence[Answer]) -> tuple[CheckVerdict, str]:
    ids = {one.observation.id for one in answers if one.observation.id is not None}
    control = replica.control
    witnesses = [f"{len(ids)} ids"] if ids_tell(answers) else []
    witnesses += ["the times of the answers"] if clock_of(answers) is not None else []
    if control is not None and control.counted_queries:
        witnesses.append(f"{control.counted_queries:.0f} tokens looked up for the control")
    if not witnesses:
        return CheckVerdict.NOTE, "cannot be told: no headers, ids, times or counters that would show one"
    return CheckVerdict.PASS, f"no sign of one in {len(answers)} answers ({', '.join(witnesses)})"


def _uncomputed_tokens(replica: ReplicaEvidence) -> str | None:
    """What the engine's counters say of the control, where at least one of its two prompts was never looked up."""
    control = replica.control
    if control is None or control.counted_queries is None:
        return None
    lengths = [leg.prompt_tokens for leg in control.legs]
    known = [length for length in lengths if length]
    if len(known) < len(lengths) or control.counted_queries > sum(known) - min(known):
        return None
    return (
        f"the engine looked up {control.counted_queries:.0f} tokens for a unique prompt of {known[0]} that was "
        "answered twice"
    )


def _wrong(replica: ReplicaEvidence, kept: Kept, *, floor: NoiseFloor) -> str | None:
    """Why kept answers are not this release's: they differ from what it computes, or are older than its process."""
    observations = kept.observations()
    different = [probe.id for probe in replica.probes if _differs(probe, observations, floor=floor)]
    if different:
        return (
            f"{len(different)} of {len(replica.probes)} probes get another answer than the engine gives (such as "
            f"{different[0]})"
        )
    started = _STARTED.match(replica.identity.process or "")
    if started is None or clock_of(kept.answers) is None:
        return None
    older = sum(
        one.observation.created is not None and one.observation.created + UNIT_S <= float(started[1])
        for one in kept.answers
        if one.place in kept.signs
    )
    return f"{older} answers are older than the engine's process" if older else None


def _other_texts(replica: ReplicaEvidence, kept: Kept) -> str:
    """That kept answers are other texts; it is all that texts show, since a choice that hung by a hair may flip."""
    found = sum(
        any(
            all(distance(seen, twin).nats is None and seen.text != twin.text for twin in twins)
            for seen in users
            if twins
        )
        for users, twins in (_users_and_twins(probe, kept.observations()) for probe in replica.probes)
    )
    if not found:
        return ""
    return (
        f"; {found} probes get another text than the engine gives, which without log-probabilities does not prove "
        "another release's"
    )


def _users_and_twins(
    probe: ProbeEvidence, kept: frozenset[Observation]
) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
    """Of one probe, kept answers that users get, and what the engine computed."""
    users = (leg.observation for leg in (*probe.production, *probe.repeats.production))
    twins = (leg.observation for leg in probe.every_clean_leg)
    return tuple(one for one in users if one in kept), tuple(one for one in twins if one not in kept)


def _differs(probe: ProbeEvidence, kept: frozenset[Observation], *, floor: NoiseFloor) -> bool:
    """Whether a kept answer of production differs from what the engine computed, by more than noise and writing do."""
    users, twins = _users_and_twins(probe, kept)
    return bool(twins) and any(all(_is_another(seen, twin, floor=floor) for twin in twins) for seen in users)


def _is_another(seen: Observation, twin: Observation, *, floor: NoiseFloor) -> bool:
    found = distance(seen, twin)
    if found.nats is None or found.largest_nats is None:
        return False
    step = MORE_THAN_ONE_QUANTUM * (floor.quantum or 0.0)
    return found.largest_nats > step and found.nats > max(threshold_nats(floor), WRITTEN_APART_NATS)
