"""OpenAI chat and completions bodies: what we accept, and their text."""

from __future__ import annotations

import math

import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.workload.place import Place, did_you_mean, kind_name, quoted
from kvrelease.workload.prompt_set import PromptKind, canonical_json

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# A request body is flat; 64 levels leave room for the JSON schemas of tools, and keep recursion far from its limit.
MAX_NESTING = 64
_INT_RANGE = range(-(2**63), 2**64)  # what JSON encoders and servers agree on
_IMAGE_URLS = ("http://", "https://", "data:")
_MEDIA = {"image": "an image", "audio": "audio", "video": "video", "file": "a file"}


def as_json(value: object, *, place: Place, path: str, depth: int = 0) -> object:
    """`value` as pure JSON.

    Args:
        value: what a YAML or JSON parser made.
        place: for messages.
        path: dotted keys that lead to it, for messages.
        depth: of `value` below the body.

    Raises:
        PromptSetError: a date, bytes, a key that is not text, NaN, a number or text that JSON cannot hold, or deep
            nesting.
    """
    if depth > MAX_NESTING:
        raise place.error(f"{path} is nested deeper than {MAX_NESTING} levels")
    match value:
        case None | bool():
            return value
        case str():
            return _utf8(value, place=place, path=path)
        case int():
            if value not in _INT_RANGE:
                raise place.error(f"{path} is a number of more than 64 bits, which JSON bodies cannot carry")
            return value
        case float():
            if not math.isfinite(value):
                raise place.error(f"{path} is NaN or infinite, which JSON bodies cannot carry")
            return value
        case list():
            return [as_json(item, place=place, path=f"{path}[{i}]", depth=depth + 1) for i, item in enumerate(value)]
        case dict():
            return as_object(value, place=place, path=path, depth=depth)
        case _:
            raise place.error(
                f"{path} is {kind_name(value)}, which JSON bodies cannot carry",
                hint="put it in quotes to keep it as text",
            )


def as_object(value: object, *, place: Place, path: str, depth: int = 0) -> JsonObject:
    """`value` as a JSON object.

    Raises:
        PromptSetError: it is no map, or `as_json` refuses something in it.
    """
    if not isinstance(value, dict):
        raise place.error(f"{path} is {kind_name(value)}, expected a map")
    result: JsonObject = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise place.error(
                f"{path} has the key {quoted(key)}, which is {kind_name(key)}", hint="put the key in quotes"
            )
        _utf8(key, place=place, path=f"a key of {path}")
        result[key] = as_json(item, place=place, path=f"{path}.{key[:40]}", depth=depth + 1)
    return result


def _utf8(text: str, *, place: Place, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise place.error(
            f"{path} holds half of a surrogate pair (character {error.start + 1}), which is no valid text",
            hint="write the character itself, or both halves of the pair",
        ) from error
    return text


def check_body(body: JsonObject, *, place: Place) -> PromptKind:
    """The route that a body is for, after checking what decides its prompt.

    Raises:
        PromptSetError: neither or both of `messages` and `prompt`, a role we do not know, media other than images by
            reference, an empty prompt or a batch of several.
    """
    has_messages, has_prompt = "messages" in body, "prompt" in body
    if has_messages and has_prompt:
        raise place.error(
            "it has both `messages` and `prompt`", hint="keep `messages` for chat, `prompt` for completions"
        )
    if has_messages:
        _check_messages(body["messages"], place=place)
        return PromptKind.CHAT
    if has_prompt:
        _check_completion_prompt(body["prompt"], place=place)
        return PromptKind.COMPLETIONS
    if "input" in body:
        raise place.error(
            "it has `input`, the field of the Responses API, and neither `messages` nor `prompt`",
            hint="write it as a chat completions body, with `messages`",
        )
    raise place.error(
        "it has neither `messages` (chat) nor `prompt` (completions)", hint="see docs/prompt-sets.md for the formats"
    )


def _check_messages(messages: object, *, place: Place) -> None:
    if not isinstance(messages, list):
        raise place.error(f"`messages` is {kind_name(messages)}, expected a list")
    if not messages:
        raise place.error("`messages` is empty", hint="give at least one message with `role` and `content`")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise place.error(f"message {number} is {kind_name(message)}, expected a map with `role` and `content`")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            found = f"the role {quoted(role)}" if isinstance(role, str) else "no role"
            raise place.error(f"message {number} has {found}", hint=did_you_mean(role, ROLES))
        content = message.get("content")
        match content:
            case str():
                pass
            case None if role == "assistant":
                pass  # a turn that only calls tools
            case None:
                raise place.error(f"message {number} ({role}) has no `content`")
            case list():
                _check_parts(content, number=number, place=place)
            case _:
                raise place.error(f"the content of message {number} ({role}) is {kind_name(content)}, expected text")


def _check_parts(parts: list[object], *, number: int, place: Place) -> None:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part, dict) and isinstance(part.get("text"), str):
            continue
        if kind == "image_url" and isinstance(part, dict):
            _check_image(part, number=number, place=place)
            continue
        if not isinstance(kind, str) or kind == "text":
            raise place.error(f"message {number} has a content part without `type: text` and `text`")
        media = next((name for word, name in _MEDIA.items() if word in kind), "something other than text")
        raise place.error(
            f"message {number} carries {media} (part type {quoted(kind)}); prompts hold text, and images "
            "by reference (`image_url`)",
            hint="leave this prompt out, or replace the part by text",
        )


