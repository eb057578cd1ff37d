"""What a production body asks the in-process engine to read, and where to stop.

A server would parse these; in process it is ours to do, and field for field as vLLM does.
"""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Request, Route
from kvrelease.engines.foreign import as_ids
from kvrelease.errors import Refused

B = TypeVar("B", bound=msgspec.Struct)


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for the release's chat template.

    Attributes:
        messages: [messages], content flattened to text, arguments of tool calls as objects.
        tools: functions offered to the model, None when the body has none.
        options: further arguments of the template (`documents`, `chat_template_kwargs`, `add_generation_prompt`, …).
    """

    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] | None
    options: JsonObject


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Text for the tokenizer.

    Attributes:
        text: the prompt.
        adds_special_tokens: whether the tokenizer adds its own, such as a beginning of text.
    """

    text: str
    adds_special_tokens: bool


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids, taken as they are.

    Attributes:
        token_ids: [prompt].
    """

    token_ids: tuple[int, ...]


class StopRule(msgspec.Struct, frozen=True, kw_only=True):
    """Where a generation ends besides its length and the release's own end tokens.

    Attributes:
        texts: the text ends before the first of them.
        token_ids: ends after one of them.
        ignores_eos: goes on after an end token.
    """

    texts: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    ignores_eos: bool = False


class _ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    documents: list[JsonObject] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class _CompletionsBody(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str | list[object]
    add_special_tokens: bool = True


class _StopFields(msgspec.Struct, frozen=True, kw_only=True):
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False


def prompt_of(request: Request) -> ChatPrompt | TextPrompt | TokenPrompt:
    """The prompt in a request's body.

    Raises:
        Refused: the body is not what its route takes, or carries more than one text.
    """
    if request.route is Route.CHAT:
        return _chat_prompt(_parse(request, _ChatBody))
    return _completions_prompt(_parse(request, _CompletionsBody))


def stop_rule_of(request: Request) -> StopRule:
    """The body's own stop conditions.

    Raises:
        Refused: they are of the wrong shape.
    """
    fields = _parse(request, _StopFields)
    texts = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    return StopRule(
        texts=tuple(text for text in texts if text),
        token_ids=frozenset(fields.stop_token_ids or ()),
        ignores_eos=fields.ignore_eos,
    )


def _parse(request: Request, shape: type[B]) -> B:
    try:
        return msgspec.convert(request.body, shape)
    except msgspec.ValidationError as error:
        raise _refused(request.route, str(error)) from error


def _chat_prompt(body: _ChatBody) -> ChatPrompt:
    if not body.messages:
        raise _refused(Route.CHAT, "`messages` is empty")
    if body.chat_template is not None:
        raise _refused(Route.CHAT, "`chat_template` would replace the release's own, which is not supported in process")
    options: JsonObject = {
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message,
        **(body.chat_template_kwargs or {}),
    }
    if body.documents is not None:
        options["documents"] = body.documents
    return ChatPrompt(
        messages=tuple(_message(message) for message in body.messages),
        tools=None if body.tools is None else tuple(body.tools),
        options=options,
    )


def _completions_prompt(body: _CompletionsBody) -> TextPrompt | TokenPrompt:
    prompt: object = body.prompt
    if isinstance(prompt, list) and prompt and all(isinstance(item, str | list) for item in prompt):
        if len(prompt) > 1:
            raise _refused(Route.COMPLETIONS, f"{len(prompt)} prompts in one request, one is supported")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return TextPrompt(text=prompt, adds_special_tokens=body.add_special_tokens)
    token_ids = as_ids(prompt)
    if token_ids is None:
        raise _refused(Route.COMPLETIONS, "`prompt` is neither a text nor token ids")
    return TokenPrompt(token_ids=token_ids)


def _message(message: JsonObject) -> JsonObject:
    """A message as templates expect it.

    Source: vllm-project/vllm, vllm/entrypoints/chat_utils.py, `_parse_chat_message_content_parts` and
        `_postprocess_messages`, commit 001eadcf295d90aa0664963cd6a9d93f38a2f3da.
    """
    message = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "\n".join(_part_text(part) for part in content)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_tool_call(call) for call in calls]
    return message


def _part_text(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise _refused(Route.CHAT, f"a content part of type {kind!r}, only text is supported in process")


def _tool_call(call: object) -> object:
    """A tool call whose arguments are an object; the wire has them as a JSON text."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except ValueError as error:
            raise _refused(Route.CHAT, f"arguments of a tool call are not JSON ({error})") from error
    return {**call, "function": function}


def _refused(route: Route, reason: str) -> Refused:
    return Refused(f"the in-process engine refuses the body for {route.value}: {reason}", status=None)
