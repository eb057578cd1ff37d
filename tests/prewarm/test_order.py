"""The schedule, against a simulated cache whose requests overlap."""

from __future__ import annotations

import random

import pytest

from kvrelease.prewarm.order import Schedule
from kvrelease.prewarm.plan import make_plan
from kvrelease.workload.prefix_tree import build_prefix_tree
from tests.prewarm.block_cache import OverlappingCache
from tests.prewarm.test_plan import BLOCK, DESKS, TREE, cases, random_prompts

PLENTY = 10_000


def run(
    schedule: Schedule,
    tokens: dict[str, tuple[int, ...]],
    cache: OverlappingCache,
    *,
    at_once: int,
    source: random.Random,
) -> list[str]:
    """Sends everything, answering in random order; returns the ids as they were started."""
    started: list[str] = []
    flying: list[str] = []
    while not schedule.is_over:
        while len(flying) < at_once and (name := schedule.start()) is not None:
            cache.begin(name, tokens[name])
            started.append(name)
            flying.append(name)
        name = flying.pop(source.randrange(len(flying)))
        cache.end(name)
        schedule.finish(name)
    return started


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_every_block_is_computed_once_at_any_concurrency(at_once: int) -> None:
    source = random.Random(at_once)
    for tokens, tree, _weights, plan in cases(100):
        cache = OverlappingCache(blocks=PLENTY, block_tokens=BLOCK)
        started = run(Schedule(tree, plan.order), tokens, cache, at_once=at_once, source=source)
        assert sorted(started) == sorted(plan.order)
        assert cache.computed_tokens == plan.lower_bound_tokens, (tokens, started)


@pytest.mark.parametrize("at_once", [1, 3])
def test_any_set_of_prompts_costs_its_lower_bound_when_shorter_ones_come_first(at_once: int) -> None:
    source = random.Random(at_once)
    for tokens, tree, _weights, _plan in cases(100):
        everything = sorted(tokens, key=lambda name: (len(tokens[name]), name))
        cache = OverlappingCache(blocks=PLENTY, block_tokens=BLOCK)
        run(Schedule(tree, everything), tokens, cache, at_once=at_once, source=source)
        assert cache.computed_tokens == tree.lower_bound_tokens(everything)


def test_of_those_that_may_start_the_most_valuable_does() -> None:
    for _tokens, tree, _weights, plan in cases(100):
        schedule = Schedule(tree, plan.order)
        source = random.Random(5)
        left = list(plan.order)
        flying: list[str] = []
        computed: set[int] = set()
        while not schedule.is_over:
            name = schedule.start() if len(flying) < 3 else None
            if name is None:
                done = flying.pop(source.randrange(len(flying)))
                computed |= {segment.index for segment in tree.path(done)}
                schedule.finish(done)
                continue
            busy = {segment.index for other in flying for segment in tree.path(other)} - computed
            may = [one for one in left if not busy & {segment.index for segment in tree.path(one)}]
            assert name == may[0]
            left.remove(name)
            flying.append(name)
        assert not left


def test_what_an_earlier_run_computed_is_not_sent_and_holds_nobody_up() -> None:
    plan = make_plan(TREE, weights=dict.fromkeys(DESKS, 1.0), capacity_tokens=None)
    schedule = Schedule(TREE, plan.order, done=frozenset(("heavy",)))
    assert {schedule.start(), schedule.start()} == {"light", "other"}
    bound = TREE.lower_bound_tokens
    assert schedule.cost("light") == bound(("heavy", "light")) - bound(("heavy",)) < bound(("light",))
    assert schedule.start() is None


def test_a_prompt_that_failed_leaves_its_blocks_to_the_next() -> None:
    schedule = Schedule(TREE, ("heavy", "light"))
    assert (schedule.start(), schedule.start()) == ("heavy", None)
    schedule.give_up("heavy")
    assert (schedule.start(), schedule.left, schedule.is_over) == ("light", 0, False)
    schedule.finish("light")
    assert schedule.is_over


def test_prompts_whose_requests_never_overlap_wait_for_nobody() -> None:
    tokens = {f"p{number}": tuple(range(number * 100, number * 100 + 9)) for number in range(50)}
    schedule = Schedule(build_prefix_tree(tokens, block_tokens=BLOCK), tuple(tokens))
    assert [schedule.start() for _ in range(50)] == list(tokens)


def test_a_long_chain_of_prompts_is_scheduled_in_a_moment() -> None:
    tokens = {f"p{number}": tuple(range(number * BLOCK + 1)) for number in range(1, 400)}
    schedule = Schedule(build_prefix_tree(tokens, block_tokens=BLOCK), tuple(tokens))
    sent = []
    while (name := schedule.start()) is not None:
        sent.append(name)
        schedule.finish(name)
    assert len(sent) == 399


def test_random_prompts_are_not_all_alike() -> None:
    """Else the properties above would hold for the wrong reason."""
    source = random.Random(7)
    sets = [random_prompts(source) for _ in range(300)]
    assert any(len(set(one.values())) < len(one) for one in sets)
    assert any(len(tokens) % BLOCK == 0 and len(tokens) > BLOCK for one in sets for tokens in one.values())
