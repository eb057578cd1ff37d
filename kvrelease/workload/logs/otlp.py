"""OTLP/JSON: the spans and log records of a line, with their attributes as plain values.

Source:
    https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding and
    https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/; the flat form with a map of attributes is what the
    SDKs' console exporters write (`ReadableSpan.to_json`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.body import MAX_NESTING
from kvrelease.workload.place import Place, kind_name

_GROUPS = (
    ("resourceSpans", ("scopeSpans", "instrumentationLibrarySpans"), "spans"),
    ("resourceLogs", ("scopeLogs",), "logRecords"),
)


class Event(msgspec.Struct, frozen=True):
    """Something that a span says of itself.

    Attributes:
        name: of the event.
        attributes: plain values by name.
    """

    name: str
    attributes: JsonObject


class Span(msgspec.Struct, frozen=True):
    """A span, or a log record, which has no events.

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
    return any(group in line for group, _, _ in _GROUPS) or ("attributes" in line and "name" in line)


def spans_of(line: JsonObject, *, place: Place) -> Iterator[Span]:
    """The spans and log records of a line, in order.

    Raises:
        InputError: a list or a map is something else.
    """
    if "attributes" in line:
        yield _span(line, place=place)
    for group, scopes, items in _GROUPS:
        for resource in _maps(line.get(group), path=group, place=place):
            for scope in scopes:
                for one in _maps(resource.get(scope), path=scope, place=place):
                    for item in _maps(one.get(items), path=items, place=place):
                        yield _span(item, place=place)


def _span(item: JsonObject, *, place: Place) -> Span:
    events = tuple(
        Event(str(event.get("name")), _attributes(event.get("attributes"), place=place))
        for event in _maps(item.get("events"), path="events", place=place)
    )
    times = (item.get(name) for name in ("startTimeUnixNano", "timeUnixNano", "start_time"))
    return Span(
        _attributes(item.get("attributes"), place=place), events, next((one for one in times if one is not None), None)
    )


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
