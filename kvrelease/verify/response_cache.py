"""Did an engine compute the answers, or did a response cache in front of it give back what it had kept?

Signs, each of one answer: its headers say so; it has the id of an earlier answer, and everything else that was told of
that; it was made before the run began, by the server's own clock; its usage tells no prompt tokens, where that of
others does. And one of the engine: it looked up fewer tokens than a unique prompt, sent twice, has.

What servers differ in must not cry wolf. Ids say nothing where one of them stands over two different answers (a
server whose ids are constant, or of the client's own choosing), and times say nothing unless they pass as the run does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from kvrelease.binding.observe import Leg, Witness
from kvrelease.engines.base import EngineKind, Observation
from kvrelease.engines.front_cache import next_step
from kvrelease.verify.checks import Check, CheckId, CheckVerdict
from kvrelease.verify.consistency import MORE_THAN_ONE_QUANTUM, WRITTEN_APART_NATS, threshold_nats
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import Isolation, ProbeEvidence, ReplicaEvidence
from kvrelease.verify.noise import NoiseFloor

# `created` is cut to whole seconds.
UNIT_S = 1.0

# Whole seconds that must have passed by the server's clock before it counts as one: a constant never passes any.
PASSED_S = 2

_STARTED = re.compile(r"started:([0-9]+(?:\.[0-9]+)?)")
_SHOWN = 3
_GENERAL = (
    "find the response cache between this URL and the engine; empty it when a release is promoted, or put the release "
    "into its keys"
)
_AFTER = (
    "Then verify again. Probes that get past it (`production:` in kvrelease.yaml) judge the engine, not what users get"
)


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the replica itself.

    Attributes:
        request: names what was asked; equal for requests that differ in nothing, or in the key space alone.
        observation: what came back.
        place: in the order sent, as far as that is known.
    """

    request: str
    observation: Observation
    place: int


def check_response_cache(replica: ReplicaEvidence, *, floor: NoiseFloor) -> Check:
    """Did the engine compute what users get, or is there a response cache that answers in its place?"""
    answers = _answers(replica)
    signs = _signs(answers)
    verdict, detail = _verdict(replica, answers, signs, floor=floor)
    return Check(id=CheckId.RESPONSE_CACHE, verdict=verdict, detail=detail, replica=replica.identity.url)


def without_kept_hits(replica: ReplicaEvidence) -> ReplicaEvidence:
    """The evidence without the hits that users' kept answers tell of: another request had them, maybe elsewhere."""
    answers = _answers(replica)
    kept = _kept(answers, _signs(answers))
    if not kept:
        return replica

    def told(legs: Iterable[Leg]) -> tuple[Leg, ...]:
        return tuple(
            replace(leg, cached_tokens=None, foreign_tokens=None, witness=Witness.NOBODY)
            if leg.observation in kept
            else leg
            for leg in legs
        )

    probes = tuple(replace(probe, production=told(probe.production)) for probe in replica.probes)
    return replace(replica, probes=probes, residency=told(replica.residency))


def _kept(answers: Sequence[_Answer], signs: Mapping[int, str]) -> frozenset[Observation]:
    return frozenset(one.observation for one in answers if one.place in signs)


def _verdict(
    replica: ReplicaEvidence, answers: Sequence[_Answer], signs: Mapping[int, str], *, floor: NoiseFloor
) -> tuple[CheckVerdict, str]:
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
    named = [one.observation.cached_in_front for one in answers if one.observation.cached_in_front is not None]
    step = next((found for sentence in named if (found := next_step(sentence)) is not None), _GENERAL)
    kinds = list(dict.fromkeys(signs.values()))
    found = f"{len(signs)} of {len(answers)} answers were not computed for this run: {'; '.join(kinds[:_SHOWN])}"
    if len(kinds) > _SHOWN:
        found += f"; and {len(kinds) - _SHOWN} more"
    wrong = _wrong(replica, answers, signs, floor=floor)
    if wrong:
        return (
            CheckVerdict.FAIL,
            f"{found}. Users get what this release did not compute: {wrong}. Next: {step}. {_AFTER}",
        )
    return CheckVerdict.INCONCLUSIVE, f"{found}. They say nothing of the engine behind. Next: {step}. {_AFTER}"


