"""A suspect, asked again: is the difference there in fresh legs, and is it more than noise?

Only legs that were sent after a probe became a suspect are tested, so that what made it one is not counted twice; but
where a reference leg heals the engine, and production's legs have to be sent before anybody is a suspect. How much one
run may ask is bounded: so many suspects, each with its share of the error rate (Bonferroni), and a suspect whose
difference does not show again is let go half-way.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from kvrelease.engines.base import Observation
from kvrelease.verify.distance import distance
from kvrelease.verify.evidence import ProbeEvidence, Repeats
from kvrelease.verify.permutation import exchange_p

# Fresh legs of each kind. Eight against eight can be labelled in 12,870 ways: the least p-value is 1/6435.
REPEATS = 8

# A suspect whose difference showed in none of so many fresh production legs is let go.
LEGS_THAT_CLEAR = 4

# Suspects that are asked again in one run, on one replica.
MAX_REPEATED = 6

# The probability that one replica that answers cleanly fails by a test of repeats. Over `MAX_REPEATED` suspects each
# gets 1/6000, which 1/6435 is below.
ALPHA = 0.001

# Fresh legs differ, as far as one suspect alone is asked: not yet a proof.
REPRODUCED_P = 0.05


class RepeatsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the fresh legs of a suspect showed.

    Attributes:
        legs: fresh production legs.
        showed: of these, farther from every clean leg than the threshold, or another text.
        by_text: some legs have no log-probabilities, so that texts were compared throughout.
        is_measured: figures tell by how much any two legs of different kinds differ, or that it is more than noise.
        p: of the exact permutation test; None where a kind of leg was sent fewer than twice.
        excess: mean distance of production legs to clean ones above that among clean ones, nats (by text, 1 for another
            one).
        largest_nats: the median of the largest difference of one candidate; None by text.
    """

    legs: int
    showed: int
    by_text: bool
    is_measured: bool
    p: float | None
    excess: float
    largest_nats: float | None

    @property
    def is_reproduced(self) -> bool:
        """Fresh legs differ from clean ones."""
        return self.p is not None and self.p <= REPRODUCED_P

    @property
    def is_proof(self) -> bool:
        """They differ by more than chance explains, whatever else was tested in the run."""
        return self.p is not None and self.p <= ALPHA / MAX_REPEATED


def gap(left: Observation, right: Observation) -> float:
    """The distance in nats; where there are no log-probabilities 1 for other texts and 0 for equal ones."""
    found = distance(left, right)
    if found.nats is not None:
        return found.nats
    return 0.0 if found.first_divergence is None else 1.0


def repeats_result(repeats: Repeats, *, threshold: float) -> RepeatsResult:
    """What the fresh legs show.

    Args:
        repeats: at least one leg of each kind.
        threshold: nats above which noise does not explain a distance.
    """
    production = [leg.observation for leg in repeats.production]
    clean = [leg.observation for leg in repeats.clean]
    answers = [*production, *clean]
    pairs = [distance(one, other) for one in production for other in clean]
    by_text = any(pair.nats is None for pair in pairs)
    distances = _distances(answers, apart=_text_gap if by_text else gap)
    first = len(production)
    across = [distances[one][other] for one in range(first) for other in range(first, len(answers))]
    among = [distances[one][other] for one in range(first, len(answers)) for other in range(one + 1, len(answers))]
    largest = [
        nats
        for one, other in zip(production, clean, strict=False)
        if (nats := distance(one, other).largest_nats) is not None
    ]
    return RepeatsResult(
        legs=first,
        showed=_showed(repeats, threshold=threshold),
        by_text=by_text,
        is_measured=all(pair.nats is not None and (pair.shared or pair.nats > threshold) for pair in pairs),
        p=exchange_p(distances, production=first) if first >= 2 and len(clean) >= 2 else None,
        excess=statistics.fmean(across) - (statistics.fmean(among) if among else 0.0),
        largest_nats=statistics.median(largest) if largest and not by_text else None,
    )


def _text_gap(left: Observation, right: Observation) -> float:
    return 0.0 if distance(left, right).first_divergence is None else 1.0


def _showed(repeats: Repeats, *, threshold: float) -> int:
    """Fresh production legs that differ from every clean one by more than the threshold."""
    clean = [leg.observation for leg in repeats.clean]
    return sum(all(distance(leg.observation, twin).is_above(threshold) for twin in clean) for leg in repeats.production)


def _distances(
    answers: Sequence[Observation], *, apart: Callable[[Observation, Observation], float]
) -> list[list[float]]:
    matrix = [[0.0] * len(answers) for _ in answers]
    for one, left in enumerate(answers):
        for other in range(one):
            matrix[one][other] = matrix[other][one] = apart(left, answers[other])
    return matrix


def is_let_go(repeats: Repeats, *, threshold: float) -> bool:
    """Whether the difference showed in none of enough fresh production legs."""
    if len(repeats.production) < LEGS_THAT_CLEAR or not repeats.clean:
        return False
    return _showed(repeats, threshold=threshold) == 0


def in_turn(suspects: Sequence[ProbeEvidence]) -> list[ProbeEvidence]:
    """Suspects in the order of asking again: the worst of each shared prefix, then the second of each, and so on.

    Args:
        suspects: worst first.
    """
    places: dict[str, int] = {}
    ranked = []
    for order, probe in enumerate(suspects):
        place = places.get(probe.prefix, 0)
        places[probe.prefix] = place + 1
        ranked.append((place, order, probe))
    return [probe for _, _, probe in sorted(ranked, key=lambda one: one[:2])][:MAX_REPEATED]
