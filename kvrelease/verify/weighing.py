"""How strong the evidence of one probe is: what its screening legs showed, and what it showed when it was asked again.

Pure. A difference that reproduces is a proof on its own only where it is larger than what one entry's writing and one
step of the server's logits make; smaller ones are ranked among entries that are written again (`peers`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.verify.calibration import FOREIGN_BOUND_NATS
from kvrelease.verify.clearing import NOISE_MARGIN, largest_among, legs_of_the_same
from kvrelease.verify.distance import ENOUGH_CANDIDATES, Distance
from kvrelease.verify.evidence import ProbeEvidence, untainted
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.repeats import LEGS_THAT_CLEAR, RepeatsResult, in_turn, repeats_result
from kvrelease.verify.suspicion import WRITTEN_APART_NATS, is_suspect, leg_distances, suspicion, threshold_nats

# More than one step of bf16 logits, less than two: one step on one probe is no proof.
MORE_THAN_ONE_QUANTUM = 1.5

# Where no list has two candidates to read it from: that of bf16 logits from 16 to 32, as vLLM on a CPU has them.
UNKNOWN_QUANTUM_NATS = 0.125

# By how much larger it is over one to five candidates: of 18 pairs of entries 0.24 nats at most, over twenty 0.18.
FEW_ARE_NOISIER = 1.4


class Strength(enum.Enum):
    """How strong the evidence of one probe is."""

    UNJUDGED = "no clean reference leg to compare with"
    BLUNT = "equal texts, which prove nothing: the server gives no log-probabilities"
    NONE = "within the noise floor"
    CLEARED = "above the noise floor once, and in none of the legs that were asked again"
    GONE = "by more than noise was seen to make, and only once: another cache answered, or entries that are gone by now"
    ELSEWHERE = "once, and what was asked again did not hit what that request had hit, so it says nothing of it"
    UNREPEATED = "suspect, not repeated"
    FLEETING = "above the noise floor in some legs and not in others"
    GROUNDLESS = "reproduced, but no clean pair tells how large noise is here"
    UNLIKE = "reproduced, but production hits where every clean leg missed, and hits may differ from misses by as much"
    REPRODUCED = "reproduced, and too small to be told from how an entry was written"
    TEXT = "another text in every fresh leg, and no log-probabilities that tell by how much"
    UNTESTED = "differs when asked again too, and was not tested: so many others differ more"
    PROVEN = "reproduced, beyond noise"


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """One probe's evidence.

    Attributes:
        strength: of it.
        distances: [production legs] against their clean twins.
        again: what its repeats showed; None where it was not asked again.
    """

    strength: Strength
    distances: tuple[Distance, ...] = ()
    again: RepeatsResult | None = None


def weighed(probe: ProbeEvidence, floor: NoiseFloor) -> Weighed:
    """The evidence of one probe, by itself."""
    found = leg_distances(probe)
    if not found:
        return Weighed(strength=Strength.UNJUDGED)
    threshold = threshold_nats(floor)
    if not any(one.is_above(threshold) for one in found):
        strength = Strength.BLUNT if any(one.nats is None for one in found) else Strength.NONE
        return Weighed(strength=strength, distances=found)
    repeats = msgspec.structs.replace(probe.repeats, clean=untainted(probe.repeats.clean))
    if not repeats.production or not repeats.clean:
        return Weighed(strength=Strength.UNREPEATED, distances=found)
    again = repeats_result(repeats, threshold=threshold)
    strength = _strength_of_repeats(again, floor)
    if strength is Strength.CLEARED:
        strength = _whether_cleared(probe, found, threshold=threshold)
    if strength in (Strength.PROVEN, Strength.REPRODUCED) and _is_unlike(probe) and again.excess < FOREIGN_BOUND_NATS:
        strength = Strength.UNLIKE
    return Weighed(strength=strength, distances=found, again=again)


def _whether_cleared(probe: ProbeEvidence, found: Sequence[Distance], *, threshold: float) -> Strength:
    """Whether fresh legs that show no difference clear a suspect, or met something else than what made it one."""
    pairs = zip(probe.production, found, strict=True)
    above = [(leg, one) for leg, one in pairs if one.is_above(threshold)]
    most = max(NOISE_MARGIN * threshold, largest_among(probe.repeats.clean))
    # What is told by its text, or by candidates of which no two are the same, has no size to compare with noise.
    if not all(one.nats is not None and one.shared and one.nats <= most for _, one in above):
        return Strength.GONE
    of_the_same = legs_of_the_same(probe.repeats.production, [leg for leg, _ in above])
    return Strength.CLEARED if of_the_same >= LEGS_THAT_CLEAR else Strength.ELSEWHERE


def _is_unlike(probe: ProbeEvidence) -> bool:
    """Whether hits of production stand against clean legs that should have hit, and missed.

    Where the isolation has no clean hits, the floor has hits against misses of unique prompts instead.
    """
    hits = any(leg.cached_tokens for leg in probe.repeats.production)
    return hits and bool(probe.clean) and all(leg.cached_tokens == 0 for leg in probe.repeats.clean)


def _strength_of_repeats(again: RepeatsResult, floor: NoiseFloor) -> Strength:
    if again.showed == 0:
        enough = Strength.BLUNT if again.by_text else Strength.CLEARED
        return enough if again.legs >= LEGS_THAT_CLEAR else Strength.UNREPEATED
    if not again.is_measured:
        return Strength.TEXT if again.showed == again.legs else Strength.FLEETING
    if again.excess <= threshold_nats(floor) or not again.is_reproduced:
        return Strength.FLEETING
    if not floor.pairs:
        return Strength.GROUNDLESS
    return Strength.PROVEN if again.is_proof and _is_large(again, floor) else Strength.REPRODUCED


def _is_large(again: RepeatsResult, floor: NoiseFloor) -> bool:
    """Whether a difference is larger than what one entry, written in other company, or one logit step can make."""
    step = UNKNOWN_QUANTUM_NATS if floor.quantum is None else floor.quantum
    if again.largest_nats is None or again.largest_nats <= MORE_THAN_ONE_QUANTUM * step:
        return False
    is_few = floor.candidates is not None and floor.candidates < ENOUGH_CANDIDATES
    return again.excess > WRITTEN_APART_NATS * (FEW_ARE_NOISIER if is_few else 1.0)


def is_proven(probe: ProbeEvidence, floor: NoiseFloor) -> bool:
    """Whether a suspect's repeats prove it stale, whatever the other probes show."""
    return weighed(probe, floor).strength is Strength.PROVEN


