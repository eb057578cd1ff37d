"""The plan, against random trees and against a simulated cache."""

from __future__ import annotations

import itertools
import random

from kvrelease.prewarm.plan import Plan, make_plan, plan_without_tokens
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree

BLOCK = 4


def random_prompts(source: random.Random) -> dict[str, tuple[int, ...]]:
    """Prompts over three symbols that branch, extend and repeat each other, whole blocks and crooked tails."""
    made: list[tuple[int, ...]] = []
    for _ in range(source.randint(1, 14)):
        stem = source.choice(made)[: source.randint(0, 24)] if made and source.random() < 0.8 else ()
        length = source.choice((0, 1, 3, 4, 5, 8, 9, 16, 17))
        made.append((*stem, *(source.randrange(3) for _ in range(length))) or (0,))
    return {f"p{number}": tokens for number, tokens in enumerate(made)}


def blocks(tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Each full block, named by the whole prefix that ends with it."""
    return [tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK)]


def cases(count: int = 300) -> list[tuple[dict[str, tuple[int, ...]], PrefixTree, dict[str, float], Plan]]:
    source = random.Random(7)
    found = []
    for _ in range(count):
        tokens = random_prompts(source)
        tree = build_prefix_tree(tokens, block_tokens=BLOCK)
        weights = {name: source.choice((0.5, 1.0, 3.0)) for name in tokens}
        found.append((tokens, tree, weights, make_plan(tree, weights=weights, capacity_tokens=None)))
    return found


def test_no_two_prompts_of_a_wave_compute_the_same_block_and_no_block_twice() -> None:
    for tokens, _tree, _weights, plan in cases():
        resident: set[tuple[int, ...]] = set()
        for wave in plan.waves:
            computed = [block for name in wave for block in blocks(tokens[name]) if block not in resident]
            assert len(computed) == len(set(computed)), (tokens, plan.waves)
            resident |= set(computed)


def test_parents_come_before_children() -> None:
    for _tokens, tree, _weights, plan in cases():
        resident: set[int] = set()
        for wave in plan.waves:
            paths = [{segment.index for segment in tree.path(name)} for name in wave]
            computed = [path - resident for path in paths]
            assert all(new == set(sorted(path)[-len(new) :]) for new, path in zip(computed, paths, strict=True) if new)
            for one, other in itertools.combinations(range(len(wave)), 2):
                assert paths[one] & paths[other] <= resident, (plan.waves, wave)
            resident |= set().union(*paths)


def test_sending_the_plan_makes_every_cacheable_block_resident_at_the_lower_bound() -> None:
    for tokens, _tree, _weights, plan in cases():
        resident: set[tuple[int, ...]] = set()
        computed_tokens = 0
        for name in plan.senders:
            hits = 0
            for block in blocks(tokens[name][:-1]):  # the last token is always computed
                if block not in resident:
                    break
                hits += BLOCK
            computed_tokens += len(tokens[name]) - hits
            resident |= set(blocks(tokens[name]))
        assert all(block in resident for prompt in tokens.values() for block in blocks(prompt[:-1]))
        assert computed_tokens == plan.lower_bound_tokens


def test_the_first_wave_meets_every_shared_prefix() -> None:
    for _tokens, tree, _weights, plan in cases():
        roots = {segment.index for segment in tree.segments if segment.parent is None}
        met = {tree.path(name)[0].index for name in plan.waves[0]} if plan.waves else set()
        assert met == roots


SHARED = tuple(range(100, 108))
DESKS = {
    "heavy": (*SHARED, *range(8)),
    "light": (*SHARED, *range(20, 28)),
    "other": tuple(range(50, 66)),
    "short": (1, 2),
}
TREE = build_prefix_tree(DESKS, block_tokens=BLOCK)
WEIGHTS = {"heavy": 5.0, "light": 1.0, "other": 2.0, "short": 9.0}


def test_prompts_that_do_not_fit_are_dropped_by_weight_and_listed() -> None:
    plan = make_plan(TREE, weights=WEIGHTS, capacity_tokens=5 * BLOCK)
    assert plan.senders == ("heavy", "light")
    assert plan.dropped == ("other",)
    assert (plan.blocks_needed, plan.blocks_available) == (4, 5)


def test_what_fits_exactly_is_kept_and_one_block_less_drops() -> None:
    needed = make_plan(TREE, weights=WEIGHTS, capacity_tokens=None).blocks_needed
    assert needed == 7
    assert make_plan(TREE, weights=WEIGHTS, capacity_tokens=7 * BLOCK).dropped == ()
    assert make_plan(TREE, weights=WEIGHTS, capacity_tokens=7 * BLOCK - 1).dropped == ("other",)


def test_an_engine_of_slots_gets_one_prompt_at_a_time_and_the_most_valuable_last() -> None:
    plan = make_plan(TREE, weights=WEIGHTS, capacity_tokens=None, most_valuable_last=True)
    assert plan.waves == (("other",), ("light",), ("heavy",))


def test_a_prompt_shorter_than_a_block_is_uncacheable_and_never_sent() -> None:
    plan = make_plan(TREE, weights=WEIGHTS, capacity_tokens=None)
    assert plan.uncacheable == ("short",)
    assert "short" not in plan.senders
    assert plan.prompts == 4


def test_without_token_ids_there_are_no_figures_and_one_request_at_a_time() -> None:
    plan = plan_without_tokens(TREE, weights=WEIGHTS)
    assert plan.waves == (("short",), ("heavy",), ("other",), ("light",))
    assert (plan.prompt_tokens, plan.cacheable_tokens, plan.lower_bound_tokens, plan.blocks_needed) == (None,) * 4


def test_two_thousand_prompts_are_planned_in_a_moment() -> None:
    tokens = {f"p{number}": (*range(1000, 1064), *(number % 251, number // 251, 7, 7) * 4) for number in range(2000)}
    tree = build_prefix_tree(tokens, block_tokens=BLOCK)
    plan = make_plan(tree, weights=dict.fromkeys(tokens, 1.0), capacity_tokens=10**6)
    assert len(plan.senders) == 2000
    assert len(plan.waves) == 2
    tight = make_plan(tree, weights=dict.fromkeys(tokens, 1.0), capacity_tokens=16 * BLOCK + 100 * 3 * BLOCK)
    assert (len(tight.senders), len(tight.dropped)) == (100, 1900)
