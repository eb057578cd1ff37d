"""One arm of the demo: a store that an old and a new worker share, and the keys that its requests bring."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from kvrelease.binding.production import production_request
from kvrelease.chain import cacheable_tokens
from kvrelease.config import Production
from kvrelease.demo.figures import Served, Strategy
from kvrelease.demo.pair import DemoPair
from kvrelease.demo.traffic import Turn, Worker
from kvrelease.engines.base import EngineKind, Request
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.local import LocalEngine, open_local
from kvrelease.workload.prompt_set import Prompt

MAX_TOKENS = 40  # twice the longest answer of the pair

_PRODUCTION = Production()


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """Two workers over one store.

    Attributes:
        strategy: what keys a block.
        copy: tells identical arms apart.
        store: what both workers read and write.
        workers: old and new.
        salts: what requests to each carry.
    """

    strategy: Strategy
    copy: int
    store: BlockCache
    workers: Mapping[Worker, LocalEngine]
    salts: Mapping[Worker, str | None]

    async def serve(self, turn: Turn, *, number: int, prompts: Mapping[str, Prompt]) -> Served:
        """What one user gets."""
        request = request_of(prompts[turn.prompt_id], salt=self.salts[turn.worker])
        worker = self.workers[turn.worker]
        observation, block = await worker.complete(request), worker.block_tokens
        # The in-process engine always tells these.
        assert observation.prompt_tokens is not None
        assert observation.cached_tokens is not None
        assert observation.ttft_s is not None
        return Served(
            number=number,
            strategy=self.strategy,
            copy=self.copy,
            worker=turn.worker,
            prompt_id=turn.prompt_id,
            text=observation.text,
            prompt_tokens=observation.prompt_tokens,
            cached_tokens=observation.cached_tokens,
            is_warm=observation.cached_tokens == cacheable_tokens(observation.prompt_tokens, block),
            ttft_s=observation.ttft_s,
        )


@asynccontextmanager
async def open_arm(
    strategy: Strategy, *, copy: int, pair: DemoPair, namespaces: Mapping[Worker, str]
) -> AsyncIterator[Arm]:
    """An arm with an empty store; its workers are closed on the way out."""
    store = BlockCache()
    async with AsyncExitStack() as stack:
        yield Arm(
            strategy=strategy,
            copy=copy,
            store=store,
            workers={
                Worker.OLD: await stack.enter_async_context(await open_local(pair.old, cache=store)),
                Worker.NEW: await stack.enter_async_context(await open_local(pair.new, cache=store)),
            },
            salts={worker: key_space(strategy, namespace) for worker, namespace in namespaces.items()},
        )


def key_space(strategy: Strategy, namespace: str) -> str | None:
    """The salt of production's requests: bound keys carry the release's namespace."""
    match strategy:
        case Strategy.TOKENS_ONLY:
            return None
        case Strategy.BOUND:
            return namespace


def request_of(prompt: Prompt, *, salt: str | None = None, bypasses_cache: bool = False) -> Request:
    """One user's request."""
    request = production_request(
        prompt, production=_PRODUCTION, model="demo", kind=EngineKind.LOCAL, salt=salt, max_tokens=MAX_TOKENS
    )
    return msgspec.structs.replace(request, bypasses_cache=bypasses_cache)
