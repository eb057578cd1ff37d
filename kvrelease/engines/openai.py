"""The part of the OpenAI protocol that every HTTP adapter shares: models, generations, refusals."""

from __future__ import annotations

import logging
import re

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import EngineKind, Observation, Request
from kvrelease.engines.foreign import as_count, as_list, as_object, as_text, at
from kvrelease.engines.http import Transport
from kvrelease.engines.redaction import MAX_READ, Redactor
from kvrelease.engines.replies import Reply, message_in, parse_object, refusal, server_message
from kvrelease.engines.request_fields import refuse_slot
from kvrelease.engines.retry import NOT_JSON_NUMBER
from kvrelease.engines.wire import observation, request_body, without_logprobs
from kvrelease.errors import NoModel, PromptTooLong, Refused, ServiceError, UnexpectedReply, UsageError, WrongModel

logger = logging.getLogger(__name__)

MODELS = "/v1/models"
_MAX_LISTED = 10  # names in one message
_MAX_NAME = 200  # characters of each

# vLLM: "maximum context length"; llama.cpp: "exceeds the available context size"; OpenAI: context_length_exceeded;
# SGLang: "longer than the model's context length", "exceeds the maximum allowed length" (of its memory);
# TGI: "`inputs` tokens + `max_new_tokens` must be <=".
_TOO_LONG = re.compile(
    r"maximum context length|context[_ ]length|context[_ ]size|max_model_len|maximum allowed length|"
    r"max_new_tokens. must be",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model.*(does not exist|not found|not exist|unknown|no such)|model_not_found", re.IGNORECASE)


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `/v1/models`.

    Attributes:
        name: what requests must carry.
        aliases: other names that are accepted.
        owner: `owned_by`, a hint at the kind of server.
        root: path or name of the weights, as the server claims.
        parent: of an adapter, the model that it changes.
        context_tokens: longest prompt plus generation, None when not told.
        details: the entry's `meta` (llama.cpp), empty when there is none.
    """

    name: str
    aliases: tuple[str, ...] = ()
    owner: str | None = None
    root: str | None = None
    parent: str | None = None
    context_tokens: int | None = None
    details: JsonObject = {}


class OpenAIRoutes:
    """The OpenAI routes of one server: which models it serves, and generations."""

    def __init__(self, transport: Transport, *, model: str | None) -> None:
        """Speaks over `transport` and asks for `model`; None for the only one that is served."""
        self.transport = transport
        self._model = model
        self._checked: str | None = None

    @property
    def wanted(self) -> str | None:
        """The model that was named; None for the only one."""
        return self._model

    async def models(self) -> tuple[ServedModel, ...]:
        """What the server lists, possibly nothing.

        Raises:
            ServiceError: it lists nothing in the protocol's form.
        """
        payload = await self.transport.get_object(MODELS)
        if not isinstance(payload.get("data"), list):
            raise UnexpectedReply(
                f"GET {self.transport.url}{MODELS}: the answer has no list of models",
                hint="check that the base URL is an OpenAI-compatible engine",
            )
        return tuple(model for entry in as_list(payload["data"]) if (model := _served(as_object(entry))) is not None)

    async def served(self) -> ServedModel:
        """The model to ask for.

        Raises:
            WrongModel: the one that was named is not served, or there is none.
            UsageError: none was named and there are several.
            ServiceError: the server did not answer properly.
        """
        try:
            models = await self.models()
        except Refused as error:
            # Gateways need not list models; a name that the user gave is then used unchecked.
            if error.status not in (404, 405, 501) or self._model is None:
                raise
            models = (ServedModel(name=self._model),)
        model = _chosen(models, wanted=self._model, transport=self.transport)
        self._checked = self._model or model.name
        return model

    async def model_name(self) -> str:
        """The name that requests carry; asks the server the first time."""
        if self._checked is None:
            await self.served()
        assert self._checked is not None, "served() names a model or raises"
        return self._checked

    async def complete(self, request: Request, *, extra: JsonObject | None = None) -> Observation:
        """One generation.

        Args:
            request: what to send; salt and bypass are the adapter's business, in `extra`.
            extra: fields that the engine understands beyond the protocol.

        Raises:
            UsageError, PromptTooLong, ServiceError: as `EngineClient.complete`.
        """
        result, _ = await self.complete_with_payloads(request, extra=extra)
        return result

    async def complete_with_payloads(
        self, request: Request, *, extra: JsonObject | None = None
    ) -> tuple[Observation, tuple[JsonObject, ...]]:
        """As `complete`, with the answer's JSON (each event's of a stream), for what an engine adds to the protocol."""
        refuse_slot(request, url=self.transport.url)
        # A body with a model of its own needs no listing: of several served models it has chosen one.
        name = as_text(request.body.get("model")) or await self.model_name()
        body = request_body(request, model=name) | (extra or {})
        reply = await self._sent(request, body)
        if NOT_JSON_NUMBER in reply.data and reply.status == 500 and request.top_logprobs > 0:
            # The server cannot write a log-probability of minus infinity. The generation itself is still evidence,
            # and an observation without tokens says that the rest is missing.
            logger.warning("%s: the server cannot write its log-probabilities as JSON; asked without", reply.what)
            again = await self._sent(request, without_logprobs(body))
            reply = msgspec.structs.replace(
                again,
                retries=again.retries + reply.retries + 1,
                lost=again.lost + reply.lost + 1,
                was_throttled=again.was_throttled or reply.was_throttled,
                retry_after_s=again.retry_after_s if reply.retry_after_s is None else reply.retry_after_s,
            )
        if not reply.is_ok:
            raise await self._refusal(reply, body)
        if not reply.events:
            payload = parse_object(reply)
            self._raise_error_in(payload, reply, body)
            return observation(reply, [(payload, None)], top=request.top_logprobs), (payload,)
        timed = [(as_object(event.payload), event.at_s) for event in reply.events]
        payloads = tuple(payload for payload, _ in timed)
        for payload in payloads:
            self._raise_error_in(payload, reply, body)
        return observation(reply, timed, top=request.top_logprobs), payloads

    async def _sent(self, request: Request, body: JsonObject) -> Reply:
        if request.streams:
            return await self.transport.stream(request.route, body)
        return await self.transport.post(request.route, body)

    def _raise_error_in(self, payload: JsonObject, reply: Reply, body: JsonObject) -> None:
        """Raises what a server reports inside an answer of status 200 (in a stream it has no other way)."""
        if not payload.get("error"):
            return
        raw = message_in(payload)
        words = self.transport.redactor.clean(raw, body=body)
        if _TOO_LONG.search(raw):
            raise self._too_long(reply, words)
        code = as_count(at(payload, "error", "code"))
        raise Refused(f"{reply.what}: answered 200, and then an error: {words or 'without words'}", status=code)

    async def _refusal(self, reply: Reply, body: JsonObject) -> Exception:
        words = server_message(reply) or (
            reply.data[:MAX_READ].decode("utf-8", "replace") if reply.status == 413 else ""
        )
        clean = self.transport.redactor.clean(words, body=body)
        if reply.status in (400, 413, 422) and (_TOO_LONG.search(words) or b"exceed_context" in reply.data):
            return self._too_long(reply, clean)
        if reply.status in (400, 404) and (_NO_MODEL.search(words) or b"model_not_found" in reply.data):
            hint = await self._listing()
            if body.get("model") != self._checked:
                hint += "; the request itself names it: take `model` out of the prompt (prompts select --drop-model)"
            return WrongModel(f"{reply.what}: the server does not serve the model {body.get('model')!r}", hint=hint)
        return refusal(reply, redactor=self.transport.redactor, body=body)

    def _too_long(self, reply: Reply, words: str) -> PromptTooLong:
        return PromptTooLong(
            f"{reply.what}: the prompt and the tokens to generate do not fit the engine's context: {words}",
            hint="shorten or drop this prompt, or serve the model with a longer context",
        )

    async def _listing(self) -> str:
        try:
            return _names(await self.models(), self.transport.redactor)
        except ServiceError:
            return "the server does not list its models"


def refuse_unsupported(request: Request, *, kind: EngineKind, has_salt: bool, has_bypass: bool) -> None:
    """Raises where a request asks for what an engine cannot do; nothing is dropped in silence.

    Raises:
        UsageError: a salt or a bypass that the engine does not have.
    """
    if request.salt is not None and not has_salt:
        raise UsageError(
            f"an engine of kind {kind} has no cache salt, so no request can choose its key space",
            hint="use --namespace none; bind this engine by a process and directories of its own",
        )
    if request.bypasses_cache and not has_bypass:
        raise UsageError(
            f"an engine of kind {kind} cannot bypass its cache",
            hint="pass --reference URL of a clean second server, or --reference local",
        )


def labels_of(model: ServedModel) -> dict[str, str]:
    """What a model's entry claims, as labels."""
    found = {"root": model.root, "owned_by": model.owner}
    return {name: value for name, value in found.items() if value is not None}


