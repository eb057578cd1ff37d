"""Opens a client for one test, and closes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import httpx

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Counters, EngineClient, EngineIdentity, EngineKind, Observation, Request, Route
from kvrelease.engines.detect import open_engine
from tests.engines.scripted import ScriptedEngine
from tests.loops import run

T = TypeVar("T")

PROMPT = "You answer for a shop. " + "Every rule of this shop is written down here. " * 8 + "May I return it?"


def use(
    url: str,
    do: Callable[[EngineClient], Awaitable[T]],
    *,
    kind: EngineKind | None = None,
    model: str | None = None,
    api_key: str | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 5.0,
    max_retries: int = 4,
    connector: httpx.AsyncBaseTransport | None = None,
) -> T:
    """What `do` gives with a client of the engine at `url`; waits between attempts take milliseconds."""

    async def main() -> T:
        client = await open_engine(
            url,
            kind=kind,
            model=model,
            api_key=api_key,
            headers=headers,
            timeout_s=timeout_s,
            max_retries=max_retries,
            backoff_s=0.001,
            connector=connector,
        )
        async with aclosing(client):
            return await do(client)

    return run(main())


def ask(url: str, *requests: Request, kind: EngineKind | None = None, timeout_s: float = 5.0) -> list[Observation]:
    """[requests] what each shows, sent one after the other."""

    async def main(client: EngineClient) -> list[Observation]:
        return [await client.complete(request) for request in requests]

    return use(url, main, kind=kind, timeout_s=timeout_s)


def chat(
    text: str = PROMPT,
    *,
    salt: str | None = None,
    max_tokens: int = 3,
    top: int = 20,
    bypasses: bool = False,
    streams: bool = False,
    extra: JsonObject | None = None,
) -> Request:
    """A chat request."""
    return Request(
        route=Route.CHAT,
        body={"messages": [{"role": "user", "content": text}], "temperature": 0} | (extra or {}),
        salt=salt,
        max_tokens=max_tokens,
        top_logprobs=top,
        bypasses_cache=bypasses,
        streams=streams,
    )


def completion(
    prompt: object = PROMPT,
    *,
    max_tokens: int = 3,
    top: int = 20,
    streams: bool = False,
    extra: JsonObject | None = None,
) -> Request:
    """A completions request."""
    return Request(
        route=Route.COMPLETIONS,
        body={"prompt": prompt, "temperature": 0} | (extra or {}),
        max_tokens=max_tokens,
        top_logprobs=top,
        streams=streams,
    )


async def identity(client: EngineClient) -> EngineIdentity:
    return await client.identify()


async def counters(client: EngineClient) -> Counters | None:
    return await client.counters()


async def flush(client: EngineClient) -> bool | None:
    return await client.flush()


def tokenized(engine: ScriptedEngine, request: Request) -> tuple[int, ...] | None:
    async def main(client: EngineClient) -> tuple[int, ...] | None:
        return await client.tokenize(request)

    return use(engine.url, main)
