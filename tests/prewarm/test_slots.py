"""Layouts on slots, alone and run through the simulated server."""

from __future__ import annotations

import random
from collections.abc import Mapping

from kvrelease.prewarm.plan import plan_for_slots
from kvrelease.prewarm.slots import Layout, lay_out
from kvrelease.simulator.slots import SlotCache
from kvrelease.workload.prefix_tree import build_prefix_tree

SHARED = tuple(range(100, 140))
TOKENS = {
    "heavy": (*SHARED, *range(8)),
    "light": (*SHARED, *range(20, 28)),
    "other": tuple(range(50, 66)),
}
WEIGHTS = {"heavy": 5.0, "light": 1.0, "other": 2.0}
CONTROL = ("nobody's",)


def laid_out(tokens: Mapping[str, tuple[int, ...]], *, slots: int, weights: Mapping[str, float] = WEIGHTS) -> Layout:
    return lay_out(build_prefix_tree(tokens, block_tokens=1), tokens=tokens, weights=weights, slots=slots)


def warnings(tokens: Mapping[str, tuple[int, ...]], *, slots: int) -> tuple[str, ...]:
    tree = build_prefix_tree(tokens, block_tokens=1)
    layout = lay_out(tree, tokens=tokens, weights=WEIGHTS, slots=slots)
    return plan_for_slots(tree, layout=layout, slots=slots, capacity_tokens=None).warnings


def test_on_one_slot_the_most_valuable_prompt_is_sent_last_and_stays() -> None:
    layout = laid_out(TOKENS, slots=1)
    assert layout.order[-1] == "heavy"
    assert (layout.residents, layout.slot_of, layout.control_slot) == (("heavy",), {"heavy": 0}, 0)


def test_where_slots_are_few_each_holds_another_prefix_before_two_hold_the_same() -> None:
    layout = laid_out(TOKENS, slots=2)
    assert layout.order == ("light", "other", "heavy")
    assert layout.residents == ("heavy", "other")
    (warning,) = warnings(TOKENS, slots=2)
    assert "of 3 prompts 2 stay" in warning


def test_prompts_that_share_a_start_get_a_slot_each_where_there_are_enough() -> None:
    layout = laid_out(TOKENS, slots=3)
    assert sorted(layout.slot_of.values()) == [0, 1, 2]
    assert warnings(TOKENS, slots=3) == ()


def test_prompts_are_alike_by_a_tenth_of_the_shorter_one() -> None:
    """A server that nobody names slots to puts a prompt where more than a tenth of it lies already."""
    start = tuple(range(4))
    for rest, residents in ((30, ("heavy",)), (60, ("heavy", "light"))):
        tokens = {"heavy": (*start, *range(100, 400)), "light": (*start, *range(500, 500 + rest - 4))}
        tree = build_prefix_tree(tokens, block_tokens=1)
        layout = lay_out(tree, tokens=tokens, weights=WEIGHTS, slots=2, by_number=False)
        assert layout.residents == residents, rest


def test_slots_without_a_prompt_are_told() -> None:
    (warning,) = warnings(TOKENS, slots=8)
    assert "5 of 8 slots stay empty" in warning


def test_the_control_takes_no_slot_that_the_first_prompt_has() -> None:
    layout = laid_out(TOKENS, slots=3)
    assert layout.slot_of[layout.order[0]] != layout.control_slot


def test_sent_in_order_every_slot_keeps_its_prompt_at_the_cost_that_was_told() -> None:
    source = random.Random(11)
    for _ in range(60):
        starts = [tuple(source.choices(range(50), k=source.randint(5, 60))) for _ in range(source.randint(1, 4))]
        tokens = {
            f"p{number}": (*source.choice(starts), 1000 + number, *source.choices(range(50), k=source.randint(0, 30)))
            for number in range(source.randint(1, 12))
        }
        slots = source.randint(1, 6)
        layout = laid_out(tokens, slots=slots, weights={name: source.choice((0.5, 1.0, 3.0)) for name in tokens})
        server = SlotCache(slots)
        for number, name in enumerate(layout.order):
            kept = server.request(tokens[name], hit_limit=len(tokens[name]) - 1, slot=layout.slot_of.get(name))
            assert len(tokens[name]) - kept == layout.cost_tokens[name]
            if number == 0:
                server.request(CONTROL, slot=layout.control_slot)
        if slots > 1 or len(layout.order) > 1:
            for name, slot in layout.slot_of.items():
                assert server.request(tokens[name], slot=slot) == len(tokens[name])
            # And production's own requests, which name no slot, find them.
            assert all(server.request(tokens[name]) == len(tokens[name]) for name in layout.residents)
        assert len(layout.residents) == min(slots, len(layout.order))
