"""A release's chat template, rendered as transformers and vLLM do: a Jinja sandbox with their few extras.

Source:
    huggingface/transformers, src/transformers/utils/chat_template_utils.py, `_cached_compile_jinja_template` (5.x);
    vLLM 0.32.0, renderers/chat_utils.py, `_parse_chat_message_content` and `_postprocess_messages`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template

# Body fields that are arguments of the template.
_OPTIONS = ("add_generation_prompt", "continue_final_message", "documents")
_MAX_REASON_CHARACTERS = 120


class ChatTemplate:
    """A compiled template.

    Attributes:
        reads_clock: a rendering asked for the current date: what it wrote is good for a day.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str], name: str) -> None:
        """Compiles the template.

        Args:
            source: Jinja.
            special_tokens: `bos_token` and the like, as the template names them.
            name: how messages call the release.

        Raises:
            InputError: it is no valid template.
        """
        from jinja2 import TemplateSyntaxError  # noqa: PLC0415 - late: only where tokens are counted
        from jinja2.ext import loopcontrols  # noqa: PLC0415
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

        self.reads_clock = False
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = self._strftime_now
        try:
            self._template: Template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise InputError(
                f"reading the chat template of {name}, line {error.lineno}: {error.message}",
                hint="name a release whose template its engine serves",
            ) from error

    def render(self, body: JsonObject) -> str:
        """The prompt that a checked chat body becomes, with the opening of the answer unless the body says otherwise.

        Raises:
            ValueError: the template refuses the messages; the words are the template's own, shortened.
        """
        options = body.get("chat_template_kwargs")
        given = {name: body[name] for name in _OPTIONS if name in body}
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    "add_generation_prompt": True,
                    "documents": None,
                    **given,
                    **(options if isinstance(options, dict) else {}),
                    "messages": _messages(body),
                    "tools": body.get("tools") or None,
                }
            )
        except Exception as error:
            # A template is a program: whatever it stumbles over is its word on these messages.
            raise ValueError(f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]) from error

    def _strftime_now(self, form: str) -> str:
        self.reads_clock = True
        return datetime.datetime.now().astimezone().strftime(form)


def _messages(body: JsonObject) -> list[JsonObject]:
    messages = body["messages"]
    assert isinstance(messages, list), "chat bodies are checked"
    return [_message(message) for message in messages]


def _message(message: JsonObject) -> JsonObject:
    changed = dict(message)
    content = message.get("content")
    if content is None:
        changed["content"] = ""
    elif isinstance(content, list):
        match content:
            case [{"type": "text", "text": str(text)}]:
                changed["content"] = text
            case _:
                raise ValueError("a message of several parts, which engines join in different ways")
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else calls
    else:
        changed.pop("tool_calls", None)
    return changed


def _call(call: object) -> object:
    """A tool call with its arguments as a map, which is what templates expect."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments) if arguments else {}
    return {**call, "function": {**function, "arguments": arguments or {}}}


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Templates pass these by name or position, as transformers' own filter takes them."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise ValueError(message)


def _generation_tag() -> type:
    """`{% generation %}`, which marks what a training run learns from; its content is rendered as it is."""
    from jinja2 import nodes  # noqa: PLC0415 - late
    from jinja2.ext import Extension  # noqa: PLC0415
    from jinja2.parser import Parser  # noqa: PLC0415

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - Jinja's own way

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation
