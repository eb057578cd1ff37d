"""How far apart two observations of the same prompt are.

The first generated token's top-k log-probabilities are the sharp instrument; decoded tokens come second, text last.
Definitions and measured sizes: docs/statistics.md. A run weighs the same answers again and again as others come in:
what was computed of them is kept, and held by the observations themselves, not by what they say.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from kvrelease.engines.base import GeneratedToken, Observation

# A first token that is all but certain (`<think>`, a harmony channel) carries nothing: its neighbours are noise.
FORCED_LOGPROB_NATS = -1e-3

# Gaps of top-k lists below this are rounding of the server's JSON, not a step of the logits.
ROUNDING_NATS = 1e-5

# What a list leaves for all other tokens is known no finer: some servers round log-probabilities to two decimals.
ROUNDED_SHARE = 0.01

# Of the distance that a stale answer has over twenty candidates, what it has over the first few: medians of 66 prompts
# after 36 steps of fine-tuning (docs/statistics.md). Noise does not shrink with them.
_SHARE_OF_FEW: Mapping[int, float] = {1: 0.49, 2: 0.66, 3: 0.69, 4: 0.77, 5: 0.81, 8: 0.96, 20: 1.0}

# So many candidates tell nearly what twenty do.
ENOUGH_CANDIDATES = 8

# Pairs of observations whose distance is kept. Of 299 probes with six legs each a run compares some ten thousand.
PAIRS_HELD = 1 << 15

# Nats by spelling, and by rank among candidates of one spelling; most probable first.
_Figures = dict[tuple[str, int], float]


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """The distance of two observations of one prompt.

    Attributes:
        nats: mean absolute log-probability difference over the union of both top-k lists of the first token that is
            not forced, >= 0; None when one side has no such list.
        largest_nats: largest absolute difference in those lists; None likewise.
        first_divergence: index of the first generated token that differs; None when all compared tokens agree, or
            both texts do.
        candidates: of each list that were compared: as many as the shorter one has; 0 where there are none.
        shared: of these, how many both lists hold.
    """

    nats: float | None
    largest_nats: float | None
    first_divergence: int | None
    candidates: int = 0
    shared: int = 0

    def is_above(self, threshold: float) -> bool:
        """Whether the two differ by more than so many nats, or in a way that figures do not measure.

        Without figures texts are compared. Lists that share no candidate tell only the least that they can differ by,
        which may be nothing: there too another token is another answer.
        """
        if self.nats is None:
            return self.first_divergence is not None
        return self.nats > threshold or self.shared == 0


def distance(left: Observation, right: Observation) -> Distance:
    """The distance of two observations.

    Lists of different lengths are compared as far as the shorter one goes. A token that only one list holds lies below
    the other list's end, and within what that leaves over: it counts with the least by which the two can differ, which
    is zero where it would not have made the other list either.
    """
    return _distance(_Itself(left), _Itself(right))


class _Itself:
    """An observation as a key: equal to itself alone, because to compare what two say takes as long as their distance.

    Args:
        observation: held as long as anything is kept of it, so that no other takes its place in memory.
    """

    __slots__ = ("observation",)

    def __init__(self, observation: Observation) -> None:
        self.observation = observation

    def __hash__(self) -> int:
        return id(self.observation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.observation is self.observation


@functools.lru_cache(maxsize=PAIRS_HELD)
def _distance(one: _Itself, other: _Itself) -> Distance:
    left, right = one.observation, other.observation
    first = _first_unforced(left.tokens, right.tokens)
    ours, theirs = ({}, {}) if first is None else _as_many_of_each(left.tokens[first], right.tokens[first])
    deltas = _deltas(ours, theirs) if ours and theirs else ()
    return Distance(
        nats=sum(deltas) / len(deltas) if deltas else None,
        largest_nats=max(deltas) if deltas else None,
        first_divergence=_first_divergence(left, right),
        candidates=len(ours),
        shared=len(ours.keys() & theirs.keys()),
    )


def _first_unforced(left: tuple[GeneratedToken, ...], right: tuple[GeneratedToken, ...]) -> int | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if not (_has_figures(one) and _has_figures(other)):
            return None
        if not _is_forced(one, other):
            return index
    return None if not left or not right else 0


def _is_forced(one: GeneratedToken, other: GeneratedToken) -> bool:
    return (
        one.token == other.token
        and one.top[0].logprob > FORCED_LOGPROB_NATS
        and other.top[0].logprob > FORCED_LOGPROB_NATS
    )


def _has_figures(token: GeneratedToken) -> bool:
    """Whether some candidate carries a figure: a stand-in for minus infinity, or NaN, is none."""
    return any(math.isfinite(entry.logprob) for entry in token.top)


def telling_tokens(observation: Observation) -> int | None:
    """How many generated tokens it takes to reach one that is not forced; None where candidates are not told."""
    for index, token in enumerate(observation.tokens):
        if not _has_figures(token):
            return None
        if not _is_forced(token, token):
            return index + 1
    return 1 if observation.tokens else None


def candidates_told(observations: Iterable[Observation]) -> int | None:
    """How many candidates a server tells of a token, by the median of its answers; None where it tells none."""
    places = [(one, place) for one in observations if (place := telling_tokens(one)) is not None]
    return statistics.median_low(len(one.tokens[place - 1].top) for one, place in places) if places else None


def share_of_few(candidates: int | None) -> float:
    """By how much bounds that were measured over twenty candidates shrink where a server tells fewer; 0 to 1.

    Args:
        candidates: that are told; None where that is not known, and nothing is compared.
    """
    told = [share for count, share in _SHARE_OF_FEW.items() if candidates is not None and count <= candidates]
    return max(told, default=1.0)


def cut_to(observation: Observation, candidates: int | None) -> Observation:
    """What a server that tells so many candidates would have told of the same answer."""
    if candidates is None or all(len(token.top) <= candidates for token in observation.tokens):
        return observation
    tokens = tuple(replace(token, top=token.top[:candidates]) for token in observation.tokens)
    return replace(observation, tokens=tokens)


def _as_many_of_each(left: GeneratedToken, right: GeneratedToken) -> tuple[_Figures, _Figures]:
    """The figures of both, as many of each, most probable first."""
    ours, theirs = _figures(left), _figures(right)
    most = min(len(ours), len(theirs))
    return _first(ours, most), _first(theirs, most)


def _first(figures: _Figures, most: int) -> _Figures:
    return figures if len(figures) == most else dict(itertools.islice(figures.items(), most))


def _figures(token: GeneratedToken) -> _Figures:
    """Candidates with a figure; those of one spelling (halves of a character, say) are told apart by rank."""
    named: _Figures = {}
    for entry in token.top:
        if math.isfinite(entry.logprob):
            place = 0
            while (entry.token, place) in named:
                place += 1
            named[entry.token, place] = entry.logprob
    return named


def _deltas(ours: _Figures, theirs: _Figures) -> tuple[float, ...]:
    if ours.keys() == theirs.keys():  # as a rule: then nothing is left over that would have to be bounded
        return tuple(abs(ours[name] - theirs[name]) for name in ours)
    most_of_ours, most_of_theirs = _most_of_others(ours), _most_of_others(theirs)
    return tuple(
        _delta(ours.get(name), theirs.get(name), most_of_ours=most_of_ours, most_of_theirs=most_of_theirs)
        for name in ours | theirs
    )


def _most_of_others(figures: _Figures) -> float:
    """The most that a token can have which a list does not hold: it is below the list's end, and of what is left."""
    left_over = 1.0 - sum(math.exp(min(0.0, logprob)) for logprob in figures.values())
    return min(*figures.values(), math.log(max(0.0, left_over) + ROUNDED_SHARE))


