"""SGLang: an extra key, a bypass by a key space nobody used, its tokenizer, its counters and its settings.

Why the bypass is not `logprob_start_len: 0`, which makes the scheduler match no prefix: after each chunk of a prefill,
and at its end, SGLang inserts what the request computed into the tree, frees what the tree had already, and points the
request at the tree's own entries (mem_cache/unified_radix_cache.py, `checkpoint_into_tree`). The second chunk, and
every token but the first, would be computed on the old entries, and the reply would tell of no hit.

Source: SGLang 0.5.23: `extra_key`, `cache_salt` (entrypoints/openai/protocol.py, mem_cache/radix_cache.py `RadixKey`,
mem_cache/utils.py `storage_namespace_seed`), replies (entrypoints/openai/serving_chat.py, serving_completions.py),
`/v1/tokenize` (serving_tokenize.py), `/flush_cache`, `/model_info`, `/server_info` (entrypoints/http_server.py).
"""

from __future__ import annotations

import secrets

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Capabilities, Counters, EngineIdentity, EngineKind, Observation, Request, Route
from kvrelease.engines.cacheability import why_nothing_is_cached
from kvrelease.engines.foreign import as_count, as_ids, as_object, as_text, label
from kvrelease.engines.http import Transport
from kvrelease.engines.openai import ServedModel, labels_of
from kvrelease.engines.process import of_rank, process_behind
from kvrelease.engines.replies import looks_like_html, parse_object, refusal
from kvrelease.engines.request_fields import has_media, single_prompt
from kvrelease.engines.server import Server
from kvrelease.engines.sglang_replies import extended
from kvrelease.engines.sglang_runtime import RANK_LABEL, read_cache, read_counters, read_runtime, started
from kvrelease.errors import ServiceError, UnexpectedReply, UsageError, WrongModel

# `/server_info` asks every scheduler, which answers between two batches: a long prefill makes it wait.
SERVER_INFO_S = 30.0
BYPASS = "kvrelease-bypass-"

# What a chat's tokenisation must not be sent: the chat route ignores these, and `/v1/tokenize` does not.
_NOT_TO_TOKENIZE = ("prompt", "add_generation_prompt", "add_special_tokens")
_ROUTELESS = (401, 403, 404, 405, 501)
_MISS_CAUSES = (
    "the radix cache is off, by --disable-radix-cache or by a setting that rules it out (deterministic inference)",
    "the shared part is shorter than a page",
    "a data-parallel balancer or a router sent the two to different caches",
    "hybrid and sliding-window models keep only some boundaries",
    "the cache is too small, and other traffic evicted the prompt",
)
_MODEL_LABELS = ("model_path", "served_model_name", "weight_version", "load_format")


