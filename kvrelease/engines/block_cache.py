"""Blocks of KV and the prefix cache of the in-process engine: what keys them, and which are kept.

A block is plain bytes with a shape, so that a cache can outlive the library that made the tensors.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from kvrelease.chain import block_keys
from kvrelease.engines.block_files import BlockFiles
from kvrelease.engines.blocks import Block, BlockShape
from kvrelease.errors import DamagedFile

logger = logging.getLogger(__name__)

# 1 GiB holds about 25 distinct 850-token prompts of SmolLM2-135M in float32 (46 KB a token).
DEFAULT_CACHE_BYTES = 1024 * 1024 * 1024


class KeyScheme(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into the key of a block besides the tokens up to its end.

    Attributes:
        namespace: seeds the chain of hashes; None keys by tokens only, as engines do.
        honours_salt: the request's salt seeds the chain too. False stands for a store that ignores salts, as some
            connectors do: the salt is accepted, and isolates nothing.
    """

    namespace: str | None = None
    honours_salt: bool = True

    def block_keys(self, token_ids: Sequence[int], *, block_tokens: int, salt: str | None = None) -> tuple[bytes, ...]:
        """[full blocks] keys of 32 bytes; each depends on all tokens before it.

        Args:
            token_ids: [tokens], each 0 .. 2**32 - 1.
            block_tokens: tokens of a block, >= 1; part of the key.
            salt: the request's key space.
        """
        return block_keys(
            token_ids,
            block_tokens=block_tokens,
            namespace=self.namespace,
            salt=salt if self.honours_salt else None,
        )


TOKENS_ONLY = KeyScheme()


class CachedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The leading blocks of a prompt that a cache holds.

    Attributes:
        blocks: [blocks], from the start of the prompt.
        from_files: how many of them had to be read from the directory.
    """

    blocks: tuple[Block, ...] = ()
    from_files: int = 0


class CacheUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cache.

    Attributes:
        blocks: in memory.
        size_bytes: of them.
        evicted: blocks that left memory for want of room, since the start.
        unusable: keys under which a damaged block, or one of another shape, was found and not used.
    """

    blocks: int
    size_bytes: int
    evicted: int
    unusable: int


class BlockCache:
    """Blocks by key: in memory, least recently used first out, and on disk when a directory is given.

    The first block inserted under a key stays, in memory and on disk, as in vLLM; only one that the writer cannot use
    (damaged, another shape) is replaced. Engines may share a cache: it does not know who made a block, which is the
    point. Safe to call from several threads.
    """

    def __init__(
        self, *, max_bytes: int = DEFAULT_CACHE_BYTES, files: BlockFiles | None = None, writes_files: bool = True
    ) -> None:
        """Makes an empty one.

        Args:
            max_bytes: of memory.
            files: where blocks persist; None for memory only.
            writes_files: False leaves the directory as it is, so that looking at it changes nothing.
        """
        self.max_bytes = max_bytes
        self._files = files
        self._writes_files = writes_files
        self._memory: OrderedDict[bytes, Block] = OrderedDict()
        self._size_bytes = 0
        self._evicted = 0
        self._unusable: set[bytes] = set()
        self._lock = threading.Lock()
        self._holders = 0
        self._ever_attached = 0

    @property
    def has_files(self) -> bool:
        """Whether blocks are persisted too."""
        return self._files is not None

    @property
    def is_shared(self) -> bool:
        """Whether more than one open engine uses it."""
        return self._holders > 1

    @property
    def has_single_writer(self) -> bool:
        """Whether all its blocks are of one engine: no other was ever attached, and no directory can bring some in."""
        return self._ever_attached == 1 and self._files is None

    def attach(self) -> None:
        """Counts one more engine that uses it."""
        with self._lock:
            self._holders += 1
            self._ever_attached += 1

    def detach(self) -> None:
        """Counts one engine less."""
        with self._lock:
            self._holders -= 1

    def prefix(self, keys: Sequence[bytes], shape: BlockShape) -> CachedPrefix:
        """The longest run of usable blocks from the first key on.

        Args:
            keys: [blocks] of one prompt, in its order.
            shape: what the reader's model makes; a block of another shape is a miss.
        """
        blocks: list[Block] = []
        from_files = 0
        with self._lock:
            for key in keys:
                is_read = key not in self._memory
                block = self._find(key, shape)
                if block is None:
                    break
                from_files += is_read
                blocks.append(block)
            self._touch(keys[: len(blocks)])
        return CachedPrefix(blocks=tuple(blocks), from_files=from_files)

    def store(self, keys: Sequence[bytes], shape: BlockShape, make: Callable[[int], Block]) -> None:
        """Keeps the blocks of one prompt that are not there yet.

        Args:
            keys: [blocks], in the prompt's order.
            shape: of the writer's blocks.
            make: the block at an index of `keys`; called only for those that are kept.

        Raises:
            InputError: the directory cannot be written.
        """
        with self._lock:
            for index, key in enumerate(keys):
                if self._find(key, shape) is None:
                    block = make(index)
                    if self._files is not None and self._writes_files:
                        self._files.write(key, block)
                    self._keep(key, block)
            self._touch(keys)

    def save(self, files: BlockFiles) -> None:
        """Writes what is in memory to a directory, for engines to come.

        Raises:
            InputError: it cannot be written.
        """
        with self._lock:
            for key, block in self._memory.items():
                files.write(key, block)

    def clear(self) -> bool:
        """Empties memory; whether nothing is left, which a directory with blocks is."""
        with self._lock:
            self._memory.clear()
            self._size_bytes = 0
        return self._files is None or self._files.is_empty()

    def usage(self) -> CacheUsage:
        """What it holds, and what happened to it."""
        with self._lock:
            return CacheUsage(
                blocks=len(self._memory),
                size_bytes=self._size_bytes,
                evicted=self._evicted,
                unusable=len(self._unusable),
            )

    def _find(self, key: bytes, shape: BlockShape) -> Block | None:
        block = self._memory.get(key)
        if block is None and self._files is not None:
            try:
                block = self._files.read(key, shape)
            except DamagedFile as error:
                self._reject(key, error.message)
                return None
            if block is not None:
                self._keep(key, block)
        if block is not None and block.shape != shape:
            self._reject(key, f"its shape is {block.shape}, not {shape}")
            return None
        return block

    def _reject(self, key: bytes, reason: str) -> None:
        if key not in self._unusable:
            self._unusable.add(key)
            logger.warning("cached block %s is not used: %s", key.hex()[:16], reason)

    def _keep(self, key: bytes, block: Block) -> None:
        replaced = self._memory.pop(key, None)
        self._size_bytes += block.size_bytes - (replaced.size_bytes if replaced else 0)
        self._memory[key] = block

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Marks a prompt's blocks as just used, its first block last, so that leaves go before their parents."""
        for key in reversed(keys):
            if key in self._memory:
                self._memory.move_to_end(key)
        while self._size_bytes > self.max_bytes:
            _, evicted = self._memory.popitem(last=False)
            self._size_bytes -= evicted.size_bytes
            self._evicted += 1
