from __future__ import annotations

import math

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.errors import PromptSetError
from kvrelease.workload.entry import Entry, assemble, read_id, read_label, read_weight
from kvrelease.workload.place import Place
from tests.workload.builders import PLACE, chat_body


def entry(body: JsonObject, *, prompt_id: str | None = None, line: int = 1) -> Entry:
    place = Place(source="x.jsonl", line=line, id=prompt_id)
    return Entry(place=place, id=prompt_id, weight=1.0, body=body, prefix=None)


@pytest.mark.parametrize("weight", [0, 0.0, -0.0, -1, math.nan, math.inf, -math.inf, 10**400, 1e16])
def test_weights_that_are_no_share_of_traffic_are_refused(weight: float) -> None:
    with pytest.raises(PromptSetError, match="expected a number above 0"):
        read_weight(weight, place=PLACE)


@pytest.mark.parametrize("weight", ["3", True, None, [1]])
def test_weights_that_are_no_number_are_refused(weight: object) -> None:
    with pytest.raises(PromptSetError, match=r"`weight` is .*, expected a number above 0"):
        read_weight(weight, place=PLACE)


@pytest.mark.parametrize("weight", [1, 0.25, 5e-324, 1e15])
def test_positive_weights_are_kept(weight: float) -> None:
    assert read_weight(weight, place=PLACE) == weight


@pytest.mark.parametrize("value", ["", "two words", "line\nbreak", "x" * 129, "\x1b[31m", 1.5, True, []])
def test_ids_that_would_break_a_table_are_refused(value: object) -> None:
    with pytest.raises(PromptSetError, match="id"):
        read_id(value, place=PLACE)


def test_numbers_become_ids() -> None:
    assert read_id(12, place=PLACE) == "12"


@pytest.mark.parametrize("value", ["", "  ", "a\nb", "x" * 65, 4])
def test_labels_that_would_break_a_table_are_refused(value: object) -> None:
    with pytest.raises(PromptSetError, match="`prefix` is"):
        read_label(value, place=PLACE)


def test_an_id_of_its_own_survives_what_happens_around_it() -> None:
    alone = assemble([entry(chat_body("Hi"))], name="n", source="s").prompts[0].id
    later = assemble([entry(chat_body("New")), entry(chat_body("Hi"))], name="n", source="s").prompts[1].id
    assert alone == later
    assert alone.startswith("p-")


def test_equal_bodies_without_ids_are_numbered() -> None:
    prompts = assemble([entry(chat_body("Hi"))] * 3, name="n", source="s").prompts
    stem = prompts[0].id
    assert [prompt.id for prompt in prompts] == [stem, f"{stem}.2", f"{stem}.3"]


def test_a_made_up_id_steps_aside_for_a_given_one() -> None:
    stem = assemble([entry(chat_body("Hi"))], name="n", source="s").prompts[0].id
    prompts = assemble([entry(chat_body("Hi")), entry(chat_body("Bye"), prompt_id=stem)], name="n", source="s").prompts
    assert [prompt.id for prompt in prompts] == [f"{stem}.2", stem]


def test_a_repeated_id_names_both_lines() -> None:
    entries = [entry(chat_body("Hi"), prompt_id="a", line=3), entry(chat_body("Bye"), prompt_id="a", line=9)]
    with pytest.raises(PromptSetError, match=r"x.jsonl, line 9 \(id 'a'\): the id 'a' is taken already, by line 3"):
        assemble(entries, name="n", source="x.jsonl")


def test_an_empty_set_says_what_to_add() -> None:
    with pytest.raises(PromptSetError, match=r"x\.yaml: it holds no prompts") as caught:
        assemble([], name="n", source="x.yaml")
    assert caught.value.hint is not None
