"""OTLP/JSON: the spans and log records of a line, with their attributes as plain values.

Source:
    https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding and
    https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/; the flat form with a map of attributes is what the
    SDKs' console exporters write (`ReadableSpan.to_json`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.body import MAX_NESTING
from kvrelease.workload.place import Place, kind_name

_SPANS = ("resourceSpans", ("scopeSpans", "instrumentationLibrarySpans"), "spans")
_RECORDS = ("resourceLogs", ("scopeLogs",), "logRecords")
# One of these tells an inference.
_INFERENCE = ("gen_ai.operation.name", "gen_ai.request.model")
_MESSAGE = re.compile(r"gen_ai\.(?:system|user|assistant|tool)\.message")


class Event(msgspec.Struct, frozen=True):
    """Something that a span says of itself.

    Attributes:
        name: of the event.
        attributes: plain values by name.
    """

    name: str
    attributes: JsonObject


class Span(msgspec.Struct, frozen=True):
    """A span, or a log record.

    Attributes:
        attributes: plain values by name.
        events: in order.
        time: when it began, as the line has it.
    """

    attributes: JsonObject
    events: tuple[Event, ...]
    time: object


def is_otlp(line: JsonObject) -> bool:
    """Whether a line is of this format."""
    return any(group in line for group in (_SPANS[0], _RECORDS[0])) or ("attributes" in line and "name" in line)


def spans_of(line: JsonObject, *, place: Place) -> Iterator[Span]:
    """The spans of a line, then its log records, in order.

    Raises:
        InputError: a list or a map is something else.
    """
    if "attributes" in line:
        yield _span(line, place=place)
    for item in _items(line, *_SPANS, place=place):
        yield _span(item, place=place)
    yield from _of_records(_items(line, *_RECORDS, place=place), place=place)


def unjoined_messages(line: JsonObject, *, place: Place) -> int:
    """How many messages are log records of their own that name no span, so that nobody knows what belongs together."""
    return sum(_is_message(item) and _span_key(item) is None for item in _items(line, *_RECORDS, place=place))


def _of_records(items: Iterator[JsonObject], *, place: Place) -> Iterator[Span]:
    """Log records, those that are one message each put together by the span that they name.

    They become events of the record of the inference itself, where the line has it, else of a span of their own.
    """
    spans: list[tuple[tuple[str, str] | None, Span]] = []
    messages: dict[tuple[str, str], list[JsonObject]] = {}
    for item in items:
        key = _span_key(item)
        if not _is_message(item):
            spans.append((key, _span(item, place=place)))
        elif key is not None:
            messages.setdefault(key, []).append(item)
    for key, span in spans:
        own = messages.pop(key, []) if key is not None and any(name in span.attributes for name in _INFERENCE) else []
        yield msgspec.structs.replace(span, events=(*span.events, *_message_events(own, place=place)))
    for own in messages.values():
        yield Span({_INFERENCE[0]: "chat"}, _message_events(own, place=place), _time(own[0]))


def _message_events(items: list[JsonObject], *, place: Place) -> tuple[Event, ...]:
    return tuple(
        Event(
            _event_name(item), body if isinstance(body := _value(item.get("body"), place=place, depth=0), dict) else {}
        )
        for item in items
    )


def _is_message(item: JsonObject) -> bool:
    return _MESSAGE.fullmatch(_event_name(item)) is not None


def _event_name(item: JsonObject) -> str:
    """The name of an event that is a log record; releases before 1.7 of the protocol have it among the attributes."""
    if isinstance(item.get("eventName"), str):
        return str(item["eventName"])
    pairs = item.get("attributes")
    for pair in pairs if isinstance(pairs, list) else []:
        match pair:
            case {"key": "event.name", "value": {"stringValue": str(name)}}:
                return name
    return ""


def _span_key(item: JsonObject) -> tuple[str, str] | None:
    trace, span = item.get("traceId"), item.get("spanId")
    return (trace, span) if isinstance(trace, str) and isinstance(span, str) and trace and span else None


def _items(line: JsonObject, group: str, scopes: tuple[str, ...], items: str, *, place: Place) -> Iterator[JsonObject]:
    for resource in _maps(line.get(group), path=group, place=place):
        for scope in scopes:
            for one in _maps(resource.get(scope), path=scope, place=place):
                yield from _maps(one.get(items), path=items, place=place)


def _span(item: JsonObject, *, place: Place) -> Span:
    events = tuple(
        Event(str(event.get("name")), _attributes(event.get("attributes"), place=place))
        for event in _maps(item.get("events"), path="events", place=place)
    )
    return Span(_attributes(item.get("attributes"), place=place), events, _time(item))


def _time(item: JsonObject) -> object:
    times = (item.get(name) for name in ("startTimeUnixNano", "timeUnixNano", "start_time"))
    return next((one for one in times if one is not None), None)


def _maps(value: object, *, path: str, place: Place) -> list[JsonObject]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise place.error(f"`{path}` is {kind_name(value)}, expected a list")
    for item in value:
        if not isinstance(item, dict):
            raise place.error(f"`{path}` holds {kind_name(item)}, expected maps")
    return value


def _attributes(value: object, *, place: Place) -> JsonObject:
    if isinstance(value, dict):
        return value
    return _pairs(value, place=place, depth=0)


def _pairs(value: object, *, place: Place, depth: int) -> JsonObject:
    pairs = _maps(value, path="attributes", place=place)
    return {str(pair.get("key")): _value(pair.get("value"), place=place, depth=depth) for pair in pairs}


def _value(value: object, *, place: Place, depth: int) -> object:
    """An `AnyValue`, which holds one field at most."""
    if depth > MAX_NESTING:
        raise place.error(f"an attribute is nested deeper than {MAX_NESTING} levels")
    match value:
        case {"intValue": str(digits)} if digits.removeprefix("-").isdecimal() and len(digits) <= 20:
            return int(digits)
        case (
            {"stringValue": str(plain)}
            | {"intValue": int(plain)}
            | {"doubleValue": int(plain) | float(plain)}
            | {"boolValue": bool(plain)}
        ):
            return plain
        case {"arrayValue": {"values": list(items)}}:
            return [_value(item, place=place, depth=depth + 1) for item in items]
        case {"kvlistValue": {"values": list(items)}}:
            return _pairs(items, place=place, depth=depth + 1)
        case _:
            return None
