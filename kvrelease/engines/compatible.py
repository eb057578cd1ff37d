"""Any server of which nothing more is known than that it speaks the OpenAI protocol."""

from __future__ import annotations

from kvrelease.engines.base import Capabilities, Counters, EngineIdentity, EngineKind, Observation, Request
from kvrelease.engines.openai import labels_of, refuse_unsupported
from kvrelease.engines.process import process_behind
from kvrelease.engines.server import Server
from kvrelease.errors import UsageError

_MISS_CAUSES = (
    "prefix caching is off, or the prompt is shorter than what the server caches at least",
    "a load balancer sent the two to different replicas",
)


class OpenAIClient(Server):
    """A server of which only the OpenAI protocol is known: no salt, no bypass, no tokenizer, no counters."""

    kind = EngineKind.OPENAI

    async def identify(self) -> EngineIdentity:
        """Who answers, as far as `/v1/models` tells."""
        model = await self._routes.served()
        return EngineIdentity(
            kind=self.kind,
            url=self.url,
            version=None,
            model=await self._routes.model_name(),
            context_tokens=model.context_tokens,
            process=await self.current_process(),
            capabilities=Capabilities(miss_causes=_MISS_CAUSES),
            labels=labels_of(model),
            runtime_unread=("engine", "version", "dtype", "kv_cache_dtype", "quantization", "parallel", "rope"),
            name=self.name,
            rank=self.rank,
        )

    async def current_process(self) -> str | None:
        """The process behind the port, where that is this machine's: the protocol tells none."""
        return await process_behind(self._transport.address)

    async def tokenize(self, request: Request) -> tuple[int, ...] | None:  # noqa: ARG002 - the protocol's signature
        """None: the protocol has no tokenizer."""
        return None

    async def complete(self, request: Request) -> Observation:
        """What one request shows."""
        refuse_unsupported(request, kind=self.kind, has_salt=False, has_bypass=False)
        return await self._routes.complete(request)

    async def counters(self) -> Counters | None:
        """None: the protocol has no counters."""
        return None

    async def flush(self) -> bool | None:
        """Refuses: the protocol has no way to empty a cache."""
        raise UsageError(
            f"{self.url} is only known to speak the OpenAI protocol, which cannot empty a cache",
            hint="restart the engine, or name its kind with --engine",
        )
