"""The K and V of a few consecutive tokens, as bytes with a shape."""

from __future__ import annotations

import math

import msgspec

# Bytes of one number.
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}

# The element types that the in-process engine can run in.
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")

# What KV may be kept as, by the name that vLLM's --kv-cache-dtype has for it; `auto` keeps it as it was computed.
KV_CACHE_DTYPES = {"auto": None, "fp8_e4m3": "float8_e4m3fn"}


class BlockShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the keys, and of the values, of one block: [layers, kv_heads, tokens, head_dim].

    Attributes:
        layers: decoder layers of the model.
        kv_heads: heads of K and of V in each layer.
        tokens: tokens of the block.
        head_dim: numbers of a head for a token.
        dtype: a key of `ITEM_BYTES`.
    """

    layers: int
    kv_heads: int
    tokens: int
    head_dim: int
    dtype: str

    @property
    def dimensions(self) -> tuple[int, int, int, int]:
        """[layers, kv_heads, tokens, head_dim]."""
        return (self.layers, self.kv_heads, self.tokens, self.head_dim)

    @property
    def half_bytes(self) -> int:
        """Bytes of the keys, and of the values."""
        return math.prod(self.dimensions) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.dimensions)}"


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block.

    Attributes:
        shape: of `keys` and of `values`.
        keys: little-endian numbers, row-major, rotary embedding applied.
        values: the same for V.
    """

    shape: BlockShape
    keys: bytes
    values: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and values."""
        return len(self.keys) + len(self.values)
