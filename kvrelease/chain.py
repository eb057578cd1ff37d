"""Token blocks: which of a prompt a cache can serve, and their chained keys.

Two prompts share a key exactly when they share all tokens up to the block's end.

One algorithm, `kvkeys1`, keys the blocks of the in-process engine, tells the prefixes that the ledger remembers, and is
what `kvrelease.keys` offers to people who own their cache keys. Source: docs/keys.md, which fixes it to the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence

from blake3 import blake3

KEYS_ALGORITHM = "kvkeys1"
# Where nobody tells a block's size: vLLM's on GPUs. SGLang's pages and others are multiples of it, or one token.
DEFAULT_BLOCK_TOKENS = 16
# Of a key, where only prefixes of one run are told apart: 2**64 of them before two meet by chance.
PREFIX_BYTES = 16
TOKEN_BYTES = 4
MAX_TOKEN = 2**32 - 1

# The two contexts separate the hash of a root from that of a block.
_ROOT_CONTEXT = f"kvrelease {KEYS_ALGORITHM} root"
_BLOCK_CONTEXT = f"kvrelease {KEYS_ALGORITHM} block"


def block_keys(
    tokens: Sequence[int], *, block_tokens: int, namespace: str | None = None, salt: str | None = None
) -> tuple[bytes, ...]:
    """The key of each full block of a prompt; each depends on all tokens before it.

    Args:
        tokens: [tokens] ids, each 0 … 2**32 - 1.
        block_tokens: tokens of a block, >= 1; part of every key.
        namespace: whose KV it is, seeds the chain; None keys by tokens only, as engines do.
        salt: a further key space, such as a tenant's; None for the common one, which differs from an empty text.

    Returns:
        [len(tokens) // block_tokens] keys of 32 bytes. A prompt of a whole number of blocks has a key for the last one
        too, though a repeat of the same prompt cannot use it: an engine computes at least the last token.

    Raises:
        struct.error: an id is no integer of 0 … 2**32 - 1, which engine adapters never let through.

    Source: docs/keys.md; BLAKE3 in key derivation mode, https://github.com/BLAKE3-team/BLAKE3-specs (section 2.3).
    """
    assert block_tokens >= 1, "a block holds at least one token"
    packed = pack_tokens(tokens)
    block_bytes = block_tokens * TOKEN_BYTES
    root = struct.pack("<Q", block_tokens) + _optional(namespace) + _optional(salt)
    parent = blake3(root, derive_key_context=_ROOT_CONTEXT).digest()
    keys = []
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        block = packed[start : start + block_bytes]
        parent = blake3(parent + block, derive_key_context=_BLOCK_CONTEXT).digest()
        keys.append(parent)
    return tuple(keys)


def prefix_hashes(tokens: Sequence[int], block_tokens: int) -> tuple[bytes, ...]:
    """[full blocks] the first 16 bytes of each key by tokens only: which prefixes are alike, whoever computed them."""
    return tuple(key[:PREFIX_BYTES] for key in block_keys(tokens, block_tokens=block_tokens))


def cacheable_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """How many blocks of a prompt a prefix cache can serve: its last token is always computed, to have logits."""
    return max(prompt_tokens - 1, 0) // block_tokens


def cacheable_tokens(prompt_tokens: int, block_tokens: int) -> int:
    """The most tokens of a prompt that a prefix cache can serve: ⌊(n−1)/B⌋·B.

    Source:
        DESIGN, section 8, item 5.
    """
    return cacheable_blocks(prompt_tokens, block_tokens) * block_tokens


def common_prefix(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the longest common prefix; by halving, since comparing slices is far faster than comparing items."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as 4 little-endian bytes each.

    Raises:
        struct.error: an id is no integer of 0 … 2**32 - 1.
    """
    return struct.pack(f"<{len(tokens)}I", *tokens)


def _optional(text: str | None) -> bytes:
    """Unambiguous bytes of an optional text: absent and empty differ."""
    if text is None:
        return b"\x00"
    data = text.encode()
    return b"\x01" + struct.pack("<Q", len(data)) + data
