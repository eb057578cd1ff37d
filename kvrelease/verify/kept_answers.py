"""Which answers of a run had a response cache in front of the engine kept? Signs, each of one answer; pure.

Its headers say so; it has the id of an earlier answer, and everything else that was told of that; it was made before
the run began, by the server's own clock; its usage tells no prompt tokens, where that of others does.

What servers differ in must not cry wolf. Ids say nothing where one of them stands over two different answers (a
server whose ids are constant, or of the client's own choosing), and times say nothing unless they pass as the run does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Observation
from kvrelease.verify.evidence import Isolation, ReplicaEvidence

# `created` is cut to whole seconds.
UNIT_S = 1.0

# Whole seconds that must have passed by the server's clock before it counts as one: a constant never passes any.
PASSED_S = 2


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the replica itself.

    Attributes:
        request: names what was asked; equal for requests that differ in nothing, or in the key space alone.
        observation: what came back.
        place: in the order sent, as far as that is known.
    """

    request: str
    observation: Observation
    place: int


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one replica, and which of them a response cache had kept.

    Attributes:
        answers: everything that came from its URL, in the order sent.
        signs: by place, why an answer was not computed for the request that got it; the first sign of each.
    """

    answers: tuple[Answer, ...]
    signs: Mapping[int, str]

    def observations(self) -> frozenset[Observation]:
        """Those that were kept."""
        return frozenset(one.observation for one in self.answers if one.place in self.signs)


def kept_answers(replica: ReplicaEvidence) -> Kept:
    """What a response cache in front of the replica answered, as far as signs tell."""
    answers = _answers(replica)
    return Kept(answers=answers, signs=_signs(answers))


def _answers(replica: ReplicaEvidence) -> tuple[Answer, ...]:
    """Everything that came from this replica's URL, in the order sent."""
    found = [(name, leg.observation) for name, leg in _legs(replica)]
    # Of a request that leaked, and is kept nowhere else: a reference leg that was not proved cold.
    known = {seen for _, seen in found}
    leaked = ((one.asked, one.leg.observation) for one in replica.leaks if one.leg is not None)
    found += [(name, seen) for name, seen in leaked if seen not in known]
    if all(observation.sent_at is not None for _, observation in found):
        found.sort(key=lambda one: one[1].sent_at or 0.0)
    return tuple(Answer(request=name, observation=seen, place=place) for place, (name, seen) in enumerate(found))


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
        yield from ((probe.id, leg) for probe in replica.probes for leg in probe.every_clean_leg)


def _signs(answers: Sequence[Answer]) -> dict[int, str]:
    """By place, why an answer was not computed for the request that got it; the first sign of each."""
    signs: dict[int, str] = {}
    for found in (_of_headers(answers), _of_usage(answers), _of_times(answers), _of_ids(answers)):
        signs = dict(found) | signs
    return signs


def _of_headers(answers: Sequence[Answer]) -> Iterable[tuple[int, str]]:
    for one in answers:
        if one.observation.cached_in_front is not None:
            yield one.place, one.observation.cached_in_front


def _of_usage(answers: Sequence[Answer]) -> Iterable[tuple[int, str]]:
    if any(one.observation.prompt_tokens for one in answers):
        for one in answers:
            if one.observation.prompt_tokens == 0:
                yield one.place, "usage tells no prompt tokens, where that of other answers does"


def _of_times(answers: Sequence[Answer]) -> Iterable[tuple[int, str]]:
    clock = clock_of(answers)
    if clock is None:
        return
    old = [one for one in answers if (age := clock.age_s(one.observation)) is not None and age > 0]
    if not _follow_the_run([one.observation for one in old], clock):
        for one in old:
            yield one.place, "made before the run began, by the server's own clock"


def _of_ids(answers: Sequence[Answer]) -> Iterable[tuple[int, str]]:
    if not ids_tell(answers):
        return
    first: dict[str, Answer] = {}
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


def ids_tell(answers: Sequence[Answer]) -> bool:
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


class Clock(msgspec.Struct, frozen=True, kw_only=True):
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


def _follow_the_run(old: Sequence[Observation], clock: Clock) -> bool:
    """Whether the times of what seems old pass as the run does: a second process's clock, behind, and no cache."""
    times = [(seen.created, seen.sent_at) for seen in old if seen.created is not None and seen.sent_at is not None]
    if not times:
        return False
    sent = [asked for _, asked in times]
    behind = [asked - created for created, asked in times]
    slack = UNIT_S + clock.slowest_s
    return max(sent) - min(sent) > 2 * slack and max(behind) - min(behind) <= slack


def clock_of(answers: Sequence[Answer]) -> Clock | None:
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
    return Clock(ahead_s=ahead, began_at=min(sent for _, sent, _ in told), slowest_s=slowest)
