"""vLLM: cache salt, a bypass, its tokenizer, its counters and its settings.

Source: vLLM 0.32.0: `prompt_logprobs` that makes a request skip
the cache (sampling_params.py, v1/core/kv_cache_manager.py), `/tokenize` (entrypoints/serve/tokenize), development
routes (entrypoints/serve/dev), metric names (v1/metrics/loggers.py).
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Capabilities, Counters, EngineIdentity, EngineKind, Observation, Request, Route
from kvrelease.engines.cacheability import why_nothing_is_cached
from kvrelease.engines.foreign import as_ids, as_object, as_text
from kvrelease.engines.gate import HOLD_HEADER, Gate
from kvrelease.engines.http import Transport
from kvrelease.engines.metrics import Metrics
from kvrelease.engines.openai import labels_of
from kvrelease.engines.process import of_rank, process_behind
from kvrelease.engines.replies import Reply, looks_like_html, parse_object, refusal
from kvrelease.engines.request_fields import single_prompt
from kvrelease.engines.server import Server
from kvrelease.engines.vllm_runtime import RANK_LABEL, read_cache, read_runtime
from kvrelease.engines.vllm_salt import checked_salt
from kvrelease.errors import UnexpectedReply, UsageError

# The first answer of `/server_info` runs a dozen programs (vllm/collect_env.py: pip, conda, compilers, nvidia-smi),
# later ones do not: 2.9 s on a machine with 2 cores and without most of them.
SERVER_INFO_S = 30.0
_STARTED = "process_start_time_seconds"
_QUERIES = ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
# What counters are read of; the rest of the page, most of it histograms, is left unread.
_COUNTED = (
    "vllm:prefix_cache_",
    "vllm:gpu_prefix_cache_",
    "vllm:external_prefix_cache_",
    "vllm:prompt_tokens_cached_by_source",
    "vllm:num_requests_",
)

_MISS_CAUSES = (
    "prefix caching is off, by --no-enable-prefix-caching or by a setting that rules it out (a KV dtype, pooling)",
    "the shared part is shorter than the block that a hit takes",
    "a router or a data-parallel balancer sent the two to different caches",
    "an Eagle or MTP decoder gives up the last block, and the first repetition may miss whole",
    "the cache is too small, and other traffic evicted the prompt",
)

# What /tokenize takes of a chat body. It renders the same template as the chat route.
_TOKENIZE_CHAT = (
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "mm_processor_kwargs",
    "media_io_kwargs",
)

# What a tower of other weights made of an image stays in these, whatever becomes of the prefixes.
# Source: vLLM 0.32.0, entrypoints/serve/dev/cache/api_router.py.
_OTHER_CACHES = ("/reset_mm_cache", "/reset_encoder_cache")


class VllmClient(Server):
    """One vLLM server. A request that bypasses the cache still writes it, and cannot be streamed."""

    kind = EngineKind.VLLM

    def __init__(self, transport: Transport, *, model: str | None = None) -> None:
        """Speaks over `transport`, which it closes; `model` None for the only one that is served."""
        super().__init__(transport, model=model)
        self._tells_start = False

    async def identify(self) -> EngineIdentity:
        """Who answers; the settings are told in full only in vLLM's development mode."""
        model = await self._routes.served()
        version = as_text(as_object(await self._transport.find_object("/version")).get("version"))
        # Only development mode has this route, and the one that flushes. Where even the version is not told, something
        # in front of vLLM hides its routes, and one that hangs is not slow.
        within_s = None if version is None else SERVER_INFO_S
        info = await self._transport.find_object("/server_info?config_format=json", within_s=within_s)
        metrics = await self._process_page()
        cache = read_cache(info, metrics, rank=self.rank)
        runtime, unread = read_runtime(info, metrics, version=version)
        return EngineIdentity(
            kind=self.kind,
            url=self.url,
            version=version,
            model=await self._routes.model_name(),
            context_tokens=model.context_tokens,
            process=of_rank(await self._process(metrics), self.rank),
            capacity_tokens=cache.capacity_tokens,
            capabilities=Capabilities(
                has_salt=True,
                has_bypass=True,
                has_tokenize=True,
                has_flush=info is not None,
                block_tokens=cache.block_tokens,
                lost_tokens=cache.lost_tokens,
                why_nothing_is_cached=why_nothing_is_cached(
                    is_off=cache.is_off,
                    block_tokens=cache.block_tokens,
                    lost_tokens=cache.lost_tokens,
                    context_tokens=model.context_tokens,
                ),
                miss_causes=_MISS_CAUSES,
            ),
            labels=labels_of(model) | cache.labels | await self._weight_labels(has_routes=info is not None),
            runtime=runtime,
            runtime_unread=unread,
            name=self.name,
            rank=self.rank,
            ranks=metrics.numbers_of(RANK_LABEL, *_QUERIES),
        )

    async def current_process(self) -> str | None:
        """The start of the API server, by the metrics page alone, else the process behind the port."""
        return of_rank(await self._process(await self._process_page(only=_STARTED)), self.rank)

    async def tokenize(self, request: Request) -> tuple[int, ...] | None:
        """[prompt] token ids by the server's tokenizer; None for several prompts, embeddings, or without the route."""
        body = self._tokenize_body(request)
        if body is None:
            prompt = single_prompt(request.body.get("prompt")) if request.route is Route.COMPLETIONS else None
            return prompt if isinstance(prompt, tuple) else None
        body["model"] = request.body.get("model") or await self._routes.model_name()
        reply = await self._transport.post("/tokenize", body)
        if reply.status in (401, 403, 404, 405, 501) or looks_like_html(reply.data, reply.headers):
            return None  # gateways often let nothing but /v1 through; a wrong key is told by the generation itself
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor, body=body)
        ids = as_ids(parse_object(reply).get("tokens"))
        if ids is None:
            raise UnexpectedReply(f"{reply.what}: the answer has no list of token ids")
        return ids

    async def complete(self, request: Request) -> Observation:
        """What one request shows."""
        extra: JsonObject = {}
        if request.salt is not None:
            extra["cache_salt"] = checked_salt(request.salt)
        if request.bypasses_cache:
            if request.streams:
                raise UsageError("vLLM cannot bypass its cache in a streamed request (`prompt_logprobs` excludes it)")
            extra["prompt_logprobs"] = 0
        if request.top_logprobs > 0:
            extra["return_token_ids"] = True
        return await self._routes.complete(request, extra=extra)

    async def counters(self) -> Counters | None:
        """The prefix cache's counters: of the rank it is pinned to, else summed; None when `/metrics` tells none."""
        metrics = await self._metrics(only=_COUNTED)
        only = {} if self.rank is None else {RANK_LABEL: str(self.rank)}
        queried = metrics.total(*_QUERIES, only=only)
        cached = metrics.total("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", only=only)
        if queried is None or cached is None:
            return None
        return Counters(
            queried_tokens=queried,
            cached_tokens=cached,
            external_queried_tokens=metrics.total("vllm:external_prefix_cache_queries", only=only),
            external_cached_tokens=metrics.total("vllm:external_prefix_cache_hits", only=only),
            cached_by_source=metrics.totals_by("source", "vllm:prompt_tokens_cached_by_source", only=only),
            running_requests=metrics.total("vllm:num_requests_running", only=only),
            waiting_requests=metrics.total("vllm:num_requests_waiting", only=only),
        )

    async def flush(self) -> bool | None:
        """Empties the local caches: of prefixes, of images and of what encoders made of them.

        Never one outside the process, which others may share. Releases answer in four dialects: 200 with `success`, 200
        with nothing (which tells nothing), 409, and 500. The two others tell nothing, and are no part of the answer.
        """
        # `reset_external` is left at its default of false: it can empty a store that other replicas and models use.
        reply = await self._transport.post("/reset_prefix_cache", {}, is_repeatable=False)
        if reply.status in (404, 405):
            raise UsageError(
                f"{self.url} has no route that empties its cache",
                hint="start vLLM with VLLM_SERVER_DEV_MODE=1, or restart it, or use another namespace",
            )
        if reply.status in (409, 500):
            return False
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor)
        for path in _OTHER_CACHES:  # releases before them have none to reset
            await self._transport.post(path, {}, is_repeatable=False)
        return _flush_success(reply)

    def gate(self, *, token: str) -> Gate:
        """The gate of the middleware before it, for whoever has the control token; closed by the caller."""
        return Gate(self._transport.beside({"authorization": f"Bearer {token}"}))

    def holding(self, hold: str) -> VllmClient:
        """A client whose requests pass the gate under that hold; closed by the caller."""
        return VllmClient(self._transport.beside({HOLD_HEADER: hold}), model=self._routes.wanted)

    async def reload_weights(self, weights_path: str, *, timeout_s: float) -> None:
        """Loads other weights of the same architecture in place. The prefix cache stays as it is.

        Args:
            weights_path: as the engine's machine sees it.
            timeout_s: deadline of the call.

        Raises:
            UsageError: it has no such route; nothing was changed.
            Refused: it answered that it did not; `may_have_run` says whether it had begun.
            ServiceError: it did not answer properly, and may be loading still.

        Source: vLLM 0.32.0, entrypoints/serve/dev/rpc/api_router.py and v1/worker/gpu_model_runner.py
        (`reload_weights`).
        """
        body: JsonObject = {"method": "reload_weights", "kwargs": {"weights_path": weights_path}}
        async with self._transport.beside({}, timeout_s=timeout_s) as patient:
            reply = await patient.post("/collective_rpc", body, is_repeatable=False)
        if reply.status in (404, 405):
            raise UsageError(
                f"{self.url} has no route that loads weights in place",
                hint="start vLLM with VLLM_SERVER_DEV_MODE=1, or restart it with the new release",
            )
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor)

    async def _process_page(self, *, only: str = "") -> Metrics:
        # Once told, the start of the process is waited for: without it a slow page would look like another process.
        return await self._metrics(is_optional=not self._tells_start, only=only)

    async def _process(self, metrics: Metrics) -> str | None:
        # The API server's start; several API servers share one page without it.
        started = metrics.total(_STARTED)
        self._tells_start = self._tells_start or bool(started)
        return f"started:{started:.2f}" if started else await process_behind(self._transport.address)

    async def _weight_labels(self, *, has_routes: bool) -> dict[str, str]:
        found = await self._transport.find_object("/weight_info") if has_routes else None
        version = as_text(as_object(found).get("weight_version"))
        return {} if version is None else {"weight_version": version}

    def _tokenize_body(self, request: Request) -> JsonObject | None:
        """The body for /tokenize; None where there is nothing to ask it."""
        given = request.body
        if request.route is Route.COMPLETIONS:
            prompt = single_prompt(given.get("prompt"))
            if not isinstance(prompt, str):
                return None
            body: JsonObject = {"prompt": prompt}
            return body | ({"add_special_tokens": given["add_special_tokens"]} if "add_special_tokens" in given else {})
        body = {key: given[key] for key in _TOKENIZE_CHAT if key in given}
        # The chat route hands these to the template by itself; /tokenize has them only among its arguments.
        effort = given.get("reasoning_effort")
        arguments = {key: given[key] for key in ("documents", "reasoning_effort") if given.get(key) is not None}
        if effort is not None:
            arguments["enable_thinking"] = effort != "none"
        if arguments:
            body["chat_template_kwargs"] = arguments | as_object(given.get("chat_template_kwargs"))
        return body


def _flush_success(reply: Reply) -> bool | None:
    try:
        value = parse_object(reply).get("success")
    except UnexpectedReply:
        return None
    return value if isinstance(value, bool) else None
