"""Which suspect is asked again next, and how: the plan of the repeats, apart from how they are sent.

A generator: it yields what to ask, is sent the leg that came back, and ends when nothing more is to be asked. The gate
drives it with an engine (`legs`); whoever measures how often the gate errs drives it with recorded observations.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Generator, Sequence

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.verify.consistency import is_proven, is_suspect, suspicion, threshold_nats
from kvrelease.verify.evidence import ProbeEvidence, Repeats
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.repeats import REPEATS, in_turn, is_let_go


class LegKind(enum.Enum):
    """What a repeat is asked as."""

    PRODUCTION = "production"
    CLEAN = "clean"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat to be sent."""

    probe: str
    kind: LegKind


def suspects_of(probes: Sequence[ProbeEvidence], *, floor: NoiseFloor) -> list[ProbeEvidence]:
    """The suspects among probes, worst first."""
    return sorted((probe for probe in probes if is_suspect(probe, floor)), key=suspicion, reverse=True)


def repeats_to_ask(probes: Sequence[ProbeEvidence], *, floor: NoiseFloor) -> Generator[Ask, Leg, None]:
    """Asks suspects again: the worst of each shared prefix first, and no second one once a failure is proven.

    Args:
        probes: with their screening and reference legs.
        floor: of the same run.
    """
    suspects = suspects_of(probes, floor=floor)
    asked: set[str] = set()
    is_over = False
    for suspect in in_turn(suspects):
        if is_over and suspect.prefix in asked:
            return
        asked.add(suspect.prefix)
        repeats = yield from _asked_again(suspect.id, threshold=threshold_nats(floor))
        is_over = is_over or is_proven(msgspec.structs.replace(suspect, repeats=repeats), floor)


def _asked_again(probe: str, *, threshold: float) -> Generator[Ask, Leg, Repeats]:
    """Fresh legs of both kinds, in turns; half as many where the difference is gone."""
    order = random.Random(probe)  # noqa: S311 - so that a run can be followed; nothing secret hangs on it
    legs: dict[LegKind, tuple[Leg, ...]] = dict.fromkeys(LegKind, ())
    repeats = Repeats()
    for _ in range(REPEATS):
        for kind in order.sample(tuple(LegKind), 2):
            legs[kind] += ((yield Ask(probe=probe, kind=kind)),)
        repeats = Repeats(production=legs[LegKind.PRODUCTION], clean=legs[LegKind.CLEAN])
        if is_let_go(repeats, threshold=threshold):
            break
    return repeats
