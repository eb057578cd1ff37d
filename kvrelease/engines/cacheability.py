"""What a prefix cache can hold of a prompt, from what the engine says of itself; pure.

Source: vLLM 0.32.0: a hit ends on a block's boundary and leaves the last token to be computed
(v1/core/kv_cache_manager.py, `get_computed_blocks`); a speculative decoder that reads hidden states gives up the last
block of a hit (v1/core/kv_cache_coordinator.py, `replay_boundaries`); hybrid models pad the attention's block to a page
of the recurrent state (config/cache.py, `cache_hit_alignment_tokens`).
"""

from __future__ import annotations

from kvrelease.chain import cacheable_tokens

CANNOT = "cannot be cached: "


def expected_hit(prompt_tokens: int, *, block_tokens: int, lost_tokens: int = 0) -> int:
    """Most tokens of a prompt that a cache holding all of it can serve.

    Args:
        prompt_tokens: >= 0.
        block_tokens: granularity of a hit.
        lost_tokens: of the end of every hit, computed again all the same.
    """
    return max(0, cacheable_tokens(prompt_tokens, block_tokens) - lost_tokens)


def why_nothing_is_cached(
    *, is_off: str | None, block_tokens: int | None, lost_tokens: int = 0, context_tokens: int | None
) -> str | None:
    """Why no prompt at all can be cached here, in one sentence; None where nothing speaks against it.

    Args:
        is_off: what the server says that means it caches no prefixes; None where it says nothing of the kind.
        block_tokens: granularity of a hit, None when not known.
        lost_tokens: of the end of every hit, computed again all the same.
        context_tokens: longest prompt plus generation, None when not known.
    """
    if is_off is not None:
        return f"{CANNOT}this server has prefix caching off ({is_off})"
    if block_tokens is None or context_tokens is None:
        return None
    # One token is left for the answer.
    if expected_hit(context_tokens - 1, block_tokens=block_tokens, lost_tokens=lost_tokens) > 0:
        return None
    return (
        f"{CANNOT}a hit takes a whole block of {block_tokens} tokens"
        + (f" and {lost_tokens} more, which are given up" if lost_tokens else "")
        + f", and no prompt is longer than the context of {context_tokens} (recurrent layers make blocks this long)"
    )


def why_not_cached(prompt_tokens: int, *, block_tokens: int, lost_tokens: int = 0) -> str | None:
    """Why nothing of one prompt can be cached, in one sentence; None where something can."""
    if expected_hit(prompt_tokens, block_tokens=block_tokens, lost_tokens=lost_tokens) > 0:
        return None
    least = block_tokens + lost_tokens + 1
    return f"{CANNOT}{prompt_tokens} tokens, and below {least} nothing of a prompt can hit"
