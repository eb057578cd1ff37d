"""Whose entries did a hit come from?

A hit is *explained* as far as the prompt's leading blocks are known to have been computed by this very release, in this
engine process, under this key space: by requests earlier in this run, or by earlier runs that the ledger remembers.
Everything beyond is *foreign*. Blocks computed on top of a foreign hit explain nothing: they are contaminated.

A prompt that was sent without anybody telling what came of it (its hit was not told, or the connection broke after it
had arrived) was computed here, or hit what others had left. A later hit of it is this release's own, or not: *not
known*, which is never foreign, and never clean.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Collection, Iterable, Sequence

from kvrelease.chain import DEFAULT_BLOCK_TOKENS, prefix_hashes

# What to do about entries that another release made.
_EMPTY = "Empty this engine's cache: restart it"
_FLUSH = ", or kvrelease prewarm --allow-flush"
_NEW_EPOCH = "a new epoch does as well (kvrelease namespace --new-epoch)"
CLEAN_UP = (
    f"{_EMPTY}{_FLUSH}. Where users' requests carry the release's namespace, {_NEW_EPOCH}; for others it changes "
    "nothing"
)


def clean_up(*, is_bound: bool, has_flush: bool) -> str:
    """The same where more is known.

    Args:
        is_bound: users' requests carry the release's namespace.
        has_flush: the engine empties its cache when it is told to, as it runs now.
    """
    return _EMPTY + (_FLUSH if has_flush else "") + (f"; {_NEW_EPOCH}" if is_bound else "")


# Two hundred replicas are sent the same prompts, each several times, and hashing is most of what accounting costs.
_REMEMBERED_PROMPTS = 1024


@functools.lru_cache(maxsize=_REMEMBERED_PROMPTS)
def remembered_hashes(tokens: tuple[int, ...], block_tokens: int) -> tuple[bytes, ...]:
    """[full blocks] `chain.prefix_hashes`, of prompts that come again."""
    return prefix_hashes(tokens, block_tokens)


class Unattributed(enum.StrEnum):
    """Why nobody can say whose a hit is; what explains most first."""

    RANK = "rank"
    NO_IDS = "no-ids"
    NO_BLOCK = "no-block"
    OTHER_IDS = "other-ids"
    OTHER_BLOCK = "other-block"
    UNTOLD = "untold"
    LOST = "lost"
    SENT = "sent"
    SISTER = "sister"
    ADAPTER = "adapter"

    @property
    def reason(self) -> str:
        """The same for people, with what to do about it."""
        return _REASONS[self]


_WAYS_OUT = "kvrelease verify tells; or empty the cache and run again (--allow-flush, or a restart)"
_REASONS = {
    Unattributed.UNTOLD: (
        "not every answer tells how many tokens came from the cache, and the counters of /metrics do not tell either "
        "(closed, or moved by other clients). vLLM needs --enable-prompt-tokens-details, and older releases leave a "
        "miss out all the same; so does SGLang without --enable-cache-report. Open the counters (SGLang: "
        "--enable-metrics)"
    ),
    Unattributed.SENT: (
        "a hit is of a prompt that this run or an earlier one sent without being told what came of it, so it is this "
        f"release's own, or was there before. {_WAYS_OUT}"
    ),
    Unattributed.SISTER: (
        "a hit is of what another replica of this release computed: out of the store that they share, "
        f"or it was here before; the counters do not tell, because others use this engine too. {_WAYS_OUT}"
    ),
    Unattributed.LOST: (
        "a request broke after it had been sent, and was sent again, so what it hit is its own, or was there before. "
        f"{_WAYS_OUT}"
    ),
    Unattributed.OTHER_IDS: (
        "the server counts other prompt tokens than its tokenizer route tells, so the token ids are not those that it "
        "computes (a token at the start, template arguments, tools or images that one of the two adds)"
    ),
    Unattributed.NO_IDS: "the server does not tell token ids (does a gateway close its /tokenize route?)",
    Unattributed.NO_BLOCK: (
        "the server does not tell its block size (is /metrics closed, or slow?); kvrelease prewarm takes it from you "
        "as well (--block-tokens N)"
    ),
    Unattributed.OTHER_BLOCK: (
        "a hit is no multiple of the block size that --block-tokens states, so the engine's own is another one"
    ),
    Unattributed.ADAPTER: "the engine may not keep an adapter's entries apart from those of the served model",
    Unattributed.RANK: "it is not proven that requests for this rank reach it, so a hit may be of another rank's cache",
}


def weightiest(doubts: Iterable[Unattributed]) -> Unattributed | None:
    """The one that explains most; None for none."""
    order = list(Unattributed)
    return min(doubts, key=order.index, default=None)


class KnownPrefixes:
    """The block-aligned token prefixes that one origin is known to have computed, and those that it may have.

    Where the engine's block is not known they are cut at blocks of ours (`DEFAULT_BLOCK_TOKENS`): what the engine keeps
    of a prompt may then end anywhere before the next such cut. What such a run learnt is found again by one that knows
    the block.

    Args:
        block_tokens: the engine's hit granularity, >= 1; None where it is not known.
        is_block_told: by the engine, and not by the user.
        known: chain hashes of what earlier runs computed, at the same granularity, or at blocks of ours.
        sent: of what they sent, not knowing what came of it.
    """

    def __init__(
        self,
        *,
        block_tokens: int | None,
        is_block_told: bool = True,
        known: Iterable[bytes] = (),
        sent: Iterable[bytes] = (),
    ) -> None:
        self._block_tokens = block_tokens or DEFAULT_BLOCK_TOKENS
        self._is_block_told = is_block_told and block_tokens is not None
        self._known = set(known)
        self._sent = set(sent)
        self._learnt: set[bytes] = set()
        self._newly_sent: set[bytes] = set()

    @property
    def learnt(self) -> frozenset[bytes]:
        """What this run added."""
        return frozenset(self._learnt)

    @property
    def newly_sent(self) -> frozenset[bytes]:
        """What this run sent, and does not know to have been computed."""
        return frozenset(self._newly_sent - self._learnt)

    @property
    def is_empty(self) -> bool:
        """Nothing of ours is known to have been here."""
        return not self._known and not self._sent

    def explained_tokens(self, tokens: Sequence[int], *, also: Collection[bytes] = ()) -> int:
        """How many leading tokens of a prompt this origin computed before, a multiple of the block.

        Args:
            tokens: [prompt] token ids.
            also: chain hashes of what others computed that count as well.
        """
        return self._leading(tokens, self._known, also)

    def sent_tokens(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a prompt this origin computed, or may have computed; a multiple of the block."""
        return self._leading(tokens, self._known, self._sent)

    def _leading(self, tokens: Sequence[int], *sets: Collection[bytes], block_tokens: int | None = None) -> int:
        block = block_tokens or self._block_tokens
        blocks = 0
        for digest in remembered_hashes(tuple(tokens), block):
            if not any(digest in digests for digests in sets):
                break
            blocks += 1
        return blocks * block

    def account(self, tokens: Sequence[int], *, cached_tokens: int) -> int | None:
        """The foreign tokens of one observed hit; learns what the request computed where nothing was foreign.

        Args:
            tokens: [prompt] token ids.
            cached_tokens: how many of them the engine took from its cache.

        Returns:
            cached tokens that certainly nothing of ours explains, >= 0; None where there are none, and some are of a
            prompt that was sent without knowing what came of it.
        """
        if cached_tokens <= self.explained_tokens(tokens) or cached_tokens <= self._in_our_blocks(tokens, self._known):
            self.learn(tokens)
            return 0
        foreign = cached_tokens - self.sent_tokens(tokens)
        if foreign > 0 and cached_tokens > self._most_in_our_blocks(tokens):
            return foreign
        self.add_sent(tokens)
        return None

    def _in_our_blocks(self, tokens: Sequence[int], *sets: Collection[bytes]) -> int:
        """Leading tokens that a run computed which did not know the engine's block; a multiple of ours."""
        return self._leading(tokens, *sets, block_tokens=DEFAULT_BLOCK_TOKENS)

    def _most_in_our_blocks(self, tokens: Sequence[int]) -> int:
        """The most leading tokens that such a run sent: less than a block of ours beyond the last that is alike."""
        if self._is_block_told and self._block_tokens == DEFAULT_BLOCK_TOKENS:
            return 0
        least = self._in_our_blocks(tokens, self._known, self._sent)
        is_possible = least or not (self._is_block_told or self.is_empty)
        return least + DEFAULT_BLOCK_TOKENS - 1 if is_possible else 0

    def add_sent(self, tokens: Sequence[int]) -> None:
        """Remembers that this origin sent a prompt, and that nobody told what came of it."""
        digests = set(remembered_hashes(tuple(tokens), self._block_tokens)) - self._known - self._sent
        self._sent |= digests
        self._newly_sent |= digests

    def learn(self, tokens: Sequence[int]) -> None:
        """Remembers that this origin computed the whole prompt."""
        digests = set(remembered_hashes(tuple(tokens), self._block_tokens)) - self._known
        self._known |= digests
        self._learnt |= digests