def is_gone(probe: ProbeEvidence, floor: NoiseFloor) -> bool:
    """Whether the difference shows in none of a suspect's fresh legs, and more of them would say no more."""
    return weighed(probe, floor).strength in (Strength.CLEARED, Strength.GONE, Strength.BLUNT)


def needs_ranks(probes: Sequence[ProbeEvidence], floor: NoiseFloor) -> bool:
    """Whether a difference reproduces that proves nothing on its own, and none is proven."""
    found = {weighed(probe, floor).strength for probe in probes if probe.repeats.production}
    return bool(found & FOR_RANKS) and Strength.PROVEN not in found


def within_the_error_rate(
    found: Mapping[str, Weighed], probes: Sequence[ProbeEvidence], *, floor: NoiseFloor
) -> dict[str, Weighed]:
    """The same, with so many suspects tested as the error rate is shared among: the worst by their screening legs.

    An engine that a reference leg heals has repeats of all. Letting one go is no test, and is not counted.
    """
    suspects = [probe for probe in probes if probe.repeats.production and probe.repeats.clean]
    suspects = [probe for probe in suspects if is_suspect(probe, floor)]
    tested = {probe.id for probe in in_turn(sorted(suspects, key=suspicion, reverse=True))}
    return {
        name: msgspec.structs.replace(one, strength=Strength.UNTESTED)
        if one.strength is Strength.PROVEN and name not in tested
        else one
        for name, one in found.items()
    }


# What ranks can make a proof of: a difference that is too small on its own, or that nobody measured.
FOR_RANKS = frozenset({Strength.REPRODUCED, Strength.TEXT})
