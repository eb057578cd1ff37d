"""What a simulated request is made of, and how to make one from token ids or from the hashes of a trace.

Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec

from kvrelease.chain import prefix_hashes


class SimulatedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    Attributes:
        blocks: [full blocks] of the prompt; each identifies a block with all that stands before it.
        prompt_tokens: of the whole prompt; None where nothing but the blocks is known, which then may all hit.
        answer_tokens: that are generated; 0 when not known, as if the answer took no room.
        at_s: when it arrives; None when not known.
        session: whose it is, for sticky routing; None for nobody's.
        weight: requests that it stands for, in the figures only.
    """

    blocks: Sequence[Hashable]
    prompt_tokens: int | None = None
    answer_tokens: int = 0
    at_s: float | None = None
    session: str | None = None
    weight: float = 1.0

    def size(self, block_tokens: int) -> RequestSize:
        """What it needs of a cache with blocks of so many tokens."""
        full = len(self.blocks)
        tokens = self.prompt_tokens
        if tokens is None:
            return RequestSize(full * block_tokens, full, 1, self.answer_tokens // block_tokens)
        # The last generated token is never fed back, so it has no KV.
        written = max(tokens, full * block_tokens) + (self.answer_tokens - 1 if self.answer_tokens else 0)
        hit_limit = (tokens - 1) // block_tokens if tokens else 0
        return RequestSize(
            tokens,
            hit_limit if hit_limit < full else full,
            1 if written % block_tokens else 0,
            written // block_tokens - full,
        )


class RequestSize(NamedTuple):
    """What a request needs of a cache.

    Attributes:
        tokens: of the prompt; of its blocks alone where no more is known.
        hit_limit: the most blocks that can hit: an engine computes at least the last token.
        tail_blocks: blocks that are held and not filled: 0 or 1.
        answer_blocks: full blocks that the answer fills, the prompt's own rest in the first.
    """

    tokens: int
    hit_limit: int
    tail_blocks: int
    answer_blocks: int


def request_of_tokens(
    tokens: Sequence[int],
    *,
    block_tokens: int,
    key_space: Hashable = None,
    answer_tokens: int = 0,
    at_s: float | None = None,
    session: str | None = None,
) -> SimulatedRequest:
    """A request of token ids.

    Args:
        tokens: [tokens] ids of the whole prompt.
        block_tokens: of the cache.
        key_space: requests of two share no block: salt and adapter, say.
        answer_tokens: that are generated.
        at_s: when it arrives.
        session: whose it is.
    """
    keys: tuple[Hashable, ...] = prefix_hashes(tokens, block_tokens)
    if key_space is not None:
        keys = tuple((key_space, key) for key in keys)
    return SimulatedRequest(
        blocks=keys, prompt_tokens=len(tokens), answer_tokens=answer_tokens, at_s=at_s, session=session
    )


def request_of_hashes(
    hashes: Sequence[int],
    *,
    block_tokens: int,
    prompt_tokens: int | None = None,
    answer_tokens: int = 0,
    at_s: float | None = None,
    session: str | None = None,
    weight: float = 1.0,
) -> SimulatedRequest:
    """A request of a trace, such as Mooncake's `hash_ids`, whose last hash stands for a block that may not be full.

    Args:
        hashes: [blocks] of the prompt; equal ones have equal text up to the block's end. Where a hash repeats in one
            prompt that cannot be, and each is taken to identify its own block only.
        block_tokens: of the trace.
        prompt_tokens: as the trace says; None when it does not.
        answer_tokens: that are generated.
        at_s: when it arrives.
        session: whose it is.
        weight: requests that it stands for.

    Source:
        Mooncake, https://github.com/kvcache-ai/Mooncake, FAST25-release/traces (`hash_ids`, blocks of 512 tokens).
    """
    full = len(hashes) if prompt_tokens is None else min(prompt_tokens // block_tokens, len(hashes))
    keys: tuple[Hashable, ...] = tuple(hashes[:full])
    if len(set(keys)) < len(keys):
        keys = tuple(tuple(hashes[: end + 1]) for end in range(full))
    return SimulatedRequest(
        blocks=keys,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        at_s=at_s,
        session=session,
        weight=weight,
    )
