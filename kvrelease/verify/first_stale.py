"""From which block on is a prefix stale? A bisection over cuts of its prompt; pure.

An answer over the first k cached blocks differs from its clean twin where one of the k is stale, and a prompt's blocks
are chained: so there is one k below which no cut shows a difference and from which on each does. A difference smaller
than noise does not show, so the first stale block may lie before the one that is found, never behind it.
"""

from __future__ import annotations

import msgspec

from kvrelease.verify.evidence import Bisection, Cut
from kvrelease.verify.repeats import gap


class Bracket(msgspec.Struct, frozen=True, kw_only=True):
    """What cuts have shown so far.

    Attributes:
        clean_blocks: leading blocks over which the answer agrees with its clean twin.
        stale_blocks: the fewest over which it does not; None where no cut showed a difference.
        hit_blocks: of the last cut; None before the first, or where nobody witnessed its hit.
    """

    clean_blocks: int = 0
    stale_blocks: int | None = None
    hit_blocks: int | None = None

    @property
    def first_stale_block(self) -> int | None:
        """Index of the block from which on the difference shows, counted from 0; None while it is not told."""
        if self.stale_blocks is None or self.stale_blocks - self.clean_blocks > 1:
            return None
        return self.clean_blocks


def bracket(search: Bisection, *, threshold: float) -> Bracket:
    """What the cuts of a search show.

    Args:
        search: its cuts, in the order asked.
        threshold: nats above which noise does not explain a distance.
    """
    found = Bracket()
    for cut in search.cuts:
        hit = _hit_blocks(cut, search.block_tokens)
        found = msgspec.structs.replace(found, hit_blocks=hit)
        if hit is None:
            continue
        if gap(cut.production.observation, cut.clean.observation) > threshold:
            # A cut that hit nothing was computed by this release alone: whatever differs, no block of it is cached.
            if hit > found.clean_blocks:
                found = msgspec.structs.replace(found, stale_blocks=min(hit, found.stale_blocks or hit))
        elif hit < (found.stale_blocks or hit + 1):
            found = msgspec.structs.replace(found, clean_blocks=max(hit, found.clean_blocks))
    return found


def _hit_blocks(cut: Cut, block_tokens: int | None) -> int | None:
    cached = cut.production.cached_tokens
    return None if cached is None or not block_tokens else min(cut.blocks, cached // block_tokens)


def next_cut(search: Bisection, *, threshold: float, most: int) -> int | str | None:
    """How many blocks the next cut has; a sentence where there is no way on; None at the end.

    Args:
        search: so far.
        threshold: nats above which noise does not explain a distance.
        most: blocks that the stale answer hit, >= 1.
    """
    if not search.cuts:
        return most
    found = bracket(search, threshold=threshold)
    dead_end = _dead_end(found, search.cuts[-1], block_tokens=search.block_tokens or 1)
    if dead_end is not None:
        return dead_end
    assert found.stale_blocks is not None, "a search goes on only where a difference shows"
    return None if found.first_stale_block is not None else (found.clean_blocks + found.stale_blocks) // 2


def _dead_end(found: Bracket, last: Cut, *, block_tokens: int) -> str | None:
    """Why nothing more can be learnt; None where it can."""
    beginning = f"its first {last.blocks * block_tokens} tokens"
    if last.clean.foreign_tokens != 0:
        return f"the clean twin of {beginning} is not proved clean"
    if found.hit_blocks is None:
        return "nobody witnessed how much of a cut prompt came from the cache"
    if found.hit_blocks < last.blocks and found.stale_blocks != found.hit_blocks:
        return (
            f"of {beginning}, asked for alone, only {found.hit_blocks * block_tokens} came from the cache: the entries "
            "are gone, or the ids that the tokenizer route tells are not the prompt's"
        )
    if found.stale_blocks is None:
        return f"cut to {beginning}, the prompt is answered like its clean twin"
    return None
