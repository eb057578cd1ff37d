"""Messages as OpenTelemetry's GenAI conventions write them, made OpenAI's; the sources are in `otel.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.body import message_text
from kvrelease.workload.logs.otlp import Event
from kvrelease.workload.place import Place, kind_name, quoted
from kvrelease.workload.prompt_set import canonical_json

_INDEXED = re.compile(r"gen_ai\.prompt\.(\d{1,4})\.(role|content|tool_call_id)")
_INDEXED_CALL = re.compile(r"gen_ai\.prompt\.(\d{1,4})\.tool_calls\.(\d{1,4})\.(id|name|arguments)")
_INDEXED_TOOL = re.compile(r"(?:llm|gen_ai)\.request\.functions\.(\d{1,4})\.(name|description|parameters)")
_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")


def decoded(value: object) -> object:
    """The value of an attribute that holds JSON as text where structures cannot be recorded; other text stays."""
    if not isinstance(value, str):
        return value
    try:
        found: object = msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return value
    return found if isinstance(found, list | dict) else value


def chat_messages(value: object, *, place: Place) -> list[JsonObject]:
    """`gen_ai.input.messages` as OpenAI messages; an answer of a tool becomes a message of its own.

    Raises:
        InputError: another shape, or a part that a text prompt cannot hold.
    """
    if not isinstance(value, list):
        raise place.error(f"`gen_ai.input.messages` is {kind_name(value)}, expected a list of messages")
    return [one for message in value for one in _messages(message, place=place)]


def system_messages(value: object, *, place: Place) -> list[JsonObject]:
    """`gen_ai.system_instructions` as one system message; none for nothing.

    Raises:
        InputError: another shape.
    """
    match value:
        case None | [] | "":
            return []
        case str():
            return [{"role": "system", "content": value}]
        case list():
            return _messages({"role": "system", "parts": value}, place=place)
        case _:
            raise place.error(f"`gen_ai.system_instructions` is {kind_name(value)}, expected a list of parts")


def prompt_messages(value: object, *, place: Place) -> list[JsonObject]:
    """`gen_ai.prompt`: messages, one message, or plain text.

    Raises:
        InputError: another shape.
    """
    match value:
        case str():
            return [{"role": "user", "content": value}]
        case dict():
            return _messages(value, place=place)
        case list():
            return [one for message in value for one in _messages(message, place=place)]
        case _:
            raise place.error(f"`gen_ai.prompt` is {kind_name(value)}, expected messages")


def indexed_messages(attributes: Mapping[str, object]) -> list[JsonObject]:
    """The messages of `gen_ai.prompt.N.role`, `….content` and `….tool_calls.M.*`; empty without any."""
    messages: dict[int, JsonObject] = {}
    calls: dict[int, dict[int, JsonObject]] = {}
    for name, value in attributes.items():
        if (match := _INDEXED.fullmatch(name)) and isinstance(value, str):
            messages.setdefault(int(match[1]), {"role": "user", "content": None})[match[2]] = value
        elif (match := _INDEXED_CALL.fullmatch(name)) and isinstance(value, str):
            calls.setdefault(int(match[1]), {}).setdefault(int(match[2]), {})[match[3]] = value
    for number, found in calls.items():
        message = messages.setdefault(number, {"role": "assistant", "content": None})
        message["tool_calls"] = [
            _call(call.get("name"), call.get("arguments", {}), call_id=call.get("id"))
            for call in (found[index] for index in sorted(found))
        ]
    return [messages[number] for number in sorted(messages)]


def event_messages(events: Iterable[Event], *, place: Place) -> list[JsonObject]:
    """The messages of span events `gen_ai.user.message` and the like.

    Raises:
        InputError: a message of another shape.
    """
    messages = []
    for event in events:
        if match := _EVENT.fullmatch(event.name):
            told = decoded(event.attributes.get("gen_ai.event.content"))
            fields = told if isinstance(told, dict) else event.attributes
            message = {"role": match[1], **{name: fields[name] for name in _MESSAGE_FIELDS if name in fields}}
            messages += _messages(message, place=place)
    return messages


_MESSAGE_FIELDS = ("role", "content", "parts", "tool_calls", "id", "tool_call_id", "name")


def tools_of(attributes: Mapping[str, object], *, place: Place) -> list[JsonObject]:
    """`gen_ai.tool.definitions`, or the older indexed functions, as OpenAI tools.

    Raises:
        InputError: another shape.
    """
    told = decoded(attributes.get("gen_ai.tool.definitions"))
    if told is None:
        found: dict[int, JsonObject] = {}
        for name, value in attributes.items():
            if match := _INDEXED_TOOL.fullmatch(name):
                found.setdefault(int(match[1]), {})[match[2]] = decoded(value)
        told = [found[number] for number in sorted(found)]
    if not isinstance(told, list) or not all(isinstance(tool, dict) for tool in told):
        raise place.error("`gen_ai.tool.definitions` is no list of tools")
    return [_tool(tool) for tool in told]


def _tool(tool: JsonObject) -> JsonObject:
    if "function" in tool:
        return tool
    kept = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": kept}


def _messages(message: object, *, place: Place) -> list[JsonObject]:
    if not isinstance(message, dict):
        raise place.error(f"a message is {kind_name(message)}, expected a map with `role`")
    parts = message.get("parts")
    if parts is None:
        kept = {name: value for name, value in message.items() if name in _MESSAGE_FIELDS and name != "id"}
        if message.get("role") == "tool" and "id" in message:
            kept["tool_call_id"] = message["id"]
        return [kept]
    if not isinstance(parts, list):
        raise place.error(f"the parts of a message are {kind_name(parts)}, expected a list")
    return _of_parts(message, parts, place=place)


def _of_parts(message: JsonObject, parts: list[object], *, place: Place) -> list[JsonObject]:
    content: list[object] = []
    calls: list[object] = []
    answers: list[JsonObject] = []
    for part in parts:
        match part:
            case {"type": "text", "content": str(text)}:
                content.append({"type": "text", "text": text})
            case {"type": "reasoning"}:
                pass  # what a model thought is no part of the next prompt, with the templates we know
            case {"type": "tool_call", "name": str(name), **rest}:
                calls.append(_call(name, rest.get("arguments", {}), call_id=rest.get("id")))
            case {"type": "tool_call_response", **rest}:
                answers.append(_answer(rest.get("response", rest.get("result")), call_id=rest.get("id")))
            case {"type": "uri", "modality": "image", "uri": str(url)}:
                content.append({"type": "image_url", "image_url": {"url": url}})
            case {"type": "blob", "modality": "image", "content": str(data), "mime_type": str(kind)}:
                content.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
            case _:
                found = quoted(part.get("type")) if isinstance(part, dict) else kind_name(part)
                raise place.error(f"a message has a part of type {found}, which prompts cannot hold")
    own: JsonObject = {"role": message.get("role")}
    has_text_only = all(isinstance(part, dict) and part["type"] == "text" for part in content)
    own["content"] = message_text({"content": content}) if has_text_only and content else content or None
    if calls:
        own["tool_calls"] = calls
    return [own, *answers] if content or calls or not answers else answers


def _answer(answer: object, *, call_id: object) -> JsonObject:
    text = answer if isinstance(answer, str) else canonical_json(answer).decode()
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _call(name: object, arguments: object, *, call_id: object) -> JsonObject:
    text = arguments if isinstance(arguments, str) else canonical_json(arguments).decode()
    call: JsonObject = {"type": "function", "function": {"name": name, "arguments": text}}
    return {"id": call_id, **call} if call_id is not None else call
