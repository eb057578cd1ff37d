"""The prefix caches of the scripted engine: vLLM's blocks and llama.cpp's slots, as `scripted.py` describes them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Protocol


@dataclasses.dataclass
class Found:
    """What a look-up gave.

    Attributes:
        provenance: [cached tokens] the release that computed each.
        external: how many of them came from the store outside the process.
    """

    provenance: list[str]
    external: int = 0


class Cache(Protocol):
    """Either cache."""

    def read(self, tokens: Sequence[int], *, salt: str | None, bypasses: bool, slot: int | None = None) -> Found: ...

    def write(self, tokens: Sequence[int], provenance: Sequence[str], *, salt: str | None) -> None: ...

    def clear(self) -> None: ...


class BlockCache:
    """Full blocks keyed by a chained hash of tokens, the salt in the first; the first one inserted wins; LRU.

    Below it there may be a store that several engines share; like some real connectors it ignores the salt, unless
    `store_keeps_salt`. With `gives_up_a_block` the last block of every hit is computed again, as Eagle and MTP need it.
    """

    def __init__(
        self,
        *,
        block_tokens: int,
        capacity_blocks: int | None,
        store: dict[str, str] | None,
        store_keeps_salt: bool = False,
        gives_up_a_block: bool = False,
    ) -> None:
        self.gives_up_a_block = gives_up_a_block
        self.block_tokens = block_tokens
        self.capacity_blocks = capacity_blocks
        self.store = store
        self.store_keeps_salt = store_keeps_salt
        self.blocks: dict[str, str] = {}  # key -> release, least recently used first

    def read(self, tokens: Sequence[int], *, salt: str | None, bypasses: bool, slot: int | None = None) -> Found:
        found = Found([])
        if bypasses:
            return found
        # The last token is always computed: its logits are needed.
        usable = tokens[: (len(tokens) - 1) // self.block_tokens * self.block_tokens]
        for key, shared in zip(self._keys(usable, salt), self._shared_keys(usable, salt), strict=True):
            if key in self.blocks:
                self.blocks[key] = self.blocks.pop(key)
                found.provenance += [self.blocks[key]] * self.block_tokens
            elif self.store is not None and shared in self.store:
                found.provenance += [self.store[shared]] * self.block_tokens
                found.external += self.block_tokens
            else:
                break
        if self.gives_up_a_block and found.provenance:
            found.external -= min(found.external, self.block_tokens)
            del found.provenance[-self.block_tokens :]
        return found

    def write(self, tokens: Sequence[int], provenance: Sequence[str], *, salt: str | None) -> None:
        size = self.block_tokens
        for index, (key, shared) in enumerate(
            zip(self._keys(tokens, salt), self._shared_keys(tokens, salt), strict=True)
        ):
            release = provenance[(index + 1) * size - 1]
            self.blocks.setdefault(key, release)
            if self.store is not None:
                self.store.setdefault(shared, release)
            while self.capacity_blocks is not None and len(self.blocks) > self.capacity_blocks:
                del self.blocks[next(iter(self.blocks))]

    def clear(self) -> None:
        self.blocks.clear()

    def _shared_keys(self, tokens: Sequence[int], salt: str | None) -> tuple[str, ...]:
        return self._keys(tokens, salt if self.store_keeps_salt else None)

    def _keys(self, tokens: Sequence[int], salt: str | None) -> tuple[str, ...]:
        return _block_keys(tuple(tokens), salt, self.block_tokens)


# The same few prompts come a dozen times each.
@functools.lru_cache(maxsize=4096)
def _block_keys(tokens: tuple[int, ...], salt: str | None, block_tokens: int) -> tuple[str, ...]:
    """[full blocks] each names the block and all that is before it."""
    keys, parent = [], json.dumps(salt)
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        block = json.dumps(list(tokens[end - block_tokens : end]))
        parent = hashlib.sha256(f"{parent}{block}".encode()).hexdigest()
        keys.append(parent)
    return tuple(keys)


@dataclasses.dataclass
class Slot:
    """The one prompt that a slot holds."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    provenance: list[str] = dataclasses.field(default_factory=list)
    used: int = 0


class SlotCache:
    """One prompt per slot; a hit is the common prefix of tokens; a bypass reads nothing and replaces the slot.

    With `keeps_in_ram`, what a slot loses is kept in host memory and read again, and erasing slots leaves it there.
    """

    def __init__(self, *, slots: int, keeps_in_ram: bool) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self.keeps_in_ram = keeps_in_ram
        self.ram: list[Slot] = []
        self._clock = 0
        self._chosen = self.slots[0]

    def read(self, tokens: Sequence[int], *, salt: str | None, bypasses: bool, slot: int | None = None) -> Found:
        # `id_slot` wraps around, and skips what host memory keeps where the slot is empty (ggml-org/llama.cpp#28139).
        named = None if slot is None or slot < 0 else self.slots[slot % len(self.slots)]
        return self._read(tokens, named or self._choose(tokens), bypasses=bypasses, skips_ram=bool(named))

    def _read(self, tokens: Sequence[int], slot: Slot, *, bypasses: bool, skips_ram: bool) -> Found:
        self._chosen = slot
        if self.keeps_in_ram and not (skips_ram and not slot.tokens):
            self._swap(slot, tokens)
        if bypasses:
            return Found([])
        cached = min(_common(slot.tokens, tokens), len(tokens) - 1)
        return Found(slot.provenance[:cached])

    def write(self, tokens: Sequence[int], provenance: Sequence[str], *, salt: str | None) -> None:
        self._clock += 1
        self._chosen.tokens, self._chosen.provenance, self._chosen.used = list(tokens), list(provenance), self._clock

    def clear(self) -> None:
        for slot in self.slots:
            slot.tokens, slot.provenance = [], []
        self.ram.clear()

    def _choose(self, tokens: Sequence[int]) -> Slot:
        # --slot-prompt-similarity 0.1, else the least recently used.
        best = max(self.slots, key=lambda slot: _common(slot.tokens, tokens))
        if _common(best.tokens, tokens) > 0.1 * len(tokens):
            return best
        return min(reversed(self.slots), key=lambda slot: slot.used)  # of those never used, the last

    def _swap(self, slot: Slot, tokens: Sequence[int]) -> None:
        best = max(self.ram, key=lambda kept: _common(kept.tokens, tokens), default=None)
        if slot.tokens and _common(slot.tokens, tokens) < len(slot.tokens):
            self.ram.append(Slot(list(slot.tokens), list(slot.provenance)))
        if best is not None and _common(best.tokens, tokens) > _common(slot.tokens, tokens):
            slot.tokens, slot.provenance = list(best.tokens), list(best.provenance)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the common prefix."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
