"""How far apart are two observations of the same prompt?

The first generated token's top-k log-probabilities are the sharp instrument; decoded tokens come second, text last.
Definitions and measured sizes: docs/statistics.md.
"""

from __future__ import annotations

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
        first_divergence: index of the first generated token that differs; None when all compared tokens agree.
    """

    nats: float | None
    largest_nats: float | None
    first_divergence: int | None


def distance(left: Observation, right: Observation) -> Distance:
    """The distance of two observations.

    A token that only one list holds is compared with the other list's smallest value: a lower bound of the difference.
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
        if not one.top or not other.top:
            return None
        is_forced = (
            one.token == other.token
            and one.top[0].logprob > FORCED_LOGPROB_NATS
            and other.top[0].logprob > FORCED_LOGPROB_NATS
        )
        if not is_forced:
            return index
    return None if not left or not right else 0


def _deltas(left: GeneratedToken, right: GeneratedToken) -> tuple[float, ...]:
    ours = {entry.token: entry.logprob for entry in left.top}
    theirs = {entry.token: entry.logprob for entry in right.top}
    lowest_of_ours, lowest_of_theirs = min(ours.values()), min(theirs.values())
    return tuple(abs(ours.get(token, lowest_of_ours) - theirs.get(token, lowest_of_theirs)) for token in ours | theirs)


def _first_divergence(left: Observation, right: Observation) -> int | None:
    if left.tokens and right.tokens:
        pairs = zip(left.tokens, right.tokens, strict=False)
        for index, (one, other) in enumerate(pairs):
            if one.token != other.token:
                return index
        if len(left.tokens) != len(right.tokens):
            return min(len(left.tokens), len(right.tokens))
        return None
    return None if left.text == right.text else 0


def logit_quantum(observations: tuple[Observation, ...]) -> float | None:
    """The step of the server's logits in nats, read from the gaps inside top-k lists; None without such lists.

    Differences of log-probabilities of one position are differences of logits, so in bf16 they are multiples of the
    logits' spacing (0.125 for logits from 16 to 32); in float32 the smallest gap is near zero, as it should be.
    """
    gaps = [
        first.logprob - second.logprob
        for observation in observations
        for token in observation.tokens[:1]
        for first, second in zip(token.top, token.top[1:], strict=False)
        if first.logprob - second.logprob > ROUNDING_NATS
    ]
    return min(gaps, default=None)
