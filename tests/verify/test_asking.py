"""Which suspects are asked again, in which order, and when that ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvrelease.binding.observe import Leg
from kvrelease.verify.asking import Ask, LegKind, repeats_to_ask
from kvrelease.verify.evidence import ProbeEvidence
from kvrelease.verify.noise import noise_floor
from kvrelease.verify.repeats import LEGS_THAT_CLEAR, REPEATS
from tests.verify.builders import clean_probes, leg, probe


def asked(probes: Sequence[ProbeEvidence], answer: Callable[[Ask], Leg]) -> list[Ask]:
    """Everything that is asked where each repeat answers so."""
    wanted = repeats_to_ask(probes, floor=noise_floor(probes))
    found: list[Ask] = []
    try:
        ask = next(wanted)
        while True:
            found.append(ask)
            ask = wanted.send(answer(ask))
    except StopIteration:
        return found


def still_stale(ask: Ask) -> Leg:
    return leg(0.6) if ask.kind is LegKind.PRODUCTION else leg()


def suspect(name: str, shift: float, *, prefix: str) -> ProbeEvidence:
    return probe(name, production=[leg(shift)], prefix=prefix)


def test_nobody_is_asked_again_where_nobody_is_suspect() -> None:
    assert asked(clean_probes(), still_stale) == []


def test_both_kinds_take_turns_for_as_many_legs_as_the_test_needs() -> None:
    found = asked([suspect("s", 0.6, prefix="desk"), *clean_probes()], still_stale)
    turns = [{found[at].kind, found[at + 1].kind} for at in range(0, len(found), 2)]
    assert turns == [set(LegKind)] * REPEATS


def test_the_worst_of_each_prefix_comes_first_and_no_second_one_after_a_proof() -> None:
    probes = [
        suspect("mild", 0.5, prefix="one"),
        suspect("worst", 0.9, prefix="one"),
        suspect("other", 0.6, prefix="two"),
        *clean_probes(),
    ]
    assert list(dict.fromkeys(ask.probe for ask in asked(probes, still_stale))) == ["worst", "other"]


def test_a_suspect_whose_difference_is_gone_is_let_go_half_way() -> None:
    found = asked([suspect("s", 0.6, prefix="desk"), *clean_probes()], lambda _: leg())
    assert len(found) == 2 * LEGS_THAT_CLEAR
