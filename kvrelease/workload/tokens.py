"""The token ids of a prompt set, by whoever knows them, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvrelease.chain import cacheable_tokens
from kvrelease.workload.prompt_set import PromptSet
from kvrelease.workload.release_tokenizer import ReleaseTokenizer, Uncountable


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a tokenizer made of a prompt set.

    Attributes:
        by: who counted: a release's files, or a server.
        ids: [prompts][tokens] by prompt id; prompts whose tokens are not known are missing.
        unknown: why, by prompt id.
        context_tokens: the longest sequence that the release allows; None when not told.
        bos_id: id of the token that begins a text; None when not told.
        reads_clock: the chat template wrote the current date into a prompt.
    """

    by: str
    ids: Mapping[str, tuple[int, ...]]
    unknown: Mapping[str, str]
    context_tokens: int | None = None
    bos_id: int | None = None
    reads_clock: bool = False


class TokenFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How long the prompts are.

    Attributes:
        by: who counted.
        counted: prompts whose tokens are known.
        unknown: prompts whose tokens are not, and why, the most frequent reason first.
        total: of all counted prompts.
        shortest: of one prompt.
        longest: of one prompt.
        block_tokens: granularity of a hit that the figures assume.
        cacheable: most tokens of all counted prompts that hits can cover.
        unique: tokens of the different blocks among them: what has to be computed to have them all.
    """

    by: str
    counted: int
    unknown: tuple[tuple[str, int], ...]
    total: int
    shortest: int
    longest: int
    block_tokens: int
    cacheable: int
    unique: int


def release_tokens(prompt_set: PromptSet, tokenizer: ReleaseTokenizer) -> Tokens:
    """The token ids of a set by a release's own files."""
    ids: dict[str, tuple[int, ...]] = {}
    unknown: dict[str, str] = {}
    for prompt in prompt_set.prompts:
        try:
            ids[prompt.id] = tokenizer.tokens(prompt.body, kind=prompt.kind)
        except Uncountable as reason:
            unknown[prompt.id] = str(reason)
    return Tokens(
        by=tokenizer.name,
        ids=ids,
        unknown=unknown,
        context_tokens=tokenizer.context_tokens,
        bos_id=tokenizer.bos_id,
        reads_clock=tokenizer.reads_clock,
    )


def too_short(tokens: Tokens, *, block_tokens: int) -> tuple[str, ...]:
    """The prompts of which no block can ever be served from the cache."""
    return tuple(prompt_id for prompt_id, ids in tokens.ids.items() if cacheable_tokens(len(ids), block_tokens) == 0)


def begun_twice(tokens: Tokens) -> tuple[str, ...]:
    """The prompts that begin with two tokens of the kind that begins a text: the second one is their own text's."""
    bos = tokens.bos_id
    return tuple(prompt_id for prompt_id, ids in tokens.ids.items() if bos is not None and ids[:2] == (bos, bos))


def too_long(prompt_set: PromptSet, tokens: Tokens) -> tuple[str, ...]:
    """The prompts that do not fit the context together with what their bodies ask to generate."""
    limit = tokens.context_tokens
    if limit is None:
        return ()
    return tuple(
        prompt.id
        for prompt in prompt_set.prompts
        if prompt.id in tokens.ids and len(tokens.ids[prompt.id]) + _asked(prompt.body) > limit
    )


def _asked(body: Mapping[str, object]) -> int:
    """Tokens that a body asks to generate; at least one is."""
    wanted = body.get("max_completion_tokens", body.get("max_tokens"))
    return wanted if isinstance(wanted, int) and wanted > 0 else 1
