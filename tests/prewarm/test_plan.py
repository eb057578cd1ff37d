"""The plan, against random trees and against a simulated cache."""

from __future__ import annotations

import random

from kvrelease.prewarm.plan import Plan, make_plan, plan_of_nothing, plan_without_tokens
from kvrelease.workload.key_space import KeySpace, salt_mark
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


def test_sending_the_plan_makes_every_cacheable_block_resident_at_the_lower_bound() -> None:
    for tokens, _tree, _weights, plan in cases(150):
        resident: set[tuple[int, ...]] = set()
        computed_tokens = 0
        for name in plan.order:
            hits = 0
            for block in blocks(tokens[name][:-1]):  # the last token is always computed
                if block not in resident:
                    break
                hits += BLOCK
            computed_tokens += len(tokens[name]) - hits
            resident |= set(blocks(tokens[name]))
        assert all(block in resident for prompt in tokens.values() for block in blocks(prompt[:-1]))
        assert computed_tokens == plan.lower_bound_tokens


def test_each_prompt_adds_no_less_for_its_cost_than_the_next_so_that_a_time_out_loses_the_least() -> None:
    for tokens, tree, weights, plan in cases(150):
        resident: set[int] = set()
        left = set(plan.order)

        def worth(name: str, tree: PrefixTree = tree, weights: dict[str, float] = weights) -> float:
            added = [segment for segment in tree.path(name) if segment.index not in resident]  # noqa: B023 - as it is now
            saved = sum(part.tokens * sum(weights[one] for one in tree.prompts_through(part)) for part in added)
            return saved / (sum(part.tokens for part in added) + tree.branches[name].tail_tokens)

        for name in plan.order:
            assert worth(name) >= max(map(worth, left)) - 1e-9, (tokens, plan.order)
            resident |= {segment.index for segment in tree.path(name)}
            left.remove(name)


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
    plan = make_plan(TREE, weights=WEIGHTS, capacity_tokens=8 * BLOCK)
    assert plan.order == ("heavy", "light")
    assert plan.dropped == ("other",)
    assert (plan.blocks_needed, plan.blocks_available, plan.head_room_blocks) == (4, 8, 2)


def test_the_rate_to_expect_is_what_the_kept_blocks_save_of_all_tokens_of_traffic() -> None:
    whole, part = (make_plan(TREE, weights=WEIGHTS, capacity_tokens=tokens) for tokens in (None, 8 * BLOCK))
    traffic = 5.0 * 16 + 1.0 * 16 + 2.0 * 16 + 9.0 * 2
    # The shared blocks of both desks, and one more each; three of the other.
    assert part.expected_hit_rate == (6.0 * 8 + 5.0 * 4 + 1.0 * 4) / traffic
    assert whole.expected_hit_rate == (6.0 * 8 + 5.0 * 4 + 1.0 * 4 + 2.0 * 12) / traffic
    assert whole.proved_share == 1.0
    # Of six blocks, none could save more than the most valuable ones: four of the desks', and two of the other.
    assert part.proved_share == (6.0 * 8 + 5.0 * 4 + 1.0 * 4) / (6.0 * 8 + 5.0 * 4 + 2.0 * 12)


def test_where_nothing_can_be_cached_the_room_is_told_all_the_same() -> None:
    plan = plan_of_nothing(TREE, why="cannot be cached: it is off", capacity_tokens=9 * BLOCK + 1)
    assert (plan.blocks_available, plan.blocks_needed, plan.order, plan.expected_hit_rate) == (9, 0, (), 0.0)
    assert plan_of_nothing(TREE, why="", capacity_tokens=None).blocks_available is None


def test_without_figures_several_key_spaces_are_told() -> None:
    spaces = {name: KeySpace(model="", salt=name if name == "other" else "") for name in TREE.order}
    plan = plan_without_tokens(TREE.order, weights=WEIGHTS, why="nobody tells", key_spaces=spaces)
    assert plan.warnings[1:] == ("2 key spaces; the cost of each is not known without token ids and blocks",)


def test_what_fits_exactly_is_kept_and_one_block_less_drops() -> None:
    needed = make_plan(TREE, weights=WEIGHTS, capacity_tokens=None).blocks_needed
    assert needed == 7
    assert make_plan(TREE, weights=WEIGHTS, capacity_tokens=12 * BLOCK).dropped == ()
    assert make_plan(TREE, weights=WEIGHTS, capacity_tokens=12 * BLOCK - 1).dropped == ("light",)


def test_a_prompt_shorter_than_a_block_is_uncacheable_and_never_sent() -> None:
    plan = make_plan(TREE, weights=WEIGHTS, capacity_tokens=None)
    assert plan.uncacheable == ("short",)
    assert "short" not in plan.order
    assert plan.prompts == 4


def test_without_token_ids_there_are_no_figures_and_one_request_at_a_time() -> None:
    plan = plan_without_tokens(TREE.order, weights=WEIGHTS, why="nobody tells")
    assert plan.warnings == ("no figures: nobody tells",)
    assert (plan.order, plan.most_in_flight) == (("short", "heavy", "other", "light"), 1)
    assert (plan.prompt_tokens, plan.cacheable_tokens, plan.lower_bound_tokens, plan.blocks_needed) == (None,) * 4


def test_two_thousand_prompts_are_planned_in_a_moment() -> None:
    tokens = {f"p{number}": (*range(1000, 1064), *(number % 251, number // 251, 7, 7) * 4) for number in range(2000)}
    tree = build_prefix_tree(tokens, block_tokens=BLOCK)
    plan = make_plan(tree, weights=dict.fromkeys(tokens, 1.0), capacity_tokens=10**6)
    assert len(plan.order) == 2000
    tight = make_plan(tree, weights=dict.fromkeys(tokens, 1.0), capacity_tokens=(16 + 2) * BLOCK + 100 * 4 * BLOCK)
    assert (len(tight.order), len(tight.dropped)) == (100, 1900)


def test_head_room_grows_with_the_requests_in_flight_and_the_control() -> None:
    plan = make_plan(TREE, weights=WEIGHTS, capacity_tokens=64 * BLOCK, in_flight=8, control_tokens=65)
    assert plan.head_room_blocks == 1 + 8 + 17


def test_each_key_space_has_a_cost_of_its_own_and_they_add_up() -> None:
    spaces = dict.fromkeys(DESKS, KeySpace(model="", salt="")) | {"other": KeySpace(model="", salt="tenant-7")}
    plan = make_plan(TREE, weights=WEIGHTS, capacity_tokens=None, key_spaces=spaces)
    common, tenant = plan.key_spaces
    assert (common.salt, common.prompts, common.requests) == (None, 3, 2)
    assert (tenant.salt, tenant.prompts, tenant.requests, tenant.blocks) == (salt_mark("tenant-7"), 1, 1, 3)
    assert "tenant" not in str(tenant)
    assert common.lower_bound_tokens + tenant.lower_bound_tokens == plan.lower_bound_tokens
    assert common.sent_tokens + tenant.sent_tokens == plan.sent_tokens
    assert (
        make_plan(
            TREE, weights=WEIGHTS, capacity_tokens=None, key_spaces=dict.fromkeys(DESKS, KeySpace(model="", salt=""))
        ).key_spaces
        == ()
    )
