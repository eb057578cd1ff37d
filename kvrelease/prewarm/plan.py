"""What to send, and in which order, so that every block is computed once and the most valuable come first."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvrelease.workload.prefix_tree import PrefixTree


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one replica.

    Attributes:
        prompts: prompts of the set.
        prompt_tokens: tokens of all of them, shared ones counted every time; None when the server does not tokenise.
        cacheable_tokens: of these, the most that hits can cover; None likewise.
        lower_bound_tokens: the fewest that an empty cache must compute to hold all blocks sent; None likewise.
        blocks_needed: different blocks of the prompts that are sent; None likewise.
        blocks_available: what the engine's device cache holds; None when it does not tell.
        dropped: prompts left out for capacity, least valuable first; they do not make the run incomplete.
        uncacheable: prompts shorter than one block: nothing of them can be cached.
        waves: ids of the prompts to send; those of one wave compute no common block and may be in flight together,
            each wave waits for the one before.
    """

    prompts: int
    prompt_tokens: int | None
    cacheable_tokens: int | None
    lower_bound_tokens: int | None
    blocks_needed: int | None
    blocks_available: int | None
    dropped: tuple[str, ...] = ()
    uncacheable: tuple[str, ...] = ()
    waves: tuple[tuple[str, ...], ...]

    @property
    def senders(self) -> tuple[str, ...]:
        """Ids in the order sent."""
        return tuple(prompt_id for wave in self.waves for prompt_id in wave)


def make_plan(
    tree: PrefixTree, *, weights: Mapping[str, float], capacity_tokens: int | None, most_valuable_last: bool = False
) -> Plan:
    """The plan for a tree of token ids.

    Args:
        tree: of the whole prompt set, at the engine's block size.
        weights: traffic weight by prompt id.
        capacity_tokens: of the engine's device cache, None when not known.
        most_valuable_last: for engines that keep only what came last (slots).
    """
    saved = [
        segment.tokens * sum(weights[through] for through in tree.prompts_through(segment)) for segment in tree.segments
    ]
    ranked = sorted(tree.senders(), key=lambda prompt_id: (-_value(tree, prompt_id, saved), prompt_id))
    kept, dropped = _fit(tree, ranked, capacity_tokens=capacity_tokens)
    waves = _waves(tree, kept)
    if most_valuable_last:
        waves = tuple((prompt_id,) for prompt_id in reversed(kept))
    return Plan(
        prompts=len(tree.order),
        prompt_tokens=tree.prompt_tokens,
        cacheable_tokens=tree.cacheable_tokens,
        lower_bound_tokens=tree.lower_bound_tokens(kept),
        blocks_needed=tree.blocks_of(kept),
        blocks_available=None if capacity_tokens is None else capacity_tokens // tree.block_tokens,
        dropped=dropped,
        uncacheable=tree.uncacheable,
        waves=waves,
    )


def plan_without_tokens(tree: PrefixTree, *, weights: Mapping[str, float]) -> Plan:
    """The plan for a tree of text, where the server does not tell token ids: one request at a time, no figures."""
    ranked = sorted(tree.order, key=lambda prompt_id: (-weights[prompt_id], prompt_id))
    return Plan(
        prompts=len(tree.order),
        prompt_tokens=None,
        cacheable_tokens=None,
        lower_bound_tokens=None,
        blocks_needed=None,
        blocks_available=None,
        waves=tuple((prompt_id,) for prompt_id in ranked),
    )


def _value(tree: PrefixTree, prompt_id: str, saved: list[float]) -> float:
    """Tokens that traffic saves by this prompt's blocks, given what it saves by each segment: tokens times weight."""
    return sum(saved[segment.index] for segment in tree.path(prompt_id))


def _fit(tree: PrefixTree, ranked: list[str], *, capacity_tokens: int | None) -> tuple[list[str], tuple[str, ...]]:
    if capacity_tokens is None:
        return ranked, ()
    left_tokens = capacity_tokens // tree.block_tokens * tree.block_tokens
    kept: list[str] = []
    dropped: list[str] = []
    resident: set[int] = set()
    for prompt_id in ranked:
        added = {segment.index: segment.tokens for segment in tree.path(prompt_id) if segment.index not in resident}
        if sum(added.values()) > left_tokens:
            dropped.append(prompt_id)
            continue
        kept.append(prompt_id)
        resident |= added.keys()
        left_tokens -= sum(added.values())
    return kept, tuple(reversed(dropped))


def _waves(tree: PrefixTree, ordered: list[str]) -> tuple[tuple[str, ...], ...]:
    claimed: dict[int, int] = {}
    waves: list[list[str]] = []
    for prompt_id in ordered:
        path = [segment.index for segment in tree.path(prompt_id)]
        wave = max((claimed[index] + 1 for index in path if index in claimed), default=0)
        for index in path:
            claimed.setdefault(index, wave)
        if wave == len(waves):
            waves.append([])
        waves[wave].append(prompt_id)
    return tuple(tuple(wave) for wave in waves)
