"""Which prompts become probes."""

from __future__ import annotations

import collections

from kvrelease.verify.probes import draw, long_enough
from kvrelease.workload.prefix_tree import build_prefix_tree
from kvrelease.workload.prompt_set import Prompt, PromptKind


def prompt(name: str, weight: float = 1.0) -> Prompt:
    return Prompt(id=name, weight=weight, kind=PromptKind.CHAT, body={})


def test_a_prompt_of_two_cacheable_blocks_is_long_enough_and_one_token_less_is_not() -> None:
    tokens = {"long": tuple(range(33)), "exact": tuple(range(32)), "short": (1,)}
    tree = build_prefix_tree(tokens, block_tokens=16)
    kept, skipped = long_enough([prompt(name) for name in tokens], [tree])
    assert [one.id for one in kept] == ["long"]
    assert skipped == ("exact", "short")


def test_a_prompt_that_is_too_short_for_the_larger_blocks_of_one_replica_is_no_probe_of_any() -> None:
    tokens = {"long": tuple(range(129)), "short": tuple(range(64))}
    small, large = (build_prefix_tree(tokens, block_tokens=block) for block in (16, 64))
    kept, skipped = long_enough([prompt(name) for name in tokens], [small, None, large])
    assert [one.id for one in kept] == ["long"]
    assert skipped == ("short",)


def test_without_token_ids_every_prompt_is_kept() -> None:
    assert long_enough([prompt("a")], [None]) == ((prompt("a"),), ())


def test_a_draw_is_without_replacement_reproducible_and_bounded() -> None:
    prompts = [prompt(f"p{number}") for number in range(20)]
    once = draw(prompts, count=12, seed=1)
    assert once == draw(prompts, count=12, seed=1)
    assert len({one.id for one in once}) == 12
    assert once != draw(prompts, count=12, seed=2)
    assert len(draw(prompts, count=99, seed=1)) == 20
    assert draw([], count=3, seed=1) == ()


def test_the_first_prompt_is_drawn_by_traffic_weight() -> None:
    prompts = [prompt("rare", 1.0), prompt("often", 3.0)]
    first = collections.Counter(draw(prompts, count=1, seed=seed)[0].id for seed in range(2000))
    # Binomial(2000, 0.75): 1500 ± 4 standard deviations of 19.4.
    assert abs(first["often"] - 1500) < 78
