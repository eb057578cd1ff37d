"""The noise floor: how far apart clean observations of the same prompts are, in this run, on this engine.

An answer is noisy where it is read (other requests in the batch) and where its KV was written (other requests in that
batch): a production entry was written in company, long ago, and answers with the same small difference ever after. So
the floor needs entries that were written more than once, in company, not only one entry read more than once.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Iterable, Sequence

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Observation
from kvrelease.verify.distance import candidates_told, distance, logit_quantum
from kvrelease.verify.evidence import ProbeEvidence, untainted


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The measured distance between clean runs.

    Attributes:
        pairs: how many pairs were compared.
        p50: median distance in nats; None without pairs.
        max: largest distance in nats; None without pairs.
        quantum: step of the server's logits in nats; None when not known.
        whole: of the pairs, those of a hit and its miss that found nothing. A miss that found the system prompt of an
            earlier one shares most of its entry with it, and shows little of what a hit and a miss differ by.
        apart: how many times two entries of one prompt were compared, each written by itself: only these have the
            noise of writing, and each has it once, however often the two were read.
        candidates: that are told of a token, in the median, by the server and a second one that gives reference legs;
            None where none are.
    """

    pairs: int
    p50: float | None
    max: float | None
    quantum: float | None
    apart: int = 0
    whole: int = 0
    candidates: int | None = None


def noise_floor(
    probes: Collection[ProbeEvidence],
    *,
    nonces: Iterable[tuple[Leg, Leg]] = (),
    others: Iterable[Sequence[tuple[Observation, Observation]]] = (),
) -> NoiseFloor:
    """The floor from clean legs: of each probe cold against hit, hit against hit, and entry against entry.

    Args:
        probes: with their reference legs; nonce prompts' count likewise.
        nonces: prompts that nobody else can have cached, a miss and a hit of each; a pair that was not, is left out.
        others: of each prompt that two engines answered, pairs of their answers; all read the same two entries.
    """
    references = [untainted(probe.reference_legs) for probe in probes]
    again = [untainted(probe.rewritten) for probe in probes]
    missed_then_hit = [pair for pair in nonces if pair[0].hits_mostly is False and pair[1].hits_mostly]
    read_again = [pair for legs in (*references, *missed_then_hit) for pair in itertools.pairwise(legs)]
    # The reference's entry against each that was written once more.
    rewritten = [(legs[-1], leg) for legs, others in zip(references, again, strict=True) if legs for leg in others]
    legs = [leg for group in (*references, *again) for leg in group]
    legs += [leg for pair in missed_then_hit for leg in pair]
    same = _gaps((one.observation, other.observation) for one, other in read_again)
    whole = [pair for legs in references for pair in itertools.pairwise(legs) if _is_whole(*pair)]
    apart = _gaps((one.observation, other.observation) for one, other in rewritten)
    elsewhere = [gaps for pairs in others if (gaps := _gaps(pairs))]
    answers = tuple(leg.observation for leg in legs)
    users = [leg.observation for probe in probes for leg in probe.production]
    distances = [*same, *apart, *itertools.chain.from_iterable(elsewhere)]
    return NoiseFloor(
        pairs=len(distances),
        p50=statistics.median(distances) if distances else None,
        max=max(distances) if distances else None,
        whole=len(_gaps((one.observation, other.observation) for one, other in (*whole, *missed_then_hit))),
        quantum=logit_quantum(answers),
        apart=len(apart) + len(elsewhere),
        candidates=min((told for told in map(candidates_told, (answers, users)) if told is not None), default=None),
    )


def _is_whole(miss: Leg, hit: Leg) -> bool:
    return miss.cached_tokens == 0 and bool(hit.cached_tokens)


def _gaps(pairs: Iterable[tuple[Observation, Observation]]) -> list[float]:
    """Distances in nats, where there are any."""
    return [nats for one, other in pairs if (nats := distance(one, other).nats) is not None]
