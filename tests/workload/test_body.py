from __future__ import annotations

import datetime

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.errors import PromptSetError
from kvrelease.workload.body import as_object, check_body, image_mark, images_of, opening_text, whole_text
from kvrelease.workload.prompt_set import PromptKind
from tests.workload.builders import PLACE, chat_body

SECRET = "the customer's own words"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (chat_body("Hello"), PromptKind.CHAT),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}, PromptKind.CHAT),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, PromptKind.CHAT),
        ({"messages": [{"role": "developer", "content": "Be brief."}]}, PromptKind.CHAT),
        ({"prompt": "Once"}, PromptKind.COMPLETIONS),
        ({"prompt": ["Once"]}, PromptKind.COMPLETIONS),
        ({"prompt": [1, 2, 3]}, PromptKind.COMPLETIONS),
    ],
)
def test_both_routes_are_told_from_the_body(body: JsonObject, kind: PromptKind) -> None:
    assert check_body(body, place=PLACE) is kind


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({}, "neither `messages` (chat) nor `prompt`"),
        ({"input": SECRET}, "Responses API"),
        ({"messages": [], "prompt": SECRET}, "both `messages` and `prompt`"),
        ({"messages": []}, "`messages` is empty"),
        ({"messages": SECRET}, "`messages` is text, expected a list"),
        ({"messages": [SECRET]}, "message 1 is text"),
        ({"messages": [{"content": SECRET}]}, "message 1 has no role"),
        ({"messages": [{"role": "users", "content": SECRET}]}, "message 1 has the role 'users'"),
        ({"messages": [{"role": "user"}]}, "message 1 (user) has no `content`"),
        ({"messages": [{"role": "user", "content": 12}]}, "is a number, expected text"),
        ({"messages": [{"role": "user", "content": [{"text": SECRET}]}]}, "without `type: text` and `text`"),
        ({"prompt": ""}, "`prompt` is empty"),
        ({"prompt": []}, "`prompt` is empty"),
        ({"prompt": [SECRET, SECRET]}, "a batch of 2"),
        ({"prompt": [[1], [2]]}, "a batch of 2"),
        ({"prompt": [1, -2]}, "expected text or a list of token ids"),
        ({"prompt": [True]}, "expected text or a list of token ids"),
        ({"prompt": {"text": SECRET}}, "expected text or a list of token ids"),
    ],
)
def test_unusable_bodies_are_refused_without_quoting_the_prompt(body: JsonObject, found: str) -> None:
    with pytest.raises(PromptSetError) as caught:
        check_body(body, place=PLACE)
    assert found in caught.value.message
    assert SECRET not in f"{caught.value.message} {caught.value.hint}"


def test_a_misspelt_role_is_answered_with_the_closest_one() -> None:
    with pytest.raises(PromptSetError) as caught:
        check_body({"messages": [{"role": "asistant", "content": "Hi"}]}, place=PLACE)
    assert caught.value.hint == "did you mean 'assistant'?"


@pytest.mark.parametrize(
    ("part", "media"),
    [
        ("image_embeds", "an image"),
        ("input_audio", "audio"),
        ("video_url", "video"),
        ("holo", "something other than text"),
    ],
)
def test_media_are_named_and_said_to_be_unsupported(part: str, media: str) -> None:
    content = [{"type": "text", "text": SECRET}, {"type": part, part: {"url": "data:"}}]
    with pytest.raises(PromptSetError, match="prompts hold text, and images by reference") as caught:
        check_body({"messages": [{"role": "user", "content": content}]}, place=PLACE)
    assert f"message 1 carries {media}" in caught.value.message


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"when": datetime.date(2020, 1, 2)}, "body.when is a date"),
        ({"stop": b"x"}, "body.stop is a bytes"),
        ({"top_p": float("nan")}, "body.top_p is NaN"),
        ({"seed": 2**64}, "more than 64 bits"),
        ({"stop": ["\ud800"]}, "body.stop[0] holds half of a surrogate pair"),
        ({"\ud800": 1}, "a key of body holds half of a surrogate pair"),
        ({True: "yes"}, "has the key 'True', which is true or false"),
        ("text", "body is text, expected a map"),
    ],
)
def test_what_json_cannot_carry_is_refused_by_its_path(value: object, found: str) -> None:
    with pytest.raises(PromptSetError) as caught:
        as_object(value, place=PLACE, path="body")
    assert found in caught.value.message


def test_deep_nesting_is_refused_before_it_exhausts_the_stack() -> None:
    value: JsonObject = {}
    for _ in range(5000):
        value = {"a": value}
    with pytest.raises(PromptSetError, match="nested deeper than 64 levels"):
        as_object(value, place=PLACE, path="body")


def test_opening_is_the_leading_system_and_developer_messages() -> None:
    roles = ("system", "developer", "user", "system")
    body: JsonObject = {"messages": [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]}
    assert opening_text(body) == "text 0\ntext 1"
    assert opening_text({"prompt": "text"}) == ""


def test_whole_text_begins_with_the_tools_as_templates_do() -> None:
    text = whole_text(chat_body("Hi", tools=[{"type": "function"}]), kind=PromptKind.CHAT)
    assert text == '[{"type":"function"}]user\nHi\n'


@pytest.mark.parametrize(("value", "text"), [("abc", "abc"), (["abc"], "abc"), ([1, 23], "1 23 ")])
def test_whole_text_of_completions_is_the_prompt(value: object, text: str) -> None:
    assert whole_text({"prompt": value}, kind=PromptKind.COMPLETIONS) == text


def test_an_image_is_a_reference_and_stands_in_texts_as_a_digest() -> None:
    urls = ["https://here.example/a.png", "data:image/png;base64,QUJD"]
    parts = [{"type": "text", "text": "Look: "}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    body: JsonObject = {"messages": [{"role": "user", "content": parts}]}
    text = whole_text(body, kind=PromptKind.CHAT)
    assert images_of(body) == tuple(urls)
    assert text.startswith("user\nLook: <image ")
    assert "here.example" not in text
    assert "QUJD" not in text
    assert text.count("<image ") == len({image_mark(url) for url in urls}) == 2


@pytest.mark.parametrize("url", ["file:///etc/passwd", "", None])
def test_an_image_of_another_place_is_refused(url: str | None) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(PromptSetError, match=r"message 1 carries an image without an http\(s\) or data: URL"):
        check_body({"messages": [{"role": "user", "content": content}]}, place=PLACE)