def _no_sign(replica: ReplicaEvidence, answers: Sequence[_Answer]) -> tuple[CheckVerdict, str]:
    ids = {one.observation.id for one in answers if one.observation.id is not None}
    control = replica.control
    witnesses = [f"{len(ids)} ids"] if _ids_tell(answers) else []
    witnesses += ["the times of the answers"] if _clock(answers) is not None else []
    if control is not None and control.counted_queries:
        witnesses.append(f"{control.counted_queries:.0f} tokens looked up for the control")
    if not witnesses:
        return CheckVerdict.NOTE, "cannot be told: no headers, ids, times or counters that would show one"
    return CheckVerdict.PASS, f"no sign of one in {len(answers)} answers ({', '.join(witnesses)})"


def _answers(replica: ReplicaEvidence) -> tuple[_Answer, ...]:
    """Everything that came from this replica's URL, in the order sent."""
    found = [(name, leg.observation) for name, leg in _legs(replica)]
    if all(observation.sent_at is not None for _, observation in found):
        found.sort(key=lambda one: one[1].sent_at or 0.0)
    return tuple(_Answer(request=name, observation=seen, place=place) for place, (name, seen) in enumerate(found))


def _legs(replica: ReplicaEvidence) -> Iterable[tuple[str, Leg]]:
    for probe in replica.probes:
        yield from ((probe.id, leg) for leg in probe.production)
        yield from ((probe.id, leg) for leg in probe.repeats.production)
    yield from ((one.probe, one.leg) for one in replica.exposure)
    if replica.control is not None:
        yield from (("the control", leg) for leg in replica.control.legs)
    if (binding := replica.binding) is not None:
        yield from (("the nonce", leg) for leg in (binding.inside, binding.as_production, binding.fresh_salt))
    for number, pair in enumerate(replica.noise):
        yield from ((f"nonce {number + 1}", leg) for leg in pair)
    if replica.isolation is not Isolation.REFERENCE:
        yield from ((probe.id, leg) for probe in replica.probes for leg in _clean_legs(probe))


def _clean_legs(probe: ProbeEvidence) -> tuple[Leg, ...]:
    return (*probe.reference_legs, *probe.rewritten, *probe.repeats.clean)


def _signs(answers: Sequence[_Answer]) -> dict[int, str]:
    """By place, why an answer was not computed for the request that got it; the first sign of each."""
    signs: dict[int, str] = {}
    for found in (_of_headers(answers), _of_usage(answers), _of_times(answers), _of_ids(answers)):
        signs = dict(found) | signs
    return signs


def _of_headers(answers: Sequence[_Answer]) -> Iterable[tuple[int, str]]:
    for one in answers:
        if one.observation.cached_in_front is not None:
            yield one.place, one.observation.cached_in_front


def _of_usage(answers: Sequence[_Answer]) -> Iterable[tuple[int, str]]:
    if any(one.observation.prompt_tokens for one in answers):
        for one in answers:
            if one.observation.prompt_tokens == 0:
                yield one.place, "usage tells no prompt tokens, where that of other answers does"


def _of_times(answers: Sequence[_Answer]) -> Iterable[tuple[int, str]]:
    clock = _clock(answers)
    if clock is None:
        return
    old = [one for one in answers if (age := clock.age_s(one.observation)) is not None and age > 0]
    if not _follow_the_run([one.observation for one in old], clock):
        for one in old:
            yield one.place, "made before the run began, by the server's own clock"


def _of_ids(answers: Sequence[_Answer]) -> Iterable[tuple[int, str]]:
    if not _ids_tell(answers):
        return
    first: dict[str, _Answer] = {}
    for one in answers:
        name = one.observation.id
        if name is None:
            continue
        earlier = first.setdefault(name, one)
        if earlier is one:
            continue
        if earlier.request == one.request:
            yield one.place, "asked again, and the same answer came back with its id"
        else:
            yield one.place, "two different prompts got one answer, with one id"


def _ids_tell(answers: Sequence[_Answer]) -> bool:
    """Whether ids name answers: there are several, and none stands over two that differ in anything told of both."""
    first: dict[str, Observation] = {}
    for one in answers:
        seen = one.observation
        if seen.id is not None and not _may_be_one(first.setdefault(seen.id, seen), seen):
            return False
    return len(first) > 1


