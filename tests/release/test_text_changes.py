"""Templates and settings that differ, in records and in words."""

from __future__ import annotations

import pytest
from blake3 import blake3

from kvrelease.release.details import Details, TemplatePart
from kvrelease.release.text_changes import (
    TemplateChange,
    ValueChange,
    compare_templates,
    compare_values,
    shadowed_notes,
)


def part(text: str) -> TemplatePart:
    return TemplatePart(digest=blake3(text.encode()).hexdigest(), lines=len(text.splitlines()))


def compare(old: dict[str, str], new: dict[str, str], *, has_texts: bool = True) -> tuple[TemplateChange, ...]:
    return compare_templates(
        {name: part(text) for name, text in old.items()},
        {name: part(text) for name, text in new.items()},
        (old, new) if has_texts else None,
    )


def test_templates_are_compared_by_name_and_by_lines() -> None:
    changes = compare({"default": "a\nb\nc", "gone": "x"}, {"default": "a\nB\nc\nd", "tool_use": "x\ny"})
    assert [change.described for change in changes] == [
        "'default' changed (+2 −1 of 4 lines)",
        "'gone' is gone",
        "'tool_use' is new (2 lines)",
    ]
    assert changes[0].excerpt == ("@@ -1,3 +1,4 @@", " a", "-b", "+B", " c", "+d")


def test_saved_templates_are_told_without_lines() -> None:
    (change,) = compare({"default": "a"}, {"default": "b\nc"}, has_texts=False)
    assert (change.described, change.excerpt) == ("'default' changed (1 → 2 lines)", ())


def test_a_long_line_is_cut_to_where_it_differs() -> None:
    old = "x" * 5000 + "OLD" + "y" * 5000
    (change,) = compare({"default": old}, {"default": old.replace("OLD", "NEW")})
    assert ["OLD" in change.excerpt[1], "NEW" in change.excerpt[2]] == [True, True]
    assert max(len(line) for line in change.excerpt) < 130


def test_a_template_of_a_million_lines_is_told_by_its_digest_alone() -> None:
    (change,) = compare({"default": "a\n" * 1_000_000}, {"default": "b\n" * 1_000_000})
    assert change.described == "'default' changed (1000000 → 1000000 lines)"


def test_a_long_difference_is_cut() -> None:
    (change,) = compare({"default": "\n".join("abc" * 20)}, {"default": "\n".join("def" * 20)})
    assert (len(change.excerpt), change.excerpt[-1]) == (17, "… and 105 more lines")


def test_values_are_compared_as_json() -> None:
    found = compare_values({"a": 1, "b": None, "c": [1]}, {"a": 1.0, "c": [2], "d": False})
    assert found == (
        ValueChange(key="b", old=None, new=None),
        ValueChange(key="c", old=[1], new=[2]),
        ValueChange(key="d", old=None, new=False),
    )
    assert compare_values(None, None) == ()


def details(templates: dict[str, str], shadowed: dict[str, str]) -> Details:
    return Details(
        tokenizer=None,
        templates={name: part(text) for name, text in templates.items()},
        shadowed={name: part(text) for name, text in shadowed.items()},
        generation={},
        rope_keys=(),
    )


TWO_OF = (
    "the {} release has two chat templates that differ: the .jinja file counts here, as for transformers and vLLM; "
    "engines that read only tokenizer_config.json render other prompts"
)
OVERRIDDEN = "of the two, only the template in tokenizer_config.json changed, which the .jinja file overrides"
ONE = details({"default": "a"}, {})
TWO = details({"default": "a"}, {"default": "b"})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (ONE, ONE, []),
        (ONE, TWO, [TWO_OF.format("new")]),
        (TWO, ONE, [TWO_OF.format("old")]),
        (TWO, TWO, [TWO_OF.format("old"), TWO_OF.format("new")]),
        (TWO, details({"default": "a"}, {"default": "c"}), [TWO_OF.format("old"), TWO_OF.format("new"), OVERRIDDEN]),
        (TWO, details({"default": "x"}, {"default": "c"}), [TWO_OF.format("old"), TWO_OF.format("new")]),
        (TWO, details({"default": "x"}, {"default": "b"}), [TWO_OF.format("old"), TWO_OF.format("new")]),
        (TWO, details({"default": "a"}, {"tool_use": "c"}), [TWO_OF.format("old"), TWO_OF.format("new")]),
    ],
    ids=["none", "came", "went", "same", "overridden", "both", "effective", "another name"],
)
def test_what_a_template_that_another_one_overrides_means_is_told(old: Details, new: Details, said: list[str]) -> None:
    assert shadowed_notes(old, new) == said