def _delta(ours: float | None, theirs: float | None, *, most_of_ours: float, most_of_theirs: float) -> float:
    """The difference of one candidate, where one side is missing the least that it can be."""
    if ours is None:
        assert theirs is not None
        return max(0.0, theirs - most_of_ours)
    if theirs is None:
        return max(0.0, ours - most_of_theirs)
    return abs(ours - theirs)


def _first_divergence(left: Observation, right: Observation) -> int | None:
    if left.text == right.text and left.text:
        return None  # servers cut one text into tokens in more than one way (merged pieces of a stream)
    for index, (one, other) in enumerate(zip(left.tokens, right.tokens, strict=False)):
        if one.token != other.token:
            return index
    if left.tokens and right.tokens:
        return min(len(left.tokens), len(right.tokens)) if len(left.tokens) != len(right.tokens) else None
    return None if left.text == right.text else 0


def logit_quantum(observations: tuple[Observation, ...]) -> float | None:
    """The step of the server's logits in nats, read from the gaps inside top-k lists; None without such lists.

    Differences of log-probabilities of one position are differences of logits, so in bf16 they are multiples of the
    logits' spacing (0.125 for logits from 16 to 32); in float32 the smallest gap is near zero, as it should be.
    """
    gaps = [gap for observation in observations if (gap := _finest_gap(_Itself(observation))) is not None]
    return min(gaps, default=None)


@functools.lru_cache(maxsize=PAIRS_HELD)
def _finest_gap(told: _Itself) -> float | None:
    """The smallest gap inside the first token's top-k list that is not rounding."""
    gaps = [
        first - second
        for token in told.observation.tokens[:1]
        for first, second in itertools.pairwise(_figures(token).values())
        if first - second > ROUNDING_NATS
    ]
    return min(gaps, default=None)
