"""Chain hashes of block-aligned prefixes: two prompts share a prefix exactly when they share its hash.

Each hash covers its block and the hash before it, as serving engines chain theirs, so one set of 16-byte values
remembers every prefix that was ever sent without remembering a prompt.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import blake3

# BLAKE3, 128 bits; root: the hash of `kvchain1 <block size>`; block: the hash of the hash before it, the number of
# tokens as 4 little-endian bytes, then every token id as 4 little-endian bytes.
CHAIN_ALGORITHM = "kvchain1"
HASH_BYTES = 16
TOKEN_BYTES = 4


def prefix_hashes(tokens: Sequence[int], block_tokens: int) -> tuple[bytes, ...]:
    """The chain hash of each prefix of `tokens` that ends at a block boundary.

    Args:
        tokens: [prompt] ids, each in 0 … 2**32 - 1.
        block_tokens: granularity of a cache hit, >= 1.

    Returns:
        [len(tokens) // block_tokens] hashes of 16 bytes: number *i* covers the first (i + 1) * block_tokens tokens. A
        prompt of a whole number of blocks fills the last one, though a repeat of the same prompt cannot hit it (an
        engine computes at least the last token): for hits, cut to `prefix_tree.cacheable_tokens`.
    """
    assert block_tokens >= 1, "a block holds at least one token"
    packed = pack_tokens(tokens)
    block_bytes = block_tokens * TOKEN_BYTES
    length_prefix = struct.pack("<I", block_tokens)
    parent = blake3.blake3(f"{CHAIN_ALGORITHM} {block_tokens}".encode()).digest(length=HASH_BYTES)
    hashes = []
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        parent = blake3.blake3(parent + length_prefix + packed[start : start + block_bytes]).digest(length=HASH_BYTES)
        hashes.append(parent)
    return tuple(hashes)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as 4 little-endian bytes each.

    Raises:
        struct.error: an id is no integer of 0 … 2**32 - 1, which engine adapters never let through.
    """
    return struct.pack(f"<{len(tokens)}I", *tokens)