def _check_image(part: JsonObject, *, number: int, place: Place) -> None:
    url = image_url(part)
    if url is None or not url.startswith(_IMAGE_URLS):
        raise place.error(
            f"message {number} carries an image without an http(s) or data: URL",
            hint="write {type: image_url, image_url: {url: https://…}}",
        )


def image_url(part: object) -> str | None:
    """The URL of an image part; None for any other part, and for an image without one."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    reference = part.get("image_url")
    url = reference.get("url") if isinstance(reference, dict) else reference
    return url if isinstance(url, str) else None


def image_mark(url: str) -> str:
    """What stands for an image in texts of ours: a digest of its URL, so that no address and no picture is shown."""
    return f"<image {blake3.blake3(url.encode()).hexdigest(length=8)}>"


def images_of(body: JsonObject) -> tuple[str, ...]:
    """The URLs of the images of a checked body, in order."""
    messages = body.get("messages")
    contents = [message.get("content") for message in messages] if isinstance(messages, list) else []
    urls = (image_url(part) for content in contents if isinstance(content, list) for part in content)
    return tuple(url for url in urls if url is not None)


def _check_completion_prompt(prompt: object, *, place: Place) -> None:
    match prompt:
        case str() if prompt:
            return
        case [str(text)] if text:
            return
        case [int(), *_] if all(type(token) is int and 0 <= token < 2**32 for token in prompt):
            return
        case "" | [] | [""]:
            raise place.error("`prompt` is empty")
        case [str() | list(), _, *_]:
            raise place.error(
                f"`prompt` is a batch of {len(prompt)}",
                hint="give each prompt an entry of its own, with its own weight",
            )
        case _:
            raise place.error(f"`prompt` is {kind_name(prompt)} of another kind, expected text or a list of token ids")


def message_text(message: object) -> str:
    """The text of one checked message, its parts joined, images as marks; empty for a turn without content."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return "".join(_part_text(part) for part in content)
    return content if isinstance(content, str) else ""


def _part_text(part: object) -> str:
    url = image_url(part)
    if url is not None:
        return image_mark(url)
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def opening_text(body: JsonObject) -> str:
    """The text of the leading system and developer messages of a checked body; empty when it has none."""
    messages = body.get("messages")
    texts = []
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, dict) or message.get("role") not in ("system", "developer"):
            break
        texts.append(message_text(message))
    return "\n".join(texts)


def whole_text(body: JsonObject, *, kind: PromptKind) -> str:
    """A checked body's prompt as one text: tools, then messages, each after its role, as chat templates write them.

    A stand-in for the rendered template, good for comparing prompts of one set with each other; token ids become one
    word each.
    """
    if kind is PromptKind.COMPLETIONS:
        value = body["prompt"]
        if isinstance(value, list):
            return "".join(item if isinstance(item, str) else f"{item} " for item in value)
        return str(value)
    parts = [canonical_json(body["tools"]).decode()] if body.get("tools") else []
    messages = body["messages"]
    assert isinstance(messages, list)
    for message in messages:
        calls = message.get("tool_calls")
        parts.append(f"{message['role']}\n{message_text(message)}{canonical_json(calls).decode() if calls else ''}\n")
    return "".join(parts)
