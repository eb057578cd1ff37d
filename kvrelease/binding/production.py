"""What users really send: the request that every probe and every prewarming request starts from."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind, Request, Route
from kvrelease.errors import UsageError
from kvrelease.ledger.records import is_namespace_text
from kvrelease.workload.key_space import SALT_FIELDS
from kvrelease.workload.prompt_set import Prompt, PromptKind

# Greedy, and every sampling parameter said out loud: an engine's own defaults come from generation_config.json, and
# may change with the release. None of them touches KV.
_GREEDY: JsonObject = {"temperature": 0, "top_p": 1, "n": 1, "presence_penalty": 0, "frequency_penalty": 0}

# Beyond the OpenAI protocol (vLLM 0.32.0, sampling_params.py; llama.cpp b11434, tools/server/README.md). Servers that
# are only known to be compatible may refuse unknown fields, and get none.
_OWN_GREEDY: dict[EngineKind, JsonObject] = {
    EngineKind.VLLM: {"top_k": 0, "min_p": 0, "repetition_penalty": 1},
    EngineKind.LLAMACPP: {"repeat_penalty": 1},
}

_ROUTES = {PromptKind.CHAT: Route.CHAT, PromptKind.COMPLETIONS: Route.COMPLETIONS}


def production_request(
    prompt: Prompt,
    *,
    production: Production,
    model: str,
    kind: EngineKind,
    salt: str | None,
    max_tokens: int,
    top_logprobs: int = 0,
    streams: bool = False,
) -> Request:
    """The prompt with production's exact body and route, generating `max_tokens` tokens greedily.

    Args:
        prompt: its body is sent whole.
        production: body fields that users add.
        model: the served model, where neither production's body nor the prompt names one.
        kind: of the engine, for sampling parameters of its own.
        salt: the key space, None for unsalted.
        max_tokens: tokens to generate.
        top_logprobs: k of the top-k log-probabilities.
        streams: ask for a stream, to time the first token.
    """
    body = production_body(prompt.body, production=production, model=model, kind=kind, whose=f"prompt {prompt.id!r}")
    return Request(
        route=_ROUTES[prompt.kind],
        body=body,
        salt=salt,
        max_tokens=max_tokens,
        top_logprobs=top_logprobs,
        streams=streams,
    )


def stray_namespaces(body: JsonObject) -> tuple[str, ...]:
    """Names of fields that hold a namespace, and are no salt of any engine: a salt that is misspelt, as a rule.

    vLLM and SGLang accept unknown fields and ignore them, so that nobody is told.
    """
    return tuple(
        name
        for name, value in body.items()
        if name not in SALT_FIELDS and isinstance(value, str) and is_namespace_text(value)
    )


def production_body(
    own: JsonObject, *, production: Production, model: str, kind: EngineKind, whose: str = "a request"
) -> JsonObject:
    """A body as production sends it, made greedy.

    Args:
        own: messages or prompt, and what else this request brings.
        production: body fields that users add.
        model: the served model, where neither production's body nor this request names one.
        kind: of the engine.
        whose: how messages name this request.

    Raises:
        UsageError: the body chooses a key space by itself, or has engines skip their cache.
    """
    body = {**production.body, **own}
    for field in SALT_FIELDS:
        if field in body:
            raise UsageError(
                f"{whose} brings a {field} of its own, {_origin(field, own)}: its key space would not be the one that "
                "is judged",
                hint="take it out, and say which salt users send under production.salt in kvrelease.yaml",
            )
    if body.get("echo"):
        raise UsageError(
            f"{whose} asks for `echo`, {_origin('echo', own)}: it returns the prompt's log-probabilities, and engines "
            "skip the cache for it",
            hint="take `echo` out",
        )
    return {**body, **_GREEDY, **_OWN_GREEDY.get(kind, {}), "model": body.get("model") or model}


def _origin(field: str, own: JsonObject) -> str:
    return "from the prompt set" if field in own else "from production.body in kvrelease.yaml"
