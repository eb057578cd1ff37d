"""LiteLLM's standard logging payload, one a line.

Calls that no engine computed a prompt for are passed over: failed ones, answers from LiteLLM's own cache, embeddings
and the like. Where the messages were redacted, time and length remain.

Source:
    https://docs.litellm.ai/docs/proxy/logging_spec; `StandardLoggingPayload` of BerriAI/litellm, types/utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvrelease.artifacts import JsonObject
from kvrelease.workload.logged import LoggedRequest, PassedOver
from kvrelease.workload.logs.json_format import JsonFormat
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.request import logged_request, place_of, read_count, read_model, read_time
from kvrelease.workload.place import Place, kind_name

# Of these a payload has most; another log may have one by chance.
_KEYS = ("call_type", "model_parameters", "response_cost", "litellm_call_id")
_CHAT = ("completion", "acompletion")
_TEXT = ("text_completion", "atext_completion")
_REDACTED = "redacted-by-litellm"
# Of the client's own parameters, those that are no part of the body, or may hold a key.
_NOT_SENT = frozenset(
    {"extra_headers", "headers", "api_key", "extra_body", "extra_query", "model", "messages", "prompt"}
)


def litellm_requests(line: JsonObject, *, place: Place) -> Iterator[LoggedRequest | PassedOver]:
    """The request of a payload, or why a call reached no engine.

    Raises:
        InputError: a field is of another shape.
    """
    inner = line.get("standard_logging_object")
    payload: dict[str, object] = inner if isinstance(inner, dict) else line
    call = payload.get("call_type", _CHAT[0])
    if (reason := _passed_over(payload, call=call)) is not None:
        yield reason
        return
    place = place_of(payload.get("id"), place=place)
    at_s = read_time(payload.get("startTime"), place=place, field="startTime")
    tokens = read_count(payload.get("prompt_tokens"), place=place, field="prompt_tokens")
    model = _model(payload, place=place)
    asked = payload.get("messages")
    if asked is None or _is_redacted(asked):
        yield LoggedRequest(
            place=place, at_s=at_s, kind=None, body=None, model=model, salt=None, prompt_tokens=tokens or None
        )
        return
    yield logged_request(
        {**_parameters(payload, place=place), **_prompt(asked, is_text=call in _TEXT)},
        place=place,
        at_s=at_s,
        model=model,
        prompt_tokens=tokens or None,  # LiteLLM writes 0 for what it was not told
    )


def _passed_over(payload: dict[str, object], *, call: object) -> PassedOver | None:
    if call not in (*_CHAT, *_TEXT):
        return PassedOver.OTHER_CALL
    if payload.get("status") == "failure":
        return PassedOver.FAILED
    return PassedOver.OWN_CACHE if payload.get("cache_hit") is True else None


def _prompt(asked: object, *, is_text: bool) -> JsonObject:
    if isinstance(asked, str) or is_text:
        match asked:
            case [{"content": str(text)}]:  # how LiteLLM keeps the prompt of a completions call
                return {"prompt": text}
            case _:
                return {"prompt": asked}
    return {"messages": asked}


def _is_redacted(asked: object) -> bool:
    match asked:
        case str(text) | [{"content": str(text)}, *_]:
            return text == _REDACTED
        case _:
            return False


def _parameters(payload: dict[str, object], *, place: Place) -> JsonObject:
    given = payload.get("model_parameters") or {}
    if not isinstance(given, dict):
        raise place.error(f"`model_parameters` is {kind_name(given)}, expected a map")
    extra = given.get("extra_body")
    own = {name: value for name, value in given.items() if name not in _NOT_SENT and value is not None}
    return {**own, **extra} if isinstance(extra, dict) else own


def _model(payload: dict[str, object], *, place: Place) -> str | None:
    """The name that the engine was asked for: LiteLLM's, without the provider before it."""
    model = read_model(payload.get("model"), place=place)
    provider = payload.get("custom_llm_provider")
    if model is not None and isinstance(provider, str) and model.startswith(f"{provider}/"):
        return model.removeprefix(f"{provider}/") or None
    return model


def _is_litellm(line: JsonObject) -> bool:
    return "standard_logging_object" in line or sum(key in line for key in _KEYS) >= 2


def _has_a_mark(line: JsonObject) -> bool:
    """Where others of the log are payloads, one with fewer marks is as well; a bare body is none."""
    return any(key in line for key in _KEYS)


FORMAT = JsonFormat(LogFormat.LITELLM, _is_litellm, litellm_requests, _has_a_mark)
