from __future__ import annotations

import pytest

from kvrelease.errors import PromptSetError
from kvrelease.workload.yaml_text import parse_yaml
from tests.workload.builders import PLACE


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_aliases_share_what_is_written_once() -> None:
    value = parse_yaml("a: &x {k: v}\nb: *x\nc: {<<: *x, l: w}", place=PLACE).value
    assert value == {"a": {"k": "v"}, "b": {"k": "v"}, "c": {"k": "v", "l": "w"}}


def test_lines_of_entries_are_known() -> None:
    text = "# comment\nprompts:\n  - a: 1\n    b: 2\n\n  - c: 3\n"
    assert parse_yaml(text, place=PLACE).entry_lines == (3, 6)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: [1", "column"),
        ("a: b: c", "line 1, column 5"),
        ("a:\n\tb: 1", "line 2, column 1"),
        ("a: 1\na: 2", "the key 'a' stands twice in one map"),
        ("a: 1\n---\nb: 2", "line 2, column 1"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor for the tag"),
        ("a: *nowhere", "undefined alias"),
        ("a: 2024-13-45", "cannot be read as YAML (ValueError)"),
        ("? [a, b]\n: 1", "unhashable"),
        ("a: &a [*a]", "an alias refers to what contains it"),
        ("a: \x07", "character 4 is not allowed"),
        ("[" * 50_000, "nest"),
        ("a: " + "{b: " * 5_000, "nest"),
        ("a: " + "{b: " * 101 + "1" + "}" * 101, "nested deeper than 100 levels"),
        (laughs(12), "with its aliases written out the file exceeds"),
    ],
)
def test_hostile_and_broken_yaml_is_an_error_with_its_place(text: str, found: str) -> None:
    with pytest.raises(PromptSetError) as caught:
        parse_yaml(text, place=PLACE)
    assert "here.yaml" in caught.value.message
    assert found in caught.value.message
    assert len(caught.value.message) < 300


def test_aliases_within_the_bound_are_fine() -> None:
    assert parse_yaml(laughs(4), place=PLACE).value is not None


def test_messages_of_the_parser_quote_no_text() -> None:
    with pytest.raises(PromptSetError) as caught:
        parse_yaml('user: "the customer: said {this} and [that\nprompts: ]', place=PLACE)
    assert "customer" not in f"{caught.value.message}{caught.value.hint}"
