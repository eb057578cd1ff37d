"""What the in-process engine reads out of a production body."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import Request, Route
from kvrelease.engines.prompt_body import ChatPrompt, StopRule, TextPrompt, TokenPrompt, prompt_of, stop_rule_of
from kvrelease.errors import Refused

HELLO: JsonObject = {"role": "user", "content": "hello"}
PLAIN: JsonObject = {"add_generation_prompt": True, "continue_final_message": False}


def chat(**body: object) -> Request:
    return Request(route=Route.CHAT, body={"messages": [HELLO], **body})


def completion(prompt: object, **body: object) -> Request:
    return Request(route=Route.COMPLETIONS, body={"prompt": prompt, **body})


def test_messages_ask_for_a_generation_prompt_unless_the_body_says_otherwise() -> None:
    assert prompt_of(chat(temperature=0.7, n=1)) == ChatPrompt(messages=(HELLO,), tools=None, options=PLAIN)
    prompt = prompt_of(chat(add_generation_prompt=False, continue_final_message=True))
    assert isinstance(prompt, ChatPrompt)
    assert prompt.options == {"add_generation_prompt": False, "continue_final_message": True}


def test_tools_documents_and_template_arguments_reach_the_template() -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "f"}}
    document: JsonObject = {"title": "t", "text": "x"}
    prompt = prompt_of(chat(tools=[tool], documents=[document], chat_template_kwargs={"enable_thinking": False}))
    options = {**PLAIN, "enable_thinking": False, "documents": [document]}
    assert prompt == ChatPrompt(messages=(HELLO,), tools=(tool,), options=options)


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = prompt_of(chat(messages=[{"role": "user", "content": parts}]))
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == ({"role": "user", "content": "a\nb"},)


def test_arguments_of_tool_calls_become_objects_and_the_body_stays_as_it_was() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    body: JsonObject = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    prompt = prompt_of(Request(route=Route.CHAT, body=body))
    assert isinstance(prompt, ChatPrompt)
    parsed = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert prompt.messages == ({"role": "assistant", "content": None, "tool_calls": [parsed]},)
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}


@pytest.mark.parametrize("prompt", ["text", ["text"]])
def test_a_text_is_tokenised_with_special_tokens(prompt: object) -> None:
    assert prompt_of(completion(prompt)) == TextPrompt(text="text", adds_special_tokens=True)
    plain = prompt_of(completion(prompt, add_special_tokens=False))
    assert plain == TextPrompt(text="text", adds_special_tokens=False)


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]])
def test_token_ids_are_taken_as_they_are(prompt: object) -> None:
    assert prompt_of(completion(prompt)) == TokenPrompt(token_ids=(1, 2))


@pytest.mark.parametrize(
    "request_",
    [
        Request(route=Route.CHAT, body={}),
        chat(messages=[]),
        chat(messages="hello"),
        chat(chat_template="{{ messages }}"),
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "secret"}}]}]),
        chat(messages=[{"role": "assistant", "tool_calls": [{"function": {"arguments": "{secret"}}]}]),
        Request(route=Route.COMPLETIONS, body={}),
        completion(None),
        completion(["secret", "b"]),
        completion([[1], [2]]),
        completion([1, "secret"]),
        completion([1.5]),
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(request_: Request) -> None:
    with pytest.raises(Refused) as caught:
        prompt_of(request_)
    assert "secret" not in caught.value.message


def test_stop_conditions_of_the_body() -> None:
    assert stop_rule_of(chat()) == StopRule()
    assert stop_rule_of(chat(stop="x")) == StopRule(texts=("x",))
    rule = stop_rule_of(chat(stop=["x", "", "y"], stop_token_ids=[3, 4], ignore_eos=True))
    assert rule == StopRule(texts=("x", "y"), token_ids=frozenset({3, 4}), ignores_eos=True)
    with pytest.raises(Refused):
        stop_rule_of(chat(stop=5))