class SglangClient(Server):
    """One SGLang server. Its salt is `extra_key`; `cache_salt` stays the tenant's own, and makes the bypass."""

    kind = EngineKind.SGLANG

    def __init__(self, transport: Transport, *, model: str | None = None) -> None:
        """Speaks over `transport`, which it closes; `model` None for the only one that is served."""
        super().__init__(transport, model=model)
        self._name: str | None = None
        self._adapters: dict[str, str] | None = None
        self._tells_start = False

    async def identify(self) -> EngineIdentity:
        """Who answers; cache and settings as far as `/server_info` is open."""
        model = await self._routes.served()
        info = await self._server_info()
        cache = read_cache(info)
        runtime, unread = read_runtime(info)
        told = (await self._metrics()).numbers_of(RANK_LABEL, "sglang:num_running_reqs", "sglang:realtime_tokens")
        context = model.context_tokens or as_count(as_object(info).get("context_length"))
        return EngineIdentity(
            kind=self.kind,
            url=self.url,
            version=runtime.get("version"),
            model=_request_name(model, await self._routes.model_name()),
            context_tokens=context,
            process=of_rank(await self._process(info), self.rank),
            capacity_tokens=cache.capacity_tokens,
            capabilities=Capabilities(
                has_salt=True,
                has_bypass=True,
                has_tokenize=True,
                has_flush=True,
                # Not told counts as yes: then no hit of a fresh process is called foreign for its freshness alone.
                cache_outlives_process=cache.outlives_process is not False,
                block_tokens=cache.block_tokens,
                why_nothing_is_cached=why_nothing_is_cached(
                    is_off=cache.is_off, block_tokens=cache.block_tokens, context_tokens=context
                ),
                miss_causes=_MISS_CAUSES,
            ),
            labels=labels_of(model) | cache.labels | await self._model_labels(),
            runtime=runtime,
            runtime_unread=unread,
            name=self.name,
            rank=self.rank,
            ranks=told or tuple(range(cache.ranks or 0)),
        )

    async def current_process(self) -> str | None:
        """The start of the server, by `/server_info` alone, else the process behind the port."""
        return of_rank(await self._process(await self._server_info()), self.rank)

    async def tokenize(self, request: Request) -> tuple[int, ...] | None:
        """[prompt] token ids by the server's tokenizer; None for several prompts, media, or without the route."""
        if request.route is Route.COMPLETIONS:
            prompt = single_prompt(request.body.get("prompt"))
            if not isinstance(prompt, str):
                return prompt
            body: JsonObject = {"prompt": prompt}
        else:
            if has_media(request.body):
                return None
            # Rendered as for a chat completion, models of special templates reading fields of their own.
            body = {key: value for key, value in request.body.items() if key not in _NOT_TO_TOKENIZE}
            body["stream"] = False
        body.setdefault("model", await self._model_name())
        reply = await self._transport.post("/v1/tokenize", body)
        if reply.status in _ROUTELESS or looks_like_html(reply.data, reply.headers):
            return None  # gateways may let this through or not; a wrong key is told by the generation itself
        if reply.status in (400, 422) and "messages" in body and b"'missing'" in reply.data:
            return None  # releases before it took messages
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor, body=body)
        ids = as_ids(parse_object(reply).get("tokens"))
        if ids is None:
            raise UnexpectedReply(f"{reply.what}: the answer has no list of token ids")
        return ids

    async def complete(self, request: Request) -> Observation:
        """What one request shows.

        Raises:
            WrongModel: the body names an adapter in a way that SGLang answers with the base model.
            UnexpectedReply: the weights were swapped while it generated.
        """
        asks_all = request.route is Route.CHAT and not request.streams
        # Tells hits without `--enable-cache-report`; the second, where it exists, misses and the rank as well.
        extra: JsonObject = {"return_cached_tokens_details": True}
        if asks_all:
            extra["return_meta_info"] = True
        elif request.route is Route.COMPLETIONS and request.top_logprobs > 0:
            extra["return_token_ids"] = True
        if request.salt is not None:
            extra["extra_key"] = checked_key(request.salt)
        if request.bypasses_cache:
            extra["cache_salt"] = BYPASS + secrets.token_hex(16)
        named = await self._named(request)
        found, payloads = await self._routes.complete_with_payloads(named, extra=extra)
        return extended(found, payloads, url=self.url)

    async def counters(self) -> Counters | None:
        """The cache's counters: of the rank it is pinned to, else of all; None when `/metrics` tells none yet."""
        return read_counters(await self._metrics(), rank=self.rank)

    async def flush(self) -> bool | None:
        """Empties the cache in the device's and the host's memory; never a store, which others may share.

        False while requests run. None where the reply proves nothing: a store is attached, which an empty cache is
        filled from again; there are several ranks, of which the reply tells the first one's; or neither is told.
        """
        reply = await self._transport.post("/flush_cache", {}, is_repeatable=False)
        if reply.status in (404, 405):
            raise UsageError(
                f"{self.url} has no route that empties its cache",
                hint="use the engine's own URL instead of a gateway's, or another namespace",
            )
        if reply.status == 400:
            return False
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor)
        cache = read_cache(await self._server_info())
        return True if cache.outlives_process is False and cache.ranks == 1 else None

    async def _named(self, request: Request) -> Request:
        """The request with the model's name as SGLang must be told it.

        It answers for any name, and reads an adapter only from `base:adapter`: an adapter's bare name would be
        answered by the base model, without a word.
        """
        given = as_text(request.body.get("model"))
        if given is None:
            name = await self._model_name()
            return msgspec.structs.replace(request, body=request.body | {"model": name})
        proper = (await self._adapter_names()).get(given)
        if proper is not None and "lora_path" not in request.body:
            raise WrongModel(
                f"{self.url} would answer the adapter {given!r} with its base model",
                hint=f"SGLang takes an adapter as {proper!r}",
            )
        return request

    async def _model_name(self) -> str:
        if self._name is None:
            model = await self._routes.served()
            self._name = _request_name(model, await self._routes.model_name())
        return self._name

    async def _adapter_names(self) -> dict[str, str]:
        """What each listed adapter must be called by; empty where the server does not list its models."""
        if self._adapters is None:
            try:
                models = await self._routes.models()
            except ServiceError:
                models = ()
            self._adapters = {model.name: _request_name(model, model.name) for model in models if model.parent}
        return self._adapters

    async def _server_info(self) -> JsonObject | None:
        # Once told, the start of the process is waited for: without it a slow answer would look like another process.
        if self._tells_start:
            return await self._transport.get_object("/server_info")
        info = await self._transport.find_object("/server_info", within_s=SERVER_INFO_S)
        # Releases before 0.5 have the older name alone.
        return info if info is not None else await self._transport.find_object("/get_server_info")

    async def _process(self, info: JsonObject | None) -> str | None:
        told = started(info)
        self._tells_start = self._tells_start or told is not None
        return told if told is not None else await process_behind(self._transport.address)

    async def _model_labels(self) -> dict[str, str]:
        info = await self._transport.find_object("/model_info")
        if info is None:
            info = await self._transport.find_object("/get_model_info")
        found = {name: label(as_object(info).get(name)) for name in _MODEL_LABELS}
        return {name: value for name, value in found.items() if value}


def checked_key(salt: str) -> str:
    """The salt, when SGLang takes it for one.

    Raises:
        UsageError: it is empty, which SGLang reads as none.
    """
    if not salt:
        raise UsageError("SGLang reads an empty extra key as none, so it is no key space", hint="name one")
    return salt


def _request_name(model: ServedModel, name: str) -> str:
    return f"{model.parent}:{name}" if model.parent else name
