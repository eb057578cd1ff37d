"""Which suspect is asked again next, and whose entries are written again: plans, apart from how they are sent.

Generators: each yields what to ask, is sent what came back, and ends when nothing more is to be asked. The gate drives
them with an engine, or with what stands for one; simulations drive them with answers that are drawn.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TypeVar

import msgspec

from kvrelease.binding.observe import Leg
from kvrelease.verify.evidence import ProbeEvidence, Repeats
from kvrelease.verify.noise import NoiseFloor
from kvrelease.verify.peers import PEERS, can_prove, representatives, stands_apart, stays_apart
from kvrelease.verify.repeats import MAX_REPEATED, REPEATS, in_turn, is_let_go
from kvrelease.verify.suspicion import is_beyond_writing, is_suspect, suspicion, threshold_nats
from kvrelease.verify.weighing import is_gone, is_proven, needs_ranks

Wanted = TypeVar("Wanted")
Answer = TypeVar("Answer")

# Peers that are written at once, in turns: what a batch does to an entry depends on how large it is. The
# largest stand for users' load: sixteen prompts are more than most engines compute in one step.
COMPANIES = (16, 12, 2, 8, 3, 4, 6)


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


def repeats_at_once(
    probe: ProbeEvidence, *, among: Sequence[ProbeEvidence], floor: Callable[[], NoiseFloor]
) -> Generator[Ask, Leg, None]:
    """Asks a suspect again before anything else is sent, where it differs by more than one entry's writing makes.

    What it hit may be evicted by the time that all probes have their reference legs: other clients write meanwhile.
    A smaller difference waits, because repeats alone cannot prove it.

    Args:
        probe: with its screening and reference legs.
        among: all probes of the run so far, with the repeats of those that were asked before.
        floor: of the run so far; computed for a large difference alone, because it takes all legs.
    """
    if not is_beyond_writing(probe):
        return
    so_far = floor()
    if is_suspect(probe, so_far) and _may_ask(probe, _asked_of(among), floor=so_far):
        yield from _asked_again(probe, floor=so_far)


def repeats_to_ask(probes: Sequence[ProbeEvidence], *, floor: NoiseFloor) -> Generator[Ask, Leg, None]:
    """Asks suspects again: the worst of each shared prefix first, and no second one once a failure is proven.

    Args:
        probes: with their screening and reference legs, and the repeats of those that were asked at once.
        floor: of the same run.
    """
    asked = _asked_of(probes)
    waiting = [one for one in suspects_of(probes, floor=floor) if not one.repeats.production]
    for suspect in in_turn(waiting):
        if _may_ask(suspect, asked, floor=floor):
            repeats = yield from _asked_again(suspect, floor=floor)
            asked.append(msgspec.structs.replace(suspect, repeats=repeats))


def _asked_of(probes: Sequence[ProbeEvidence]) -> list[ProbeEvidence]:
    return [one for one in probes if one.repeats.production]


def _may_ask(suspect: ProbeEvidence, asked: Sequence[ProbeEvidence], *, floor: NoiseFloor) -> bool:
    """Whether one more suspect fits the error rate and, once a failure is proven, would speak for another prefix."""
    if len(asked) >= MAX_REPEATED:
        return False
    return all(one.prefix != suspect.prefix for one in asked) or not any(is_proven(one, floor) for one in asked)


def _asked_again(suspect: ProbeEvidence, *, floor: NoiseFloor) -> Generator[Ask, Leg, Repeats]:
    """Asks for fresh legs of both kinds, in turns; for half as many where the difference is gone.

    Args:
        suspect: with its screening and reference legs.
        floor: of the same run.
    """
    order = random.Random(suspect.id)  # noqa: S311 - so that a run can be followed; nothing secret hangs on it
    legs: dict[LegKind, tuple[Leg, ...]] = dict.fromkeys(LegKind, ())
    repeats = Repeats()
    for _ in range(REPEATS):
        for kind in order.sample(tuple(LegKind), 2):
            legs[kind] += ((yield Ask(probe=suspect.id, kind=kind)),)
        repeats = Repeats(production=legs[LegKind.PRODUCTION], clean=legs[LegKind.CLEAN])
        shows_no_more = is_let_go(repeats, threshold=threshold_nats(floor))
        if shows_no_more and is_gone(msgspec.structs.replace(suspect, repeats=repeats), floor):
            break
    return repeats


def peers_to_write(
    probes: Sequence[ProbeEvidence], *, floor: NoiseFloor, capacity_tokens: int | None = None
) -> Generator[tuple[str, ...], Sequence[Leg], None]:
    """Probes whose peers are to be written at once, each in a key space of its own, and then read one by one.

    Nothing where a failure is proven, where nothing small reproduces, and where the cache has no room for so many
    prefixes that they could prove anything. It ends early where so few are still apart that they prove nothing.

    Args:
        probes: with their repeats, in the order drawn.
        floor: of the same run.
        capacity_tokens: of the engine's cache; None where it is not told.
    """
    units = representatives(probes, capacity_tokens=capacity_tokens)
    if not can_prove(len(units), of=len(units)) or not needs_ranks(probes, floor):
        return
    wanted = PEERS[len(units)]
    apart = {one.id: one for one in units if stands_apart(one, threshold=threshold_nats(floor))}
    written = dict.fromkeys(apart, 0)
    for size in itertools.cycle(COMPANIES):
        if not can_prove(len(apart), of=len(units)) or all(written[name] >= wanted for name in apart):
            return
        company = _company({name: written[name] for name in apart}, size=size)
        for name, leg in zip(company, (yield company), strict=True):
            written[name] += 1
            if name in apart and not stays_apart(apart[name], leg):
                del apart[name]


def _company(peers: dict[str, int], *, size: int) -> tuple[str, ...]:
    """So many probes, again and again the one that has fewest peers."""
    chosen = []
    for _ in range(size):
        fewest = min(peers, key=peers.__getitem__)
        peers[fewest] += 1
        chosen.append(fewest)
    return tuple(chosen)


async def ask_all(wanted: Generator[Wanted, Answer, None], send: Callable[[Wanted], Awaitable[Answer]]) -> None:
    """Sends everything that a plan asks for."""
    ask = next(wanted, None)
    while ask is not None:
        answer = await send(ask)
        try:
            ask = wanted.send(answer)
        except StopIteration:
            return
