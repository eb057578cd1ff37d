from __future__ import annotations

import msgspec
import pytest

from kvrelease.selection.cutting import MAX_BLOCKS_OF_A_PROMPT, Cutter, Unit, cutter_for
from kvrelease.workload.prompt_set import PromptKind
from tests.selection.builders import chat, trace

TEXT = Cutter(unit=Unit.CHARACTERS, block=16, is_trace=False)


def test_names_are_equal_up_to_where_texts_are() -> None:
    one, other = TEXT.cut(chat("a" * 40, "x")), TEXT.cut(chat("a" * 40 + "b" * 40, "x"))
    common = len("system\n" + "a" * 40) // 16
    assert one.names[:common] == other.names[:common]
    assert not set(one.names[common:]) & set(other.names)


def test_text_beyond_ascii_makes_the_same_names_for_a_beginning_within_it() -> None:
    plain, accented = TEXT.cut(chat("a" * 80, "x")), TEXT.cut(chat("a" * 80, "é"))
    assert plain.names[:5] == accented.names[:5]
    assert accented.length == plain.length


@pytest.mark.parametrize(("model", "salt"), [("lora", None), (None, "tenant"), ("tenant", None)])
def test_key_spaces_share_no_name(model: str | None, salt: str | None) -> None:
    one, other = TEXT.cut(chat("a" * 80, "x")), TEXT.cut(chat("a" * 80, "x", model=model, salt=salt))
    assert not set(one.names) & set(other.names)


def test_a_completion_shares_nothing_with_a_chat_of_the_same_text() -> None:
    asked = chat("a" * 80, "x")
    same = msgspec.structs.replace(
        asked, kind=PromptKind.COMPLETIONS, body={"prompt": "system\n" + "a" * 80 + "\nuser\nx\n"}
    )
    assert TEXT.cut(same).length == TEXT.cut(asked).length
    assert not set(TEXT.cut(same).names) & set(TEXT.cut(asked).names)


def test_the_last_symbol_is_never_cached() -> None:
    whole = len("system\n\nuser\n\n")
    for characters, blocks in ((32 - whole, 1), (33 - whole, 2)):
        cut = TEXT.cut(chat("", "q" * characters))
        assert (cut.length, len(cut.names)) == (characters + whole, blocks)


def test_a_trace_is_cut_at_its_own_blocks() -> None:
    cutter = cutter_for(trace(1, 2, 3))
    assert cutter == Cutter(unit=Unit.TOKENS, block=512, is_trace=True)
    assert cutter is not None
    assert len(cutter.cut(trace(1, 2, 3, tokens=1100)).names) == 2
    assert cutter.cut(trace(1, 2)).names[:1] == cutter.cut(trace(1, 9)).names[:1]


def test_an_absurdly_long_prompt_is_cut_off() -> None:
    cut = TEXT.cut(chat("a" * (MAX_BLOCKS_OF_A_PROMPT * 16 + 500), "x"))
    assert len(cut.names) == MAX_BLOCKS_OF_A_PROMPT


def test_token_ids_are_cut_into_the_engines_blocks() -> None:
    cutter = cutter_for(chat("", "x"), encode=lambda request: range(33) if request.salt is None else None)
    assert cutter is not None
    assert (cutter.unit, cutter.block) == (Unit.TOKENS, 16)
    assert (cutter.cut(chat("", "x")).length, len(cutter.cut(chat("", "x")).names)) == (33, 2)
    assert cutter.cut(chat("", "x", salt="unknown")) == ([], 0)


def test_a_difference_at_the_start_leaves_no_name_alike_however_long_the_rest_is() -> None:
    one, other = TEXT.cut(chat("a" + "z" * 600, "x")), TEXT.cut(chat("b" + "z" * 600, "x"))
    assert len(one.names) > 30
    assert not set(one.names) & set(other.names)
    cutter = cutter_for(trace(1))
    assert cutter is not None
    rest = tuple(range(10, 30))
    assert not set(cutter.cut(trace(1, *rest)).names) & set(cutter.cut(trace(2, *rest)).names)


def test_equal_blocks_at_other_places_of_one_prompt_have_names_of_their_own() -> None:
    names = TEXT.cut(chat("a" * 600, "x")).names
    assert len(set(names)) == len(names)
