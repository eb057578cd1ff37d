from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.errors import PromptSetError
from kvrelease.workload.jsonl_file import read_jsonl
from kvrelease.workload.prompt_set import Prompt, PromptKind
from tests.workload.builders import chat_body, load_text

HELLO = '{"messages": [{"role": "user", "content": "Hello"}]'


def test_a_line_is_a_body_with_id_and_weight_beside_its_keys(tmp_path: Path) -> None:
    text = HELLO + ', "id": "hello", "weight": 2.5, "temperature": 0.7}\n\n{"prompt": "Once", "id": 7}\r\n'
    assert load_text(tmp_path, text, name="x.jsonl").prompts == (
        Prompt(id="hello", weight=2.5, kind=PromptKind.CHAT, body=chat_body("Hello", temperature=0.7)),
        Prompt(id="7", weight=1.0, kind=PromptKind.COMPLETIONS, body={"prompt": "Once"}),
    )


def test_the_time_at_which_a_log_saw_a_body_is_not_sent_to_the_engine(tmp_path: Path) -> None:
    text = HELLO + ', "timestamp": 1790000030}\n'
    assert load_text(tmp_path, text, name="x.jsonl").prompts[0].body == chat_body("Hello")


def test_a_line_may_keep_the_body_apart(tmp_path: Path) -> None:
    text = '{"id": "a", "weight": 3, "prefix": "system:desk", "body": {"prompt": "Once", "id": "kept"}}'
    assert load_text(tmp_path, text, name="x.jsonl").prompts == (
        Prompt(
            id="a",
            weight=3.0,
            kind=PromptKind.COMPLETIONS,
            body={"prompt": "Once", "id": "kept"},
            prefix="system:desk",
        ),
    )


def test_line_separators_inside_a_string_do_not_end_the_line(tmp_path: Path) -> None:
    text = '{"prompt": "one\u2028two\x85three"}'
    assert load_text(tmp_path, text, name="x.jsonl").prompts[0].body == {"prompt": "one\u2028two\x85three"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "not valid JSON"),
        (HELLO, "not valid JSON"),
        ('{"prompt": NaN}', "not valid JSON"),
        ('{"prompt": "\\ud800"}', ""),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "the line is a list"),
        ("12", "the line is a number"),
        ('{"prompt": "Once", "weight": -1}', "`weight` is -1"),
        ('{"body": {"prompt": "Once"}, "wieght": 1}', "the key 'wieght' stands beside `body`"),
        ('{"body": "Once"}', "body is text, expected a map"),
    ],
)
def test_a_broken_line_is_named_by_its_number(line: str, found: str) -> None:
    with pytest.raises(PromptSetError) as caught:
        read_jsonl(f'{{"prompt": "fine"}}\n\n{line}\n', source="x.jsonl")
    assert "x.jsonl, line 3" in caught.value.message
    assert found in caught.value.message


def test_a_pretty_printed_object_is_answered_with_the_remedy() -> None:
    with pytest.raises(PromptSetError) as caught:
        read_jsonl('{\n  "prompt": "Once"\n}\n', source="x.jsonl")
    assert caught.value.hint is not None
    assert "jq -c" in caught.value.hint


def test_a_line_without_a_prompt_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match=r"x.jsonl, line 2 \(id 'b'\): it has neither"):
        load_text(tmp_path, HELLO + '}\n{"id": "b", "model": "m"}', name="x.jsonl")


def test_a_gateways_record_among_bodies_is_no_prompt() -> None:
    line = '{"prompt": "Hi", "call_type": "text_completion", "response_cost": 1, "api_key": "SECRET"}'
    with pytest.raises(PromptSetError, match=r"line 1: the record is of the format litellm") as caught:
        read_jsonl(line, source="set.jsonl")
    assert "SECRET" not in str(caught.value)
