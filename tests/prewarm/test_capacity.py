"""What is kept in a cache that is too small, against brute force and against a simulated cache."""

from __future__ import annotations

import itertools
import random

import pytest

from kvrelease.prewarm.capacity import head_room_blocks, keep
from kvrelease.prewarm.order import Schedule
from kvrelease.prewarm.plan import make_plan
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree
from tests.prewarm.block_cache import OverlappingCache
from tests.prewarm.test_order import run
from tests.prewarm.test_plan import BLOCK, cases


def worth(tree: PrefixTree, weights: dict[str, float], names: tuple[str, ...]) -> float:
    covered = {segment for name in names for segment in tree.path(name)}
    return sum(segment.tokens * sum(weights[one] for one in tree.prompts_through(segment)) for segment in covered)


def room(tree: PrefixTree, names: tuple[str, ...]) -> int:
    whole = sum(tree.branches[name].tail_tokens == BLOCK for name in names)
    return tree.blocks_of(names) + whole


def best(tree: PrefixTree, weights: dict[str, float], *, room_blocks: int) -> float:
    names = [name for name in tree.order if tree.branches[name].segment is not None]
    choices = (choice for count in range(len(names) + 1) for choice in itertools.combinations(names, count))
    return max(worth(tree, weights, choice) for choice in choices if room(tree, choice) <= room_blocks)


def test_what_is_kept_is_nearly_the_best_that_fits() -> None:
    shares = []
    for tokens, tree, weights, _plan in cases(150):
        if len(tree.order) > 9 or not tree.segments:
            continue
        for part in (0.3, 0.5, 0.8):
            room_blocks = int(part * tree.unique_blocks)
            kept = keep(tree, weights=weights, room_blocks=room_blocks)
            assert room(tree, kept.senders) <= room_blocks
            saved = worth(tree, weights, kept.senders)
            ways_of = {name: {segment.index for segment in tree.path(name)} for name in kept.senders}
            assert not any(one < other for one in ways_of.values() for other in ways_of.values()), "sent in vain"
            traffic = sum(weights[name] * len(tokens[name]) for name in tree.order)
            assert kept.share == pytest.approx(saved / traffic)
            optimum = best(tree, weights, room_blocks=room_blocks)
            shares.append(saved / optimum if optimum else 1.0)
            assert kept.proved_share <= shares[-1] + 1e-9, "no more is proved than is so"
    assert len(shares) > 150
    assert sum(shares) / len(shares) > 0.98
    assert min(shares) >= 0.5


def test_kept_and_dropped_are_all_prompts_that_can_be_cached() -> None:
    for _tokens, tree, weights, _plan in cases(100):
        kept = keep(tree, weights=weights, room_blocks=tree.unique_blocks // 2)
        resident = {segment.index for name in kept.senders for segment in tree.path(name)}
        for name, branch in tree.branches.items():
            assert (name in kept.dropped) == (branch.segment is not None and branch.segment not in resident)
        alone = [worth(tree, weights, (name,)) for name in kept.dropped]
        assert alone == pytest.approx(sorted(alone)), "least valuable first"


def test_a_shared_prefix_is_kept_by_the_prompt_that_ends_in_it_when_longer_ones_do_not_fit() -> None:
    stem = tuple(range(8))
    tokens = {"stem": (*stem, 90), "long": (*stem, *range(20, 61)), "other": tuple(range(70, 75))}
    tree = build_prefix_tree(tokens, block_tokens=BLOCK)
    kept = keep(tree, weights=dict.fromkeys(tokens, 1.0), room_blocks=3)
    assert set(kept.senders) == {"stem", "other"}
    assert kept.dropped == ("long",)


def test_one_large_valuable_prompt_is_not_lost_to_a_small_one() -> None:
    tokens = {"small": tuple(range(5)), "large": tuple(range(50, 91))}
    tree = build_prefix_tree(tokens, block_tokens=BLOCK)
    kept = keep(tree, weights={"small": 2.0, "large": 1.0}, room_blocks=10)
    assert kept.senders == ("large",)


@pytest.mark.parametrize("at_once", [1, 8])
def test_with_the_head_room_nothing_that_is_kept_is_evicted(at_once: int) -> None:
    """The whole run: control, plan, touch pass in reverse, everything asked again, all at full concurrency."""
    source = random.Random(3)
    for tokens, tree, weights, _plan in cases(150):
        reserved = head_room_blocks(block_tokens=BLOCK, in_flight=at_once, control_tokens=9)
        capacity = reserved + max(tree.unique_blocks * 2 // 3, 1)
        plan = make_plan(tree, weights=weights, capacity_tokens=capacity * BLOCK, in_flight=at_once, control_tokens=9)
        cache = OverlappingCache(blocks=capacity, block_tokens=BLOCK)
        cache.begin("control", tuple(range(500, 509)))
        cache.end("control")
        run(Schedule(tree, plan.order), tokens, cache, at_once=at_once, source=source)
        assert cache.computed_tokens == 9 + (plan.lower_bound_tokens or 0)
        for _ in range(2):
            for start in range(0, len(plan.order), at_once):
                together = plan.order[::-1][start : start + at_once]
                for name in together:
                    assert cache.begin(name, tokens[name]) == tree.branches[name].cacheable_tokens
                for name in together:
                    cache.end(name)
        # A prompt of whole blocks, asked again, leaves one more copy of its last one: those may go, and the control's.
        assert cache.evicted == 0 or any(len(tokens[name]) % BLOCK == 0 for name in plan.order)


def test_without_the_head_room_prompts_are_evicted() -> None:
    """Else the room would be wasted."""
    tokens = {f"p{number}": tuple(range(number * 100, number * 100 + 9)) for number in range(12)}
    tree = build_prefix_tree(tokens, block_tokens=BLOCK)
    cache = OverlappingCache(blocks=tree.unique_blocks, block_tokens=BLOCK)
    run(Schedule(tree, tuple(tokens)), tokens, cache, at_once=4, source=random.Random(1))
    assert cache.evicted > 0
