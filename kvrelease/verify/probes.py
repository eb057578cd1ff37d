"""Which prompts become probes: drawn by traffic weight, long enough to say something."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from kvrelease.workload.prefix_tree import PrefixTree
from kvrelease.workload.prompt_set import Prompt

# A shorter prompt has no cached prefix worth the name, and proves nothing.
MIN_BLOCKS = 2


def long_enough(
    prompts: Sequence[Prompt], trees: Sequence[PrefixTree | None]
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts of at least `MIN_BLOCKS` cacheable blocks on every replica, and the ids of the others.

    Args:
        prompts: of the set.
        trees: [replicas] of token ids; None when a server does not tell them, and every prompt is kept.
    """
    told = [tree for tree in trees if tree is not None]
    short = {
        prompt.id
        for prompt in prompts
        if any(tree.branches[prompt.id].cacheable_tokens < MIN_BLOCKS * tree.block_tokens for tree in told)
    }
    kept = tuple(prompt for prompt in prompts if prompt.id not in short)
    return kept, tuple(prompt.id for prompt in prompts if prompt.id in short)


def draw(prompts: Sequence[Prompt], *, count: int, seed: int) -> tuple[Prompt, ...]:
    """[min(count, prompts)] prompts by traffic weight without replacement, in the order drawn.

    Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information Processing Letters 97
    (2006): keys u^(1/w), largest first; here as logarithms.
    """
    # Reproducible on purpose; nothing secret hangs on it.
    source = random.Random(seed)  # noqa: S311
    keyed = [(math.log(1.0 - source.random()) / prompt.weight, index) for index, prompt in enumerate(prompts)]
    return tuple(prompts[index] for _, index in sorted(keyed, reverse=True)[:count])
