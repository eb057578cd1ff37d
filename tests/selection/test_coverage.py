from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from kvrelease.selection.budget import Budget
from kvrelease.selection.coverage import Forest, choose

HALF_OF_1_MINUS_1_E = (1 - 1 / math.e) / 2


def random_forest(rng: random.Random) -> Forest:
    """Up to nine blocks; values fall along each way, and the shortest prompt through a block is no longer than through
    one behind it."""
    count = rng.randint(1, 9)
    parents = [rng.randint(-1, index - 1) for index in range(count)]
    depths: list[int] = []
    values: list[float] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
        values.append(float(rng.randint(1, int(values[parent]) if parent >= 0 else 9)))
    # Prompts end in leaves or on the way; each block's sample is the shortest one behind it.
    prompts = list(range(count))
    lengths = [depth * 10 + rng.randint(1, 40) for depth in depths]
    for index in reversed(range(count)):
        parent = parents[index]
        if parent >= 0 and lengths[index] < lengths[parent]:
            lengths[parent], prompts[parent] = lengths[index], prompts[index]
    return Forest(block=10, parents=parents, values=values, prompts=prompts, lengths=lengths)


def way(forest: Forest, index: int) -> set[int]:
    found = set()
    while index >= 0:
        found.add(index)
        index = forest.parents[index]
    return found


def ends(forest: Forest) -> dict[int, int]:
    """The deepest block of each prompt."""
    found: dict[int, int] = {}
    for index, prompt in enumerate(forest.prompts):
        if prompt not in found or len(way(forest, index)) > len(way(forest, found[prompt])):
            found[prompt] = index
    return found


def value_of(forest: Forest, leaves: Sequence[int]) -> float:
    covered = set().union(*(way(forest, leaf) for leaf in leaves))
    return sum(forest.values[index] for index in covered) * forest.block


def blocks_of(forest: Forest, leaves: Sequence[int]) -> int:
    covered = set().union(*(way(forest, leaf) for leaf in leaves))
    return len(covered) + sum(forest.lengths[leaf] // forest.block - len(way(forest, leaf)) for leaf in leaves)


def fits(forest: Forest, leaves: Sequence[int], budget: Budget) -> bool:
    length = sum(forest.lengths[leaf] for leaf in leaves)
    spent = (
        (len(leaves), budget.requests),
        (length, budget.length),
        (blocks_of(forest, leaves), budget.blocks),
    )
    return all(limit is None or amount <= limit for amount, limit in spent)


def best_value(forest: Forest, budget: Budget) -> float:
    """By trying every set."""
    leaves = list(ends(forest).values())
    subsets = itertools.chain.from_iterable(itertools.combinations(leaves, size) for size in range(len(leaves) + 1))
    return max(value_of(forest, subset) for subset in subsets if fits(forest, subset, budget))


@pytest.mark.parametrize(
    ("limits", "guaranteed"),
    [
        (("requests",), 1.0),
        (("length",), HALF_OF_1_MINUS_1_E),
        (("blocks",), 0.0),
        (("requests", "blocks"), 0.0),
        (("requests", "length", "blocks"), 0.0),
    ],
)
def test_the_choice_keeps_the_budget_its_promise_and_its_limit(limits: tuple[str, ...], guaranteed: float) -> None:
    shares = []
    for seed in range(200):
        rng = random.Random(seed)
        forest = random_forest(rng)
        ranges = {"requests": (1, 4), "length": (10, 150), "blocks": (1, 14)}
        budget = Budget(**{name: rng.randint(*ranges[name]) for name in limits})
        choice = choose(forest, budget)
        leaves = [one.leaf for one in choice.chosen]
        best = best_value(forest, budget)
        assert fits(forest, leaves, budget)
        assert choice.value == pytest.approx(value_of(forest, leaves))
        assert sum(one.new_blocks for one in choice.chosen) == blocks_of(forest, leaves)
        assert guaranteed * best - 1e-9 <= choice.value <= best + 1e-9 <= choice.limit + 2e-9
        if best:
            assert choice.proved_share <= choice.value / best + 1e-9
            shares.append(choice.value / best)
    assert sum(shares) / len(shares) > 0.9, "in practice it is far better than its promise"


def test_each_choice_adds_most_for_its_cost_given_what_was_chosen_before() -> None:
    for seed in range(200):
        rng = random.Random(1000 + seed)
        forest = random_forest(rng)
        chosen = [one.leaf for one in choose(forest, Budget(requests=3)).chosen]
        for step, leaf in enumerate(chosen):
            before = value_of(forest, chosen[:step])
            gains = [value_of(forest, [*chosen[:step], other]) - before for other in ends(forest).values()]
            assert value_of(forest, [*chosen[:step], leaf]) - before == max(gains)


def test_nothing_is_chosen_where_nothing_comes_back() -> None:
    choice = choose(Forest(block=16, parents=[], values=[], prompts=[], lengths=[]), Budget(requests=5))
    assert (choice.chosen, choice.value, choice.proved_share) == ((), 0, 1.0)


def test_a_prompt_whose_blocks_are_all_covered_is_not_taken() -> None:
    forest = Forest(block=10, parents=[-1, 0], values=[5.0, 5.0], prompts=[1, 0], lengths=[15, 30])
    assert [one.prompt for one in choose(forest, Budget(requests=9)).chosen] == [0]
