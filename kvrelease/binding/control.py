"""Nonce prompts: a prefix that nobody can have cached before, to prove that a cache can hit and whose it is."""

from __future__ import annotations

import secrets

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.binding.observe import Observer
from kvrelease.binding.production import production_body
from kvrelease.config import Production
from kvrelease.engines.base import Request, Route
from kvrelease.errors import PromptTooLong

# Two blocks prove a hit; engines with small blocks still get a prefix that cannot be mistaken for a template's.
MIN_NONCE_TOKENS = 64
BLOCKS = 2

# Left free for the answer: the most that any command generates.
MAX_GENERATED_TOKENS = 8

# When the server does not tokenise, a random hex word is at least one token.
_WORD_BYTES = 4
_MAX_WORDS = 4096


async def nonce_request(
    observer: Observer, *, route: Route, production: Production, model: str, salt: str | None
) -> Request:
    """A request with production's route and fields whose prompt is random and at least two blocks long.

    Raises:
        PromptTooLong: two blocks do not fit the engine's context, so nothing can prove that its cache hits.
        ServiceError: the engine could not tokenise it.
    """
    identity = observer.identity
    least = BLOCKS * (identity.capabilities.block_tokens or 1) + 1
    room = identity.context_tokens - MAX_GENERATED_TOKENS if identity.context_tokens is not None else None
    wanted = max(MIN_NONCE_TOKENS, least) if room is None else max(min(MIN_NONCE_TOKENS, room), least)
    words = 8
    while True:
        text = " ".join(secrets.token_hex(_WORD_BYTES) for _ in range(words))
        body = production_body(
            _prompt(text, route=route), production=production, model=model, kind=observer.identity.kind
        )
        request = Request(route=route, body=body, salt=salt)
        tokens = await observer.tokenize(request)
        length = words if tokens is None else max(1, len(tokens))
        if room is not None and max(length, wanted) > room:
            raise PromptTooLong(
                f"a unique prompt of two blocks is needed to prove that the cache of {identity.url} can hit; it takes "
                f"{max(length, wanted)} tokens, which do not fit the context of {identity.context_tokens}",
                hint="serve a longer context (vLLM --max-model-len, llama.cpp -c) or smaller blocks (--block-size)",
            )
        if length >= wanted or words >= _MAX_WORDS:
            return request
        words = max(words + 1, words * wanted // length + 1)


def control_tokens(block_tokens: int) -> int:
    """How many tokens the prompt of `nonce_request` has at least, where the context has room for it."""
    return max(MIN_NONCE_TOKENS, BLOCKS * block_tokens + 1)


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
