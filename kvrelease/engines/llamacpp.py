"""llama.cpp's server: slots instead of a block cache, a bypass that overwrites, and its tokenizer.

Source: llama.cpp b11434, tools/server: `cache_prompt` and slots (server-context.cpp), `/props`, `/slots`, `/tokenize`,
`/apply-template` (server-context.cpp), metric names (server-task.cpp, `to_metrics`).
"""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Capabilities, Counters, EngineIdentity, EngineKind, Observation, Request, Route
from kvrelease.engines.foreign import as_count, as_ids, as_text, at, label
from kvrelease.engines.http import Transport
from kvrelease.engines.openai import labels_of, refuse_unsupported
from kvrelease.engines.process import process_behind
from kvrelease.engines.replies import parse_object, refusal
from kvrelease.engines.request_fields import has_media, single_prompt
from kvrelease.engines.server import Server
from kvrelease.errors import UnexpectedReply, UsageError

# Settings of KV's bytes or layout that no route of the server tells (b11434).
_UNREAD = ("dtype", "kv_cache_dtype", "flash_attention", "rope_overrides", "gpu_layers")
# The server tells neither the window nor the flag (b11434); its log does: "forcing full prompt re-processing".
_MISS_CAUSES = (
    "a model with a sliding window keeps only what is inside it: start llama-server with --swa-full",
    "a model with recurrent layers keeps no earlier state than its checkpoints",
    "another prompt took the slot, or similarity chose another one: more slots (-np) or fewer prompts",
    "llama-server runs with --no-cache-prompt",
)
_ROUTELESS = (404, 405, 501)


