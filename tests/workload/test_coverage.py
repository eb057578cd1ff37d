from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from kvrelease.workload.budget import Budget
from kvrelease.workload.coverage import Forest, by_return, choose

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


def apart(*prompts: tuple[float, int]) -> Forest:
    """Prompts of one block each, of (value, length), that share nothing."""
    return Forest(
        block=10,
        parents=[-1] * len(prompts),
        values=[value for value, _ in prompts],
        prompts=list(range(len(prompts))),
        lengths=[length for _, length in prompts],
    )


@pytest.mark.parametrize(
    ("forest", "budget", "chosen", "value", "limit"),
    [
        # The two most valuable blocks, whatever the lengths.
        (apart((5, 10), (4, 10), (3, 10)), Budget(blocks=2), [0, 1], 90.0, 90.0),
        # Beside what was chosen, of the rest as much as the budget holds, the last one cut: half of 40.
        (apart((5, 10), (4, 26)), Budget(length=13), [0], 50.0, 70.0),
        # Everything there is.
        (apart((5, 10), (4, 10)), Budget(length=1000), [0, 1], 90.0, 90.0),
        # Two that share a start are worth it once, though the room would hold both: 90 and no more than 70 beside it.
        (
            Forest(
                block=10, parents=[-1, -1, 1, 1], values=[9, 5, 1, 1], prompts=[0, 1, 1, 2], lengths=[60, 50, 50, 50]
            ),
            Budget(length=100),
            [0],
            90.0,
            160.0,
        ),
        # The best two requests are no more than 90, though the length would take all three.
        (apart((5, 10), (4, 10), (3, 10)), Budget(requests=2, length=1000), [0, 1], 90.0, 90.0),
        # By gain per length alone the short one would go first, and leave no room for the valuable one.
        (apart((1, 10), (8, 100)), Budget(length=100), [1], 80.0, 90.0),
        # Each takes half of the requests and less of the length: requests are what decides.
        (apart((5, 10), (6, 20), (4, 10)), Budget(requests=2, length=1000), [1, 0], 110.0, 110.0),
    ],
)
def test_how_far_a_choice_can_be_from_the_best_is_told(
    forest: Forest, budget: Budget, chosen: list[int], value: float, limit: float
) -> None:
    choice = choose(forest, budget)
    assert [one.prompt for one in choice.chosen] == chosen
    assert choice.value == value
    assert choice.limit == pytest.approx(limit)
    assert choice.proved_share == pytest.approx(value / limit)


@pytest.mark.parametrize("limits", [("blocks",), ("requests", "blocks"), ("length", "blocks")])
def test_runs_of_blocks_are_chosen_from_as_their_blocks_are_one_by_one(limits: tuple[str, ...]) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        runs = random_forest(rng)
        sizes = [rng.randint(1, 3) for _ in runs.parents]
        parents, prompts, ends_of, behind = list[int](), list[int](), list[int](), list[int]()
        values = list[float]()
        for index, parent in enumerate(runs.parents):
            behind.append(sizes[index] + (behind[parent] if parent >= 0 else 0))
            for number in range(sizes[index]):
                parents.append(len(parents) - 1 if number else (ends_of[parent] if parent >= 0 else -1))
                values.append(runs.values[index])
                prompts.append(runs.prompts[index])
            ends_of.append(len(parents) - 1)
        long = {prompt: 10 * behind[index] + runs.lengths[index] % 10 for index, prompt in enumerate(runs.prompts)}
        lengths = [long[prompt] for prompt in prompts]
        whole = Forest(block=10, parents=parents, values=values, prompts=prompts, lengths=lengths)
        cut = Forest(
            block=10,
            parents=runs.parents,
            values=runs.values,
            prompts=runs.prompts,
            lengths=[long[prompt] for prompt in runs.prompts],
            sizes=sizes,
        )
        budget = Budget(
            **{name: rng.randint(*{"requests": (1, 3), "length": (10, 90), "blocks": (1, 12)}[name]) for name in limits}
        )
        one, other = choose(whole, budget), choose(cut, budget)
        assert [(made.prompt, made.new_blocks, made.gain) for made in one.chosen] == [
            (made.prompt, made.new_blocks, made.gain) for made in other.chosen
        ]
        assert one.limit == pytest.approx(other.limit)


def test_what_adds_most_for_what_it_computes_goes_first_and_nothing_goes_in_vain() -> None:
    # A long prompt of much traffic, a short one of little, and one on the long one's way.
    forest = Forest(
        block=10, parents=[-1, 0, -1], values=[4.0, 3.0, 2.0], prompts=[0, 1, 2], lengths=[15, 99, 11], sizes=[1, 8, 1]
    )
    assert by_return(forest, [1, 2]) == (1, 2)
    assert by_return(forest, [0, 1, 2]) == (1, 2), "the start adds nothing to the long one"
    assert by_return(forest, [1, 1]) == (1,)


def test_one_more_prompt_costs_the_largest_part_of_a_limit_that_it_uses() -> None:
    assert Budget().share(length=5, blocks=5) == 1.0
    assert Budget(requests=4).share(length=50, blocks=50) == 0.25
    assert Budget(requests=4, length=100).share(length=50, blocks=50) == 0.5
    assert Budget(requests=4, length=100, blocks=50).share(length=50, blocks=50) == 1.0
