"""Keys and values as transformers keeps them, cut into blocks and put together again.

Source: transformers 5.24.0, `cache_utils.DynamicCache`.
"""

# ruff: noqa: PLC0415 - torch costs seconds, and is there only with the `local` extra

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from kvrelease.engines.blocks import Block, BlockShape
from kvrelease.engines.local_release import LoadedRelease
from kvrelease.errors import UnsupportedRelease

if TYPE_CHECKING:
    import torch


class KvLayer(Protocol):
    """KV of one layer; keys and values are [1, kv_heads, tokens, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor


class KvCache(Protocol):
    """What transformers' `DynamicCache` offers us."""

    layers: Sequence[KvLayer]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int) -> object:
        """Appends tokens to one layer."""


class ModelOutput(Protocol):
    """What a causal model returns; logits are [1, kept positions, vocabulary]."""

    logits: torch.Tensor


def kv_shape(release: LoadedRelease, directory: Path, *, block_tokens: int, dtype: str) -> BlockShape:
    """The shape of a block, from one token run through the model."""
    import torch

    kv = cast(KvCache, release.empty_kv())
    with torch.inference_mode():
        run_model(release, torch.tensor([[0]], device=release.device), kv)
    sizes = {(tensor.shape[1], tensor.shape[3]) for layer in kv.layers for tensor in (layer.keys, layer.values)}
    if len(sizes) != 1:
        raise UnsupportedRelease(f"{directory} cannot run in process: K and V have several sizes, {sorted(sizes)}")
    kv_heads, head_dim = sizes.pop()
    return BlockShape(layers=len(kv.layers), kv_heads=kv_heads, tokens=block_tokens, head_dim=head_dim, dtype=dtype)


def run_model(release: LoadedRelease, token_ids: torch.Tensor, kv: KvCache) -> torch.Tensor:
    """[batch, vocabulary] logits after the last of [batch, tokens]; `kv` grows by the tokens."""
    cache = {release.cache_argument: kv}
    output = cast(ModelOutput, release.model(input_ids=token_ids, use_cache=True, logits_to_keep=1, **cache))
    return output.logits[:, -1]


def append_blocks(kv: KvCache, rows: Sequence[Sequence[Block]], *, dtype: str, device: str) -> None:
    """Appends consecutive blocks to a cache of as many rows, each of which has as many blocks.

    Args:
        kv: grows by the blocks' tokens.
        rows: [batch][blocks], of one shape, one block at least.
        dtype: that is computed in.
        device: of torch, that the model runs on.
    """
    import torch

    shape = rows[0][0].shape
    keys, values = (
        torch.stack([_joined([half(block) for block in blocks], shape, dtype=dtype) for blocks in rows], dim=1)
        for half in (operator.attrgetter("keys"), operator.attrgetter("values"))
    )
    for layer in range(shape.layers):
        kv.update(keys[layer].to(device), values[layer].to(device), layer)


def _joined(parts: Sequence[bytes], shape: BlockShape, *, dtype: str) -> torch.Tensor:
    """[layers, kv_heads, tokens, head_dim] of consecutive blocks, in the dtype that is computed in."""
    import torch

    # Copied into a tensor of ours: torch warns of memory it must not write to, which `bytes` is.
    buffer = torch.empty(len(parts) * shape.half_bytes, dtype=torch.uint8)
    view = buffer.numpy().data
    for index, part in enumerate(parts):
        view[index * shape.half_bytes : (index + 1) * shape.half_bytes] = part
    blocks = buffer.view(getattr(torch, shape.dtype)).view(len(parts), *shape.dimensions).to(getattr(torch, dtype))
    tokens = len(parts) * shape.tokens
    return blocks.permute(1, 2, 0, 3, 4).reshape(shape.layers, shape.kv_heads, tokens, shape.head_dim)


def cut_block(kv: KvCache, index: int, shape: BlockShape, *, row: int = 0) -> Block:
    """The block at an index of a prompt's KV; the prompt is one row of a batch."""
    span = slice(index * shape.tokens, (index + 1) * shape.tokens)
    return Block(
        shape=shape,
        keys=_bytes_of([layer.keys[row, :, span] for layer in kv.layers], dtype=shape.dtype),
        values=_bytes_of([layer.values[row, :, span] for layer in kv.layers], dtype=shape.dtype),
    )


def _bytes_of(layers: list[torch.Tensor], *, dtype: str) -> bytes:
    import torch

    stacked, kept_as = torch.stack(layers).cpu(), getattr(torch, dtype)
    if stacked.dtype != kept_as:
        # Eight bits hold up to 448; torch makes NaN of what is larger, engines saturate.
        largest = torch.finfo(kept_as).max
        stacked = stacked.clamp(-largest, largest).to(kept_as)
    data: bytes = stacked.view(torch.uint8).numpy().tobytes()
    return data
