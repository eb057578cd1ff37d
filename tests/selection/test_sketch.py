from __future__ import annotations

import random
from collections import Counter

from kvrelease.selection.sketch import PrefixSketch, sample_of


def traffic(seed: int, requests: int) -> list[tuple[list[bytes], float]]:
    """Prompts over a few shared beginnings with many one-off endings; each name tells all before it."""
    rng = random.Random(seed)
    found = []
    for number in range(requests):
        path: tuple[int, ...] = ()
        names = []
        for depth in range(rng.randint(1, 8)):
            is_odd = depth > 2 and rng.random() < 0.6
            path = (*path, 1000 + number if is_odd else min(int(rng.expovariate(0.8)), 5))
            names.append(repr(path).encode())
        found.append((names, float(rng.choice((1, 1, 1, 3)))))
    return found


def counted(seed: int, max_blocks: int, requests: int = 1500) -> tuple[PrefixSketch, Counter[bytes]]:
    sketch, truth = PrefixSketch(max_blocks), Counter[bytes]()
    for index, (names, weight) in enumerate(traffic(seed, requests)):
        sketch.add(names, weight=weight, length=len(names) * 10 + index % 10, index=index)
        for name in names:
            truth[name] += weight  # type: ignore[assignment]  # a count by weight
    return sketch, truth


def test_within_its_size_everything_is_counted_exactly() -> None:
    sketch, truth = counted(seed=1, max_blocks=10**6)
    assert {name: block.weight for name, block in sketch.blocks.items()} == truth
    assert sketch.undercount == 0


def test_no_count_is_too_high_and_none_too_low_by_more_than_is_said() -> None:
    for seed in range(3):
        for max_blocks in (20, 100, 700):
            sketch, truth = counted(seed, max_blocks)
            assert sketch.undercount > 0, "this must be too small for all, or it shows nothing"
            assert len(sketch.blocks) <= max_blocks + 8
            assert sketch.visits == sum(truth.values())
            assert sketch.undercount <= 2 * sketch.visits / max_blocks
            for name, true_weight in truth.items():
                block = sketch.blocks.get(name)
                if block is None:
                    assert true_weight <= sketch.undercount
                else:
                    assert true_weight - block.missed <= block.weight <= true_weight
                    assert block.missed <= sketch.undercount


def test_heavy_beginnings_survive_among_many_one_off_endings() -> None:
    sketch, truth = counted(seed=3, max_blocks=700)
    heaviest = [name for name, _ in truth.most_common(10)]
    assert all(name in sketch.blocks for name in heaviest)


def test_a_block_is_counted_as_long_as_one_that_continues_it() -> None:
    sketch, _ = counted(seed=4, max_blocks=100)
    kept = {id(block) for block in sketch.blocks.values()}
    for block in sketch.blocks.values():
        assert block.parent is None or id(block.parent) in kept
        assert block.parent is None or block.parent.depth == block.depth - 1


def test_the_sample_is_the_shortest_prompt_through_a_block_and_of_equal_ones_the_first() -> None:
    sketch = PrefixSketch(100)
    for index, length in enumerate((30, 20, 20, 50)):
        sketch.add([b"a", b"b"] if length != 50 else [b"a"], weight=1, length=length, index=index)
    assert sample_of(sketch.blocks[b"a"]) == (20, 1)
    assert sample_of(sketch.blocks[b"b"]) == (20, 1)


def test_equal_logs_make_equal_sketches() -> None:
    first, again = counted(seed=5, max_blocks=50)[0], counted(seed=5, max_blocks=50)[0]
    assert {name: (block.weight, block.missed, block.sample) for name, block in first.blocks.items()} == {
        name: (block.weight, block.missed, block.sample) for name, block in again.blocks.items()
    }


def test_the_lighter_half_is_forgotten_and_no_more() -> None:
    sketch = PrefixSketch(5)
    for number in range(6):
        sketch.add([bytes([number])], weight=float(1 + number), length=10, index=number)
    assert [block.weight for block in sketch.blocks.values()] == [4.0, 5.0, 6.0]
    assert sketch.undercount == 3.0