def _served(entry: JsonObject) -> ServedModel | None:
    name = as_text(entry.get("id"))
    if not name:
        return None
    details = as_object(entry.get("meta"))
    return ServedModel(
        name=name,
        aliases=tuple(alias for item in as_list(entry.get("aliases")) if (alias := as_text(item))),
        owner=as_text(entry.get("owned_by")),
        root=as_text(entry.get("root")),
        parent=as_text(entry.get("parent")),
        context_tokens=as_count(entry.get("max_model_len")) or as_count(details.get("n_ctx")),
        details=details,
    )


def _chosen(models: tuple[ServedModel, ...], *, wanted: str | None, transport: Transport) -> ServedModel:
    url, served = transport.url, _names(models, transport.redactor)
    if wanted is None:
        if models and _are_names_of_one(models):
            return models[0]
        if not models:
            raise NoModel(f"{url} serves no model", hint=served)
        raise UsageError(f"{url} serves {len(models)} models, and --model names none", hint=served)
    for model in models:
        if wanted == model.name or wanted in model.aliases:
            return model
    kind = WrongModel if models else NoModel
    raise kind(f"{url} does not serve the model {wanted!r}", hint=served)


def _are_names_of_one(models: tuple[ServedModel, ...]) -> bool:
    """Whether all entries are names of one model; the first is what answers carry.

    vLLM lists each `--served-model-name` as an entry, all with the one path of its weights.

    Source: vLLM 0.32.0, entrypoints/openai/models/serving.py, `show_available_models`.
    """
    first = models[0]
    return len(models) == 1 or (
        first.owner == "vllm"
        and first.root is not None
        and all((model.owner, model.root, model.parent) == (first.owner, first.root, None) for model in models)
    )


def _names(models: tuple[ServedModel, ...], redactor: Redactor) -> str:
    if not models:
        return "it lists no model: is one loaded?"
    listed = ", ".join(repr(redactor.clean(model.name, body=None)[:_MAX_NAME]) for model in models[:_MAX_LISTED])
    more = f" and {len(models) - _MAX_LISTED} more" if len(models) > _MAX_LISTED else ""
    return f"served: {listed}{more}"
