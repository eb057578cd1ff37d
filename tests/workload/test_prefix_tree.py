from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from kvrelease.chain import cacheable_tokens
from kvrelease.workload.prefix_tree import build_prefix_tree

Tokens = Mapping[str, Sequence[int]]


def blocks(tokens: Sequence[int], upto: int, size: int) -> set[tuple[int, ...]]:
    """Every block-aligned prefix of `tokens` no longer than `upto`."""
    return {tuple(tokens[:end]) for end in range(size, upto + 1, size)}


def computed(tokens: Tokens, order: Iterable[str], size: int) -> int:
    """What a cache without eviction computes when prompts are sent one after the other."""
    cache: set[tuple[int, ...]] = set()
    total = 0
    for prompt_id in order:
        prompt = tokens[prompt_id]
        hits = len(blocks(prompt, cacheable_tokens(len(prompt), size), size) & cache)
        total += len(prompt) - hits * size
        cache |= blocks(prompt, len(prompt), size)
    return total


def random_sets(*, seed: int, rounds: int, most: int) -> Iterable[tuple[Tokens, int]]:
    rng = random.Random(seed)
    for _ in range(rounds):
        size = rng.randint(1, 3)
        prompts = {f"p{i}": [rng.randrange(2) for _ in range(rng.randint(1, 9))] for i in range(rng.randint(0, most))}
        yield prompts, size


def test_a_shared_system_prompt_becomes_one_segment() -> None:
    system = list(range(64))
    tokens = {"a": [*system, *[100] * 40], "b": [*system, *[200] * 40], "c": [7] * 10}
    tree = build_prefix_tree(tokens, block_tokens=16)
    assert [(s.start_tokens, s.end_tokens, s.parent, tree.prompts_through(s)) for s in tree.segments] == [
        (0, 64, None, ("a", "b")),
        (64, 96, 0, ("a",)),
        (64, 96, 0, ("b",)),
    ]
    assert tree.unique_blocks == 4 + 2 + 2
    assert tree.uncacheable == ("c",)
    assert tree.senders() == ("a", "b")
    assert tree.lower_bound_tokens() == 8 * 16 + 8 + 8
    assert tree.shared_tokens("a", "b") == 64
    assert [s.end_tokens for s in tree.path("b")] == [64, 96]
    assert (tree.prompt_tokens, tree.cacheable_tokens) == (104 + 104 + 10, 96 + 96)
    assert [s.index for s in tree.segments if s.prompts > 1] == [0]


def test_a_prefix_shared_within_a_block_is_not_shared() -> None:
    tree = build_prefix_tree({"a": [*range(31), 1, 2], "b": [*range(31), 5, 6]}, block_tokens=16)
    assert tree.shared_tokens("a", "b") == 16
    assert tree.unique_blocks == 3


def test_of_equal_prefixes_the_prompt_with_the_shortest_tail_is_sent() -> None:
    tokens = {"long": [*range(16), *[9] * 9], "short": [*range(16), 8], "other": [*range(16), 7]}
    assert build_prefix_tree(tokens, block_tokens=16).senders() == ("other",)


def test_no_prompts_make_an_empty_tree() -> None:
    tree = build_prefix_tree({}, block_tokens=16)
    assert (tree.segments, tree.senders(), tree.lower_bound_tokens(), tree.unique_blocks) == ((), (), 0, 0)


def test_the_tree_equals_the_set_of_prefixes() -> None:
    for tokens, size in random_sets(seed=1, rounds=500, most=12):
        tree = build_prefix_tree(tokens, block_tokens=size)
        cuts = {key: blocks(ids, cacheable_tokens(len(ids), size), size) for key, ids in tokens.items()}
        union = set().union(*cuts.values())
        assert tree.unique_blocks == len(union)
        assert len(tree.leaves) == sum(not any(o[: len(b)] == b and len(o) > len(b) for o in union) for b in union)
        for one, other in itertools.combinations(tokens, 2):
            assert tree.shared_tokens(one, other) == len(cuts[one] & cuts[other]) * size
        for segment in tree.segments:
            assert segment.parent is None or segment.parent < segment.index
            through = {key for key in tokens if segment in tree.path(key)}
            assert set(tree.prompts_through(segment)) == through
            assert segment.prompts == len(through) > 0


