"""How far apart two observations of the same prompt are.

The first generated token's top-k log-probabilities are the sharp instrument; decoded tokens come second, text last.
Definitions and measured sizes: docs/statistics.md.
"""

from __future__ import annotations

import itertools
import math

import msgspec

from kvrelease.engines.base import GeneratedToken, Observation

# A first token that is all but certain (`<think>`, a harmony channel) carries nothing: its neighbours are noise.
FORCED_LOGPROB_NATS = -1e-3

# Gaps of top-k lists below this are rounding of the server's JSON, not a step of the logits.
ROUNDING_NATS = 1e-5


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """The distance of two observations of one prompt.

    Attributes:
        nats: mean absolute log-probability difference over the union of both top-k lists of the first token that is
            not forced, >= 0; None when one side has no such list.
        largest_nats: largest absolute difference in those lists; None likewise.
        first_divergence: index of the first generated token that differs; None when all compared tokens agree, or
            both texts do.
    """

    nats: float | None
    largest_nats: float | None
    first_divergence: int | None


def distance(left: Observation, right: Observation) -> Distance:
    """The distance of two observations.

    A token that only one list holds lies below the other list's end: it counts with the least by which the two can
    differ, which is zero where it would not have made the other list either.
    """
    first = _first_unforced(left.tokens, right.tokens)
    deltas = _deltas(left.tokens[first], right.tokens[first]) if first is not None else ()
    return Distance(
        nats=sum(deltas) / len(deltas) if deltas else None,
        largest_nats=max(deltas) if deltas else None,
        first_divergence=_first_divergence(left, right),
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


def _named(token: GeneratedToken) -> dict[tuple[str, int], float]:
    """Log-probabilities by spelling; candidates of one spelling (halves of a character, say) are told apart by rank."""
    named: dict[tuple[str, int], float] = {}
    for entry in token.top:
        if math.isfinite(entry.logprob):
            place = 0
            while (entry.token, place) in named:
                place += 1
            named[entry.token, place] = entry.logprob
    return named


def _deltas(left: GeneratedToken, right: GeneratedToken) -> tuple[float, ...]:
    ours, theirs = _named(left), _named(right)
    end_of_ours, end_of_theirs = min(ours.values()), min(theirs.values())
    return tuple(
        _delta(ours.get(name), theirs.get(name), end_of_ours=end_of_ours, end_of_theirs=end_of_theirs)
        for name in ours | theirs
    )


def _delta(ours: float | None, theirs: float | None, *, end_of_ours: float, end_of_theirs: float) -> float:
    """The difference of one candidate, where one side is missing the least that it can be."""
    if ours is None:
        assert theirs is not None
        return max(0.0, theirs - end_of_ours)
    if theirs is None:
        return max(0.0, ours - end_of_theirs)
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
    gaps = [gap for observation in observations if (gap := _finest_gap(observation)) is not None]
    return min(gaps, default=None)


def _finest_gap(observation: Observation) -> float | None:
    """The smallest gap inside the first token's top-k list that is not rounding."""
    gaps = [
        first - second
        for token in observation.tokens[:1]
        for first, second in itertools.pairwise(_named(token).values())
        if first - second > ROUNDING_NATS
    ]
    return min(gaps, default=None)
