"""OpenTelemetry GenAI spans: the requests that they tell of.

Spans of no inference (tools, agents, embeddings, web requests) are passed over. An inference whose content was not
captured, which is the default of instrumentations, keeps its time and length.

What a span tells is not the body to the byte: chat template arguments and the like are not in it.

Source:
    open-telemetry/semantic-conventions, docs/gen-ai: gen-ai-spans.md, gen-ai-events.md, gen-ai-input-messages.json,
    gen-ai-system-instructions.json, gen-ai-tool-definitions.json. Older forms: span events `gen_ai.content.prompt`
    (1.27) and `gen_ai.user.message` … (1.28 to 1.36); attributes `gen_ai.prompt.N.*` of traceloop/openllmetry.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvrelease.artifacts import JsonObject
from kvrelease.workload.logged import LoggedRequest, PassedOver
from kvrelease.workload.logs.json_format import JsonFormat, Step
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.otel_messages import (
    chat_messages,
    decoded,
    event_messages,
    indexed_messages,
    prompt_messages,
    system_messages,
    tools_of,
)
from kvrelease.workload.logs.otlp import Span, is_otlp, spans_of, unjoined_messages
from kvrelease.workload.logs.request import chat, logged_request, read_count, read_model, read_time
from kvrelease.workload.place import Place

_CHAT = ("chat", "generate_content")
_TEXT = "text_completion"
_REQUEST = "gen_ai.request.model"
_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")


def otel_requests(line: JsonObject, *, place: Place) -> Iterator[Step]:
    """The requests of a line, in order, the spans that are none, and what of it could not be joined.

    Raises:
        InputError: a field is of another shape.
    """
    for span in spans_of(line, place=place):
        operation = span.attributes.get("gen_ai.operation.name")
        if operation in (*_CHAT, _TEXT) or (operation is None and _REQUEST in span.attributes):
            yield _request(span, is_text=operation == _TEXT, place=place)
        else:
            yield PassedOver.OTHER_SPAN
    unjoined = unjoined_messages(line, place=place)
    if unjoined:
        yield place.error(
            f"{unjoined} of its log records are messages without `traceId` and `spanId`: what belongs together is not "
            "known",
            hint="have the instrumentation record messages on spans",
        )


def _request(span: Span, *, is_text: bool, place: Place) -> LoggedRequest:
    told = span.attributes
    at_s = read_time(span.time, place=place, field="start time")
    model = read_model(told.get(_REQUEST), place=place)
    tokens = read_count(next((told[name] for name in _TOKENS if name in told), None), place=place, field=_TOKENS[0])
    messages = _messages(span, place=place)
    if not messages:
        return LoggedRequest(place=place, at_s=at_s, kind=None, body=None, model=model, salt=None, prompt_tokens=tokens)
    limit = told.get("gen_ai.request.max_tokens")
    match messages:
        case [{"role": "user", "content": str(text)}] if is_text:
            body: JsonObject = {"prompt": text}
        case _:
            body = chat(messages, tools=tools_of(told, place=place) or None)
    if isinstance(limit, int):
        body["max_tokens"] = limit
    return logged_request(body, place=place, at_s=at_s, model=model, prompt_tokens=tokens)


def _messages(span: Span, *, place: Place) -> list[JsonObject]:
    told = span.attributes
    current = decoded(told.get("gen_ai.input.messages"))
    if current is not None:
        opening = system_messages(decoded(told.get("gen_ai.system_instructions")), place=place)
        return [*opening, *chat_messages(current, place=place)]
    for value in (told.get("gen_ai.prompt"), *_content_events(span)):
        if value is not None:
            return prompt_messages(decoded(value), place=place)
    return indexed_messages(told) or event_messages(span.events, place=place)


def _content_events(span: Span) -> Iterator[object]:
    for event in span.events:
        if event.name == "gen_ai.content.prompt":
            yield event.attributes.get("gen_ai.prompt", event.attributes.get("content"))


FORMAT = JsonFormat(LogFormat.OTEL, is_otlp, otel_requests)
