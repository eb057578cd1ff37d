"""A logged request, cut into blocks with chained names: two requests share a name where they share all up to there.

Pure.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from kvrelease.chain import DEFAULT_BLOCK_TOKENS, TOKEN_BYTES, cacheable_blocks, pack_tokens
from kvrelease.workload.body import whole_text
from kvrelease.workload.key_space import key_space
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.mooncake import TRACE_BLOCK_TOKENS

# 64 characters of English are about 16 tokens, vLLM's default block on a GPU.
TEXT_BLOCK_CHARACTERS = 64
# Of one prompt, so that one absurd line cannot fill the memory: a million characters.
MAX_BLOCKS_OF_A_PROMPT = 16_384
# Of a name. Among ten million blocks two meet by chance once in 370,000 logs.
NAME_BYTES = 8


# Token ids of a request with text; None where they are not known.
Encode = Callable[[LoggedRequest], Sequence[int] | None]


class Unit(enum.StrEnum):
    """What lengths are counted in."""

    CHARACTERS = "characters"
    TOKENS = "tokens"


class Cut(NamedTuple):
    """A request's blocks.

    Attributes:
        names: [cacheable blocks], from the prompt's start.
        length: of the whole prompt, in the cutter's unit; 0 when it is not known.
    """

    names: list[bytes]
    length: int


class Cutter(msgspec.Struct, frozen=True, kw_only=True):
    """How requests of one log are cut.

    Attributes:
        unit: what `block` and all lengths count.
        block: size of a block, >= 1.
        is_trace: requests have hashes of blocks and no text.
        encode: their token ids; None cuts text into characters.
    """

    unit: Unit
    block: int
    is_trace: bool
    encode: Encode | None = None

    def cut(self, request: LoggedRequest) -> Cut:
        """The blocks of one request; those beyond `MAX_BLOCKS_OF_A_PROMPT` are left out."""
        space = key_space(model=request.model, salt=request.salt)
        # By route too: a template begins a chat with tokens that no completion begins with.
        root = blake2b(msgspec.json.encode((space.model, space.salt, request.kind)), digest_size=NAME_BYTES).digest()
        if self.is_trace:
            return _cut_trace(request, root, block=self.block)
        if self.encode is not None:
            return _cut_tokens(self.encode(request), root, block=self.block)
        return _cut_text(_text(request), root, block=self.block)


def cutter_for(first: LoggedRequest, *, block: int | None = None, encode: Encode | None = None) -> Cutter | None:
    """The cutter for a log, told by its first request; None when that has neither text nor hashes.

    Args:
        first: of the log.
        block: characters of a block, or tokens with `encode`; None for the default. A trace brings its own.
        encode: what makes token ids of requests with text; None cuts them into characters.
    """
    if first.body is not None and encode is not None:
        return Cutter(unit=Unit.TOKENS, block=block or DEFAULT_BLOCK_TOKENS, is_trace=False, encode=encode)
    if first.body is not None:
        return Cutter(unit=Unit.CHARACTERS, block=block or TEXT_BLOCK_CHARACTERS, is_trace=False)
    if first.block_hashes:
        return Cutter(unit=Unit.TOKENS, block=TRACE_BLOCK_TOKENS, is_trace=True)
    return None


def _text(request: LoggedRequest) -> str:
    assert request.body is not None, "a log with text has it in every request"
    assert request.kind is not None, "a body has a kind"
    return whole_text(request.body, kind=request.kind)


def _cut_text(text: str, name: bytes, *, block: int) -> Cut:
    end = min(cacheable_blocks(len(text), block), MAX_BLOCKS_OF_A_PROMPT) * block
    names: list[bytes] = []
    for start in range(0, end, block * _STRIDE_BLOCKS):
        names += _names(name, text[start : min(start + block * _STRIDE_BLOCKS, end)], block)
        name = names[-1]
    return Cut(names, len(text))


# Most of a log's text is beginnings that came before: hashing a few blocks at once, and remembering the result, spares
# half of the hashing.
_STRIDE_BLOCKS = 8


@functools.lru_cache(maxsize=4096)
def _names(name: bytes, text: str, block: int) -> tuple[bytes, ...]:
    """The names of a few whole blocks after one with a name."""
    names = []
    for start in range(0, len(text), block):
        name = blake2b(name + text[start : start + block].encode(), digest_size=NAME_BYTES).digest()
        names.append(name)
    return tuple(names)


def _cut_tokens(tokens: Sequence[int] | None, name: bytes, *, block: int) -> Cut:
    if tokens is None:
        return Cut([], 0)
    count = min(cacheable_blocks(len(tokens), block), MAX_BLOCKS_OF_A_PROMPT)
    data = pack_tokens(tokens[: count * block])
    size = block * TOKEN_BYTES
    names = []
    for start in range(0, len(data), size):
        name = blake2b(name + data[start : start + size], digest_size=NAME_BYTES).digest()
        names.append(name)
    return Cut(names, len(tokens))


def _cut_trace(request: LoggedRequest, name: bytes, *, block: int) -> Cut:
    hashes = request.block_hashes
    length = len(hashes) * block if request.prompt_tokens is None else request.prompt_tokens
    names = []
    for number in hashes[: min(cacheable_blocks(length, block), MAX_BLOCKS_OF_A_PROMPT)]:
        name = blake2b(name + number.to_bytes(16, "little", signed=True), digest_size=NAME_BYTES).digest()
        names.append(name)
    return Cut(names, length)