def _may_be_one(left: Observation, right: Observation) -> bool:
    """Whether two answers of one id can be the same one, given twice."""
    told = (
        (left.created, right.created),
        (left.prompt_tokens, right.prompt_tokens),
        (left.cached_tokens, right.cached_tokens),
        (left.tokens or None, right.tokens or None),
    )
    return left.text == right.text and all(one is None or other is None or one == other for one, other in told)


class _Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The server's clock, as the run's own answers show it.

    Attributes:
        ahead_s: it is at least so far ahead of ours; below zero where it may be behind.
        began_at: when the first answer of the run was asked for, by our clock.
        slowest_s: the longest that an answer took, which is how finely the answers tell the two clocks apart.
    """

    ahead_s: float
    began_at: float
    slowest_s: float

    def age_s(self, seen: Observation) -> float | None:
        """By how much an answer is surely older than the run; None where it tells no time."""
        if seen.created is None:
            return None
        return self.began_at + self.ahead_s - self.slowest_s - (seen.created + UNIT_S)


def _follow_the_run(old: Sequence[Observation], clock: _Clock) -> bool:
    """Whether the times of what seems old pass as the run does: a second process's clock, behind, and no cache."""
    times = [(seen.created, seen.sent_at) for seen in old if seen.created is not None and seen.sent_at is not None]
    if not times:
        return False
    sent = [asked for _, asked in times]
    behind = [asked - created for created, asked in times]
    slack = UNIT_S + clock.slowest_s
    return max(sent) - min(sent) > 2 * slack and max(behind) - min(behind) <= slack


def _clock(answers: Sequence[_Answer]) -> _Clock | None:
    """The server's clock; None where `created` does not pass as the run does (a constant, a start time).

    No answer is made after it has arrived, be it kept or not. So `created` less the time of its arrival is at most what
    the server's clock is ahead, and the largest of these is the measure: nothing needs to be assumed of either clock.
    """
    told = [
        (one.observation.created, one.observation.sent_at, one.observation.total_s)
        for one in answers
        if one.observation.created is not None and one.observation.sent_at is not None
    ]
    if not told:
        return None
    ahead = max(created - sent - took for created, sent, took in told)
    slowest = max(took for _, _, took in told)
    passing = [created for created, sent, _ in told if created + UNIT_S + slowest > sent + ahead]
    if max(passing) - min(passing) < PASSED_S:
        return None
    return _Clock(ahead_s=ahead, began_at=min(sent for _, sent, _ in told), slowest_s=slowest)


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


def _wrong(
    replica: ReplicaEvidence, answers: Sequence[_Answer], signs: Mapping[int, str], *, floor: NoiseFloor
) -> str | None:
    """Why kept answers are not this release's: they differ from what it computes, or are older than its process."""
    kept = _kept(answers, signs)
    different = [probe.id for probe in replica.probes if _differs(probe, kept, floor=floor)]
    if different:
        return (
            f"{len(different)} of {len(replica.probes)} probes get another answer than the engine gives (such as "
            f"{different[0]})"
        )
    started = _STARTED.match(replica.identity.process or "")
    if started is None or _clock(answers) is None:
        return None
    older = sum(
        one.observation.created is not None and one.observation.created + UNIT_S <= float(started[1])
        for one in answers
        if one.place in signs
    )
    return f"{older} answers are older than the engine's process" if older else None


def _differs(probe: ProbeEvidence, kept: frozenset[Observation], *, floor: NoiseFloor) -> bool:
    """Whether a kept answer of production differs from what the engine computed, by more than noise and writing do."""
    twins = [leg.observation for leg in _clean_legs(probe) if leg.observation not in kept]
    users = [leg.observation for leg in (*probe.production, *probe.repeats.production) if leg.observation in kept]
    return bool(twins) and any(all(_is_another(seen, twin, twins, floor=floor) for twin in twins) for seen in users)


def _is_another(seen: Observation, twin: Observation, twins: Sequence[Observation], *, floor: NoiseFloor) -> bool:
    found = distance(seen, twin)
    if found.nats is not None:
        step = MORE_THAN_ONE_QUANTUM * (floor.quantum or 0.0)
        is_more_than_a_step = found.largest_nats is not None and found.largest_nats > step
        return is_more_than_a_step and found.nats > max(threshold_nats(floor), WRITTEN_APART_NATS)
    # Without log-probabilities text decides, where the engine gives one and the same to everybody.
    return len(twins) > 1 and len({one.text for one in twins}) == 1 and seen.text != twin.text