class LlamaCppClient(Server):
    """One llama.cpp server.

    A slot keeps one prompt, and a hit is any common prefix of tokens. A request that bypasses the cache replaces what
    its slot held, so a reference leg heals what a production leg would have shown.
    """

    kind = EngineKind.LLAMACPP

    def __init__(self, transport: Transport, *, model: str | None = None) -> None:
        """Speaks over `transport`, which it closes; `model` None for the only one that is served."""
        super().__init__(transport, model=model)
        self._tells_start = False

    async def identify(self) -> EngineIdentity:
        """Who answers."""
        model = await self._routes.served()
        props = await self._transport.find_object("/props") or {}
        version = as_text(props.get("build_info"))
        slots = as_count(props.get("total_slots"))
        slot_context = as_count(at(props, "default_generation_settings", "n_ctx")) or model.context_tokens
        settings = {
            "engine": "llamacpp",
            "version": version,
            "context": label(slot_context),
            "weights_format": as_text(props.get("model_ftype")),
        }
        return EngineIdentity(
            kind=self.kind,
            url=self.url,
            version=version,
            model=await self._routes.model_name(),
            context_tokens=slot_context,
            process=await self.current_process(),
            capacity_tokens=slots * slot_context if slots and slot_context else None,
            capabilities=Capabilities(
                has_bypass=True,
                has_tokenize=True,
                has_flush=props.get("endpoint_slots") is not False,
                reference_heals=True,
                block_tokens=1,
                cacheable_limit=slots,
                miss_causes=_MISS_CAUSES,
            ),
            labels=labels_of(model) | _labels(props, model.details),
            runtime={name: value for name, value in settings.items() if value},
            runtime_unread=(*(() if version else ("version",)), *_UNREAD),
            name=self.name,
            rank=self.rank,
        )

    async def current_process(self) -> str | None:
        """The start time that `/metrics` carries in a header, else the process behind the port."""
        # Once told, it is waited for: without it a slow page would look like another process.
        reply = await self._transport.get("/metrics", is_optional=not self._tells_start)
        started = reply.headers.get("process-start-time-unix") if reply.is_ok else None
        self._tells_start = self._tells_start or bool(started)
        return f"started:{started}" if started else await process_behind(self._transport.address)

    async def tokenize(self, request: Request) -> tuple[int, ...] | None:
        """[prompt] token ids as the server makes them for this route; None for several prompts, images, or no route."""
        if request.route is Route.COMPLETIONS:
            prompt = single_prompt(request.body.get("prompt"))
            return await self._token_ids(prompt) if isinstance(prompt, str) else prompt
        if has_media(request.body):
            return None
        reply = await self._transport.post("/apply-template", request.body)
        if reply.status in _ROUTELESS:
            return None
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor, body=request.body)
        rendered = as_text(parse_object(reply).get("prompt"))
        if rendered is None:
            raise UnexpectedReply(f"{reply.what}: the answer has no prompt")
        return await self._token_ids(rendered)

    async def complete(self, request: Request) -> Observation:
        """What one request shows."""
        refuse_unsupported(request, kind=self.kind, has_salt=False, has_bypass=True)
        extra: JsonObject = {"cache_prompt": False} if request.bypasses_cache else {}
        if request.slot is not None:
            extra["id_slot"] = request.slot
            request = msgspec.structs.replace(request, slot=None)
        found, payloads = await self._routes.complete_with_payloads(request, extra=extra)
        if found.cached_tokens is None:
            # Builds before usage carried it, and chats whose usage a proxy drops.
            cached = as_count(at(payloads[-1], "timings", "cache_n"))
            return msgspec.structs.replace(found, cached_tokens=cached)
        return found

    async def counters(self) -> Counters | None:
        """Prompt tokens seen and reused; None without `--metrics`, or in builds that do not count reuse."""
        metrics = await self._metrics()
        # `prompt_tokens` leaves out what was reused.
        computed = metrics.total("llamacpp:prompt_tokens")
        cached = metrics.total("llamacpp:prompt_tokens_cached")
        if computed is None or cached is None:
            return None
        return Counters(
            queried_tokens=computed + cached,
            cached_tokens=cached,
            running_requests=metrics.total("llamacpp:requests_processing"),
            waiting_requests=metrics.total("llamacpp:requests_deferred"),
        )

    async def flush(self) -> bool | None:
        """Erases every slot: False when one is refused, else None and never True.

        The server may hold copies of earlier prompts in host memory (`--cache-ram`, on by default), which erasing slots
        does not touch, from which an empty slot is filled again, and which no route shows. So an erase proves nothing.
        """
        props = await self._transport.get_object("/props")
        slots = as_count(props.get("total_slots"))
        if not slots:
            raise UnexpectedReply(f"GET {self.url}/props: the answer does not tell the number of slots")
        for slot in range(slots):
            reply = await self._transport.post(f"/slots/{slot}?action=erase", {}, is_repeatable=False)
            if reply.status in _ROUTELESS:
                raise UsageError(
                    f"{self.url} has no route that erases its slots",
                    hint="start llama-server with --slot-save-path DIR, or restart it",
                )
            if reply.status in (400, 409, 500, 503):
                return False
            if not reply.is_ok:
                raise refusal(reply, redactor=self._transport.redactor)
        return None

    async def _token_ids(self, text: str) -> tuple[int, ...] | None:
        # Both are what the completion routes use; the route's own default would leave out a BOS that they add.
        body: JsonObject = {"content": text, "add_special": True, "parse_special": True}
        reply = await self._transport.post("/tokenize", body)
        if reply.status in _ROUTELESS:
            return None
        if not reply.is_ok:
            raise refusal(reply, redactor=self._transport.redactor, body=body)
        ids = as_ids(parse_object(reply).get("tokens"))
        if ids is None:
            raise UnexpectedReply(f"{reply.what}: the answer has no list of token ids")
        return ids


def _labels(props: JsonObject, details: JsonObject) -> dict[str, str]:
    found = {name: as_text(props.get(name)) for name in ("model_path", "model_alias", "model_ftype")}
    found |= {name: label(details.get(name)) for name in ("n_params", "size")}
    return {name: value for name, value in found.items() if value}
