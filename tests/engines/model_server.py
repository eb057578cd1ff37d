"""A scripted vLLM whose answers a tiny real model computes: other kernels, weights and blocks, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvrelease.engines.base import Request, Route
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.local import LocalEngine
from tests.engines.in_process import opened
from tests.engines.scripted import Generation, Json, ScriptedEngine

TOP = 20


class ModelServer(ScriptedEngine):
    """Neither its salts nor its bypass do anything unless settings say so; the cache is the model's own blocks.

    Args:
        directory: of the release.
        dtype: of weights and KV.
        cache: which other engines may have filled.
    """

    def __init__(
        self, directory: Path, *, dtype: str = "float32", cache: BlockCache | None = None, **settings: Any
    ) -> None:
        defaults: dict[str, Any] = {"ignores_salt": True, "honours_bypass": False, "context_tokens": 512}
        super().__init__(release=directory.name, **(defaults | settings))
        self._open = (directory, dtype, cache)
        self.local: LocalEngine

    def __enter__(self) -> Self:
        directory, dtype, cache = self._open
        self.local = opened(directory, dtype=dtype, cache=cache)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        asyncio.run(self.local.aclose())

    def prompt_ids(self, path: str, body: Json) -> list[tuple[int, ...]]:
        """By the release's own tokenizer and template."""
        return [asyncio.run(self.local.tokenize(Request(route=Route(path), body=body)))]

    def tokens_of(self, body: Json) -> Sequence[int]:
        """What `/tokenize` tells."""
        return self.prompt_ids((Route.CHAT if "messages" in body else Route.COMPLETIONS).value, body)[0]

    def flush(self) -> None:
        """Empties the model's blocks."""
        asyncio.run(self.local.flush())

    def generate(self, prompt: Sequence[int], body: Json) -> Generation:
        """What the model answers."""
        request = Request(
            route=Route.COMPLETIONS,
            body={"prompt": list(prompt)},
            salt=None if self.ignores_salt else self._salt(body),
            max_tokens=int(body.get("max_completion_tokens") or body.get("max_tokens") or 16),
            top_logprobs=TOP,
            bypasses_cache=self._bypasses(body) and self.honours_bypass,
        )
        with self.lock:
            found = asyncio.run(self.local.complete(request))
            cached = found.cached_tokens or 0
            self.queried_tokens += len(prompt)
            self.hit_tokens += cached
            self.queried_of_rank[0] += len(prompt)
            self.hits_of_rank[0] += cached
            self.cached_of.append(cached)
            self.rank_of.append(0)
        return Generation(
            words=[one.token for one in found.tokens],
            tops=[[(entry.token, entry.logprob) for entry in one.top] for one in found.tokens],
            prompt_tokens=len(prompt),
            cached=cached,
        )
