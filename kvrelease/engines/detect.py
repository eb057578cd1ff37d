"""Opens HTTP engines: the one place that turns a URL into an adapter, asking the server what it is."""

from __future__ import annotations

from collections.abc import Mapping
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
) -> EngineClient:
    """A client of the engine at a URL; the caller closes it (`contextlib.aclosing`).

    Args:
        url: base URL, with or without `/v1`, or the address in it.
        kind: which adapter; None to ask the server. A named kind is not checked, and nothing is sent yet.
        model: the served model name; None for the only one.
        headers: sent with every request.
        api_key: sent as a bearer token.
        timeout_s: deadline of one call.
        max_retries: of one call.
        backoff_s: first wait between two attempts.
        connector: replaces the network, in tests.
        connections: to the same origin, shared with other clients; None for its own.
        pin: the data-parallel rank that requests are for; None for none.

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
        return _client(kind or await detect_kind(transport), transport, model=model)
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
    for entry in as_list(models):
        owner = as_text(as_object(entry).get("owned_by"))
        if owner in _OWNERS:
            return _OWNERS[owner]
    return await _kind_by_routes(transport)


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
