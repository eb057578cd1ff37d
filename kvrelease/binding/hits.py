"""Whose entries did a hit come from?

A hit is *explained* as far as the prompt's leading blocks are known to have been computed by this very release, in this
engine process, under this key space: by requests earlier in this run, or by earlier runs that the ledger remembers.
Everything beyond is *foreign*. Blocks computed on top of a foreign hit explain nothing: they are contaminated.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from kvrelease.chain import prefix_hashes

# What to do about entries that another release made.
CLEAN_UP = (
    "Empty this engine's cache: restart it, or kvrelease prewarm --allow-flush. Where users' requests carry the "
    "release's namespace, a new epoch does as well (kvrelease namespace --new-epoch); for others it changes nothing"
)


# Two hundred replicas are sent the same prompts, each several times, and hashing is most of what accounting costs.
_REMEMBERED_PROMPTS = 1024


@functools.lru_cache(maxsize=_REMEMBERED_PROMPTS)
def _hashes(tokens: tuple[int, ...], block_tokens: int) -> tuple[bytes, ...]:
    return prefix_hashes(tokens, block_tokens)


class KnownPrefixes:
    """The block-aligned token prefixes that one origin is known to have computed.

    Args:
        block_tokens: the engine's hit granularity, >= 1.
        known: chain hashes from earlier runs, at the same granularity.
    """

    def __init__(self, *, block_tokens: int, known: Iterable[bytes] = ()) -> None:
        self._block_tokens = block_tokens
        self._known = set(known)
        self._learnt: set[bytes] = set()

    @property
    def learnt(self) -> frozenset[bytes]:
        """What this run added."""
        return frozenset(self._learnt)

    def explained_tokens(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a prompt this origin computed before, a multiple of the block."""
        blocks = 0
        for digest in _hashes(tuple(tokens), self._block_tokens):
            if digest not in self._known:
                break
            blocks += 1
        return blocks * self._block_tokens

    def account(self, tokens: Sequence[int], *, cached_tokens: int) -> int:
        """The foreign tokens of one observed hit; learns what the request computed where nothing was foreign.

        Args:
            tokens: [prompt] token ids.
            cached_tokens: how many of them the engine took from its cache.

        Returns:
            cached tokens that nothing explains, >= 0.
        """
        foreign = max(0, cached_tokens - self.explained_tokens(tokens))
        if foreign == 0:
            self.learn(tokens)
        return foreign

    def learn(self, tokens: Sequence[int]) -> None:
        """Remembers that this origin computed the whole prompt."""
        digests = set(_hashes(tuple(tokens), self._block_tokens)) - self._known
        self._known |= digests
        self._learnt |= digests
