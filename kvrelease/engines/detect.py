"""Opens HTTP engines: the one place that turns a URL into an adapter, asking the server what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import httpx

from kvrelease.config import DEFAULT_TIMEOUT_S
from kvrelease.engines.address import Address, parse_address
from kvrelease.engines.base import EngineClient, EngineKind, RankPin
from kvrelease.engines.compatible import OpenAIClient
from kvrelease.engines.connections import Connections
from kvrelease.engines.foreign import as_list, as_object, as_text
from kvrelease.engines.http import Transport
from kvrelease.engines.llamacpp import LlamaCppClient
from kvrelease.engines.openai import MODELS
from kvrelease.engines.replies import looks_like_html, parse_object, refusal
from kvrelease.engines.retry import BACKOFF_S, MAX_RETRIES
from kvrelease.engines.sglang import SglangClient
from kvrelease.engines.vllm import VllmClient
from kvrelease.errors import UnexpectedReply, UsageError

# `owned_by` of the models that a server lists (vLLM 0.32.0, llama.cpp b11434, SGLang 0.5.23).
_OWNERS = {"vllm": EngineKind.VLLM, "llamacpp": EngineKind.LLAMACPP, "sglang": EngineKind.SGLANG}


async def open_engine(
    url: str | Address,
    *,
    kind: EngineKind | None = None,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    api_key: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_retries: int = MAX_RETRIES,
    backoff_s: float = BACKOFF_S,
    connector: httpx.AsyncBaseTransport | None = None,
    connections: Connections | None = None,
    pin: RankPin | None = None,
    checks_kind: bool = False,
) -> EngineClient:
    """A client of the engine at a URL; the caller closes it (`contextlib.aclosing`).

    Args:
        url: base URL, with or without `/v1`, or the address in it.
        kind: which adapter; None to ask the server. A named kind is not checked, and nothing is sent yet, unless
            `checks_kind` asks for that.
        model: the served model name; None for the only one.
        headers: sent with every request.
        api_key: sent as a bearer token.
        timeout_s: deadline of one call.
        max_retries: of one call.
        backoff_s: first wait between two attempts.
        connector: replaces the network, in tests.
        connections: to the same origin, shared with other clients; None for its own.
        pin: the data-parallel rank that requests are for; None for none.
        checks_kind: a named kind is held against what the server says it is.

    Raises:
        UsageError: a wrong URL, header or kind.
        ServiceError: asked what it is, the server did not answer properly.
    """
    transport = Transport(
        parse_address(url) if isinstance(url, str) else url,
        timeout_s=timeout_s,
        headers=headers,
        api_key=api_key,
        max_retries=max_retries,
        backoff_s=backoff_s,
        connector=connector,
        connections=connections,
        pin=pin,
    )
    try:
        if kind is None:
            kind = await detect_kind(transport)
        elif checks_kind:
            await _require_kind(kind, transport, model=model)
        return _client(kind, transport, model=model)
    except BaseException:
        await transport.aclose()
        raise


async def detect_kind(transport: Transport) -> EngineKind:
    """Which kind of engine answers over a transport.

    Models carry their engine's name; where a gateway hides it, routes that only one engine has decide. Whatever else
    lists models is OPENAI.

    Raises:
        ServiceError: nothing that speaks the OpenAI protocol answers.
    """
    reply = await transport.get(MODELS)
    if not reply.is_ok:
        raise refusal(reply, redactor=transport.redactor)
    models = parse_object(reply).get("data")
    if not isinstance(models, list):
        raise UnexpectedReply(
            f"{reply.what}: the answer has no list of models, so this is no OpenAI-compatible engine",
            hint="check the base URL; name the kind with --engine if it is one after all",
        )
    owners = _owners(models, of=None)
    return owners[0] if owners else await _kind_by_routes(transport)


def _owners(models: Sequence[object], *, of: str | None) -> list[EngineKind]:
    """The kinds that entries of a list of models name, in their order; of the model `of` alone where it is listed.

    Proxies give names of their own (LiteLLM and OpenAI "openai", llama-swap its own): those say nothing.
    """
    entries = [as_object(entry) for entry in models]
    named = [entry for entry in entries if of is not None and entry.get("id") == of]
    told = (as_text(entry.get("owned_by")) for entry in named or entries)
    return [_OWNERS[owner] for owner in told if owner in _OWNERS]


async def _require_kind(kind: EngineKind, transport: Transport, *, model: str | None) -> None:
    """Raises where the server says that it is an engine of another kind than the one that was named.

    The server's list of models says so, and no route of the named kind's own speaks against it: a router may list
    models as those of another engine than the one behind it. Where nothing is told the user is believed, and any engine
    may be asked by the OpenAI protocol alone.

    Raises:
        UsageError: it is another kind.
        ServiceError: nobody answers at all.
    """
    if kind in (EngineKind.OPENAI, EngineKind.LOCAL):
        return
    reply = await transport.get(MODELS, is_optional=True)
    if not reply.is_ok or looks_like_html(reply.data, reply.headers):
        return
    try:
        listed = parse_object(reply).get("data")
    except UnexpectedReply:
        return
    owners = _owners(as_list(listed), of=model)
    if not owners or kind in owners or await _kind_by_routes(transport) is kind:
        return
    raise UsageError(
        f"{transport.url} lists its models as those of {owners[0]}, and --engine names {kind}",
        hint=f"leave --engine out, or name {owners[0]}",
    )


async def _kind_by_routes(transport: Transport) -> EngineKind:
    if "build_info" in as_object(await transport.find_object("/props")):
        return EngineKind.LLAMACPP
    # The second is the older name; newer releases answer to both.
    for path in ("/model_info", "/get_model_info"):
        if "model_path" in as_object(await transport.find_object(path)):
            return EngineKind.SGLANG
    # TensorRT-LLM has /version too; only vLLM counts under this prefix.
    metrics = await transport.get("/metrics", is_optional=True)
    if metrics.is_ok and not looks_like_html(metrics.data, metrics.headers) and b"\nvllm:" in metrics.data:
        return EngineKind.VLLM
    return EngineKind.OPENAI


def _client(kind: EngineKind, transport: Transport, *, model: str | None) -> EngineClient:
    match kind:
        case EngineKind.VLLM:
            return VllmClient(transport, model=model)
        case EngineKind.LLAMACPP:
            return LlamaCppClient(transport, model=model)
        case EngineKind.OPENAI:
            return OpenAIClient(transport, model=model)
        case EngineKind.SGLANG:
            return SglangClient(transport, model=model)
        case EngineKind.LOCAL:
            raise UsageError(
                "the in-process engine has no URL",
                hint="name a model directory with --release instead of --engine-url",
            )
        case _:
            assert_never(kind)