def test_no_order_of_sending_computes_less_than_the_lower_bound_and_the_best_reaches_it() -> None:
    for tokens, size in random_sets(seed=2, rounds=300, most=5):
        tree = build_prefix_tree(tokens, block_tokens=size)
        best = min(computed(tokens, order, size) for order in itertools.permutations(tokens))
        assert tree.lower_bound_tokens(tokens) == best


def test_senders_are_the_cheapest_way_to_cache_every_block() -> None:
    for tokens, size in random_sets(seed=3, rounds=300, most=5):
        tree = build_prefix_tree(tokens, block_tokens=size)
        subsets = itertools.chain.from_iterable(itertools.combinations(tokens, k) for k in range(len(tokens) + 1))
        complete = [subset for subset in subsets if tree.blocks_of(subset) == tree.unique_blocks]
        assert tree.blocks_of(tree.senders()) == tree.unique_blocks
        assert len(tree.senders()) == min(map(len, complete))
        assert tree.lower_bound_tokens() == min(tree.lower_bound_tokens(subset) for subset in complete)


def test_order_puts_a_prompt_before_those_that_extend_it() -> None:
    for tokens, size in random_sets(seed=5, rounds=100, most=8):
        tree = build_prefix_tree(tokens, block_tokens=size)
        position = {prompt_id: place for place, prompt_id in enumerate(tree.order)}
        for one, other in itertools.permutations(tokens, 2):
            if len(tree.path(one)) < len(tree.path(other)) and set(tree.path(one)) <= set(tree.path(other)):
                assert position[one] < position[other]


def test_a_chain_of_thousands_of_nested_prompts_needs_no_recursion() -> None:
    tokens = {f"p{n:04}": [1] * (n + 1) for n in range(3000)}
    tree = build_prefix_tree(tokens, block_tokens=1)
    assert tree.senders() == ("p2999",)
    assert len(tree.path("p2999")) == 2999


def test_prompts_of_two_key_spaces_share_no_block() -> None:
    tokens = {name: [*range(64), number] for number, name in enumerate("abcd")}
    spaces = {"a": ("lora", "tenant-1"), "b": ("lora", "tenant-2"), "d": ("lora", "tenant-1")}
    tree = build_prefix_tree(tokens, block_tokens=16, key_spaces=spaces)
    assert [tree.shared_tokens("a", other) for other in "bcd"] == [0, 0, 64]
    assert tree.unique_blocks == 3 * 4
    assert tree.order == ("a", "d", "b", "c")
    assert len(tree.senders()) == 3


def test_key_spaces_make_the_trees_of_their_prompts_side_by_side() -> None:
    rng = random.Random(6)
    for tokens, size in random_sets(seed=6, rounds=300, most=9):
        spaces = {key: rng.choice((None, "x", ("y", None))) for key in tokens}
        tree = build_prefix_tree(tokens, block_tokens=size, key_spaces=spaces)
        apart = [
            build_prefix_tree({key: tokens[key] for key in tokens if spaces[key] == space}, block_tokens=size)
            for space in (None, "x", ("y", None))
        ]
        assert tree.unique_blocks == sum(part.unique_blocks for part in apart)
        assert tree.lower_bound_tokens(tokens) == sum(part.lower_bound_tokens(part.branches) for part in apart)
        assert set(tree.senders()) == {prompt_id for part in apart for prompt_id in part.senders()}
        for part in apart:
            for one, other in itertools.combinations(part.branches, 2):
                assert tree.shared_tokens(one, other) == part.shared_tokens(one, other)


def test_the_order_of_the_mappings_changes_nothing() -> None:
    tokens = {name: [*range(20), number] for number, name in enumerate("abcdef")}
    spaces = {name: name in "ace" for name in tokens}
    turned = dict(reversed(tokens.items()))
    trees = [build_prefix_tree(each, block_tokens=4, key_spaces=spaces) for each in (tokens, turned)]
    assert trees[0] == trees[1]
