"""Nonce prompts: a prefix that nobody can have cached before, to prove that a cache can hit and whose it is."""

from __future__ import annotations

import secrets
import sys

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.binding.observe import Observer
from kvrelease.binding.production import production_body
from kvrelease.chain import common_prefix
from kvrelease.config import Production
from kvrelease.engines.base import EngineIdentity, Request, Route
from kvrelease.errors import PromptTooLong

# Two blocks prove a hit; where a speculative decoder gives up the last block of every hit, and nobody tells, three do.
MIN_BLOCKS = 2
BLOCKS = 3
# Engines with small blocks still get a prefix that cannot be mistaken for a template's.
MIN_NONCE_TOKENS = 64

# Left free for the answer: the most that any command generates.
MAX_GENERATED_TOKENS = 8

# When the server does not tokenise, a random hex word is at least one token.
_WORD_BYTES = 4
_MAX_WORDS = 4096


async def nonce_request(
    observer: Observer, *, route: Route, production: Production, model: str, salt: str | None
) -> Request:
    """A request with production's route and fields whose prompt is random and, where it has room, three blocks long.

    What a chat template puts before a user's text (a system prompt of its own, production's tools) is the same in every
    nonce and may be cached: the prompt is made so long that this is no more than half of what can hit.

    Raises:
        PromptTooLong: two blocks do not fit the engine's context, so nothing can prove that its cache hits.
        ServiceError: the engine could not tokenise it.
    """
    identity = observer.identity
    block = identity.capabilities.block_tokens or 1
    least = MIN_BLOCKS * block + 1
    room = sys.maxsize if identity.context_tokens is None else identity.context_tokens - MAX_GENERATED_TOKENS
    words, front, is_too_long = 8, 0, False
    before: tuple[int, ...] | None = None
    while True:
        text = " ".join(secrets.token_hex(_WORD_BYTES) for _ in range(words))
        body = production_body(_prompt(text, route=route), production=production, model=model, kind=identity.kind)
        request = Request(route=route, body=body, salt=salt)
        tokens = await observer.tokenize(request)
        length = words if tokens is None else max(1, len(tokens))
        if least > room or (length > room and words == 1) or (is_too_long and length < least):
            raise _has_no_room(identity, max(length, least))
        if tokens is not None and before is not None:
            front = max(front, common_prefix(before, tokens))
        is_front_known = tokens is None or before is not None
        before = tokens
        wanted = control_tokens(block, front_tokens=front, lost_tokens=identity.capabilities.lost_tokens)
        aim = min(wanted, room)
        if length > room:
            words, is_too_long = max(1, min(words - 1, words * room // length)), True
        elif length < aim and words < _MAX_WORDS and not is_too_long:
            words = max(words + 1, words * aim // length + 1)
        elif is_front_known:
            return request


def _has_no_room(identity: EngineIdentity, tokens: int) -> PromptTooLong:
    return PromptTooLong(
        f"a unique prompt of two blocks is needed to prove that the cache of {identity.url} can hit; it takes "
        f"{tokens} tokens, which do not fit the context of {identity.context_tokens}",
        hint="serve a longer context (vLLM --max-model-len, llama.cpp -c) or smaller blocks (--block-size)",
    )


async def front_tokens(observer: Observer, *, route: Route, production: Production, model: str) -> int:
    """How many tokens every prompt begins with: what a chat template puts before a user's text, production's tools.

    0 where the server does not tokenise. Nothing is generated.

    Raises:
        ServiceError: the engine could not tokenise.
    """
    ids = []
    for _ in range(2):
        text = secrets.token_hex(_WORD_BYTES)
        kind = observer.identity.kind
        body = production_body(_prompt(text, route=route), production=production, model=model, kind=kind)
        ids.append(await observer.tokenize(Request(route=route, body=body)))
    one, other = ids
    return 0 if one is None or other is None else common_prefix(one, other)


def control_tokens(block_tokens: int, *, front_tokens: int = 0, lost_tokens: int = 0) -> int:
    """How many tokens the prompt of `nonce_request` has at least, where the context has room for it.

    Args:
        block_tokens: of a block.
        front_tokens: that every prompt begins with.
        lost_tokens: of the end of every hit.
    """
    front = front_tokens // block_tokens * block_tokens
    return max(MIN_NONCE_TOKENS, BLOCKS * block_tokens + 1, 2 * front + lost_tokens + 1)


def with_nonce_in_front(request: Request) -> Request | None:
    """The same request whose prompt begins with text that nobody can have cached; None where it has no text.

    Nothing of it hits, and what it computes is as much as the request itself computes on an empty cache.
    """
    nonce = " ".join(secrets.token_hex(_WORD_BYTES) for _ in range(4))
    match request.route:
        case Route.COMPLETIONS:
            prompt = request.body.get("prompt")
            body = request.body | {"prompt": f"{nonce} {prompt}"} if isinstance(prompt, str) else None
        case Route.CHAT:
            body = _chat_with(request.body, nonce)
    return None if body is None else msgspec.structs.replace(request, body=body)


def _chat_with(body: JsonObject, nonce: str) -> JsonObject | None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return None
    content = messages[0].get("content")
    if not isinstance(content, str):
        return None
    return body | {"messages": [messages[0] | {"content": f"{nonce} {content}"}, *messages[1:]]}


def _prompt(text: str, *, route: Route) -> JsonObject:
    match route:
        case Route.CHAT:
            return {"messages": [{"role": "user", "content": text}]}
        case Route.COMPLETIONS:
            return {"prompt": text}
