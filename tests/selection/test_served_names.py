from __future__ import annotations

from msgspec.structs import replace

from kvrelease.selection.served_names import served_name_warning, without_served_name
from tests.selection.builders import chat

OLD = replace(chat("a" * 200, "x"), model="support-v1.2", body={"model": "support-v1.2", "messages": []})
ADAPTER = replace(OLD, model="sql-lora", body={"model": "sql-lora", "messages": []})
PLAIN = replace(OLD, model=None, body={"messages": []})


def test_the_name_of_the_old_release_is_left_out_and_an_adapters_stays() -> None:
    names = ("support-v1.2", "gpt-4o")
    assert [without_served_name(one, names=names) for one in (OLD, ADAPTER, PLAIN)] == [PLAIN, ADAPTER, PLAIN]


def test_a_trace_without_text_has_a_name_too() -> None:
    assert without_served_name(replace(OLD, body=None, kind=None), names=("support-v1.2",)).model is None


def test_names_that_stay_are_told_most_frequent_first() -> None:
    warning = served_name_warning([ADAPTER, OLD, OLD, PLAIN])
    assert warning is not None
    assert warning.startswith("3 prompts keep the model that was asked for ('support-v1.2', 'sql-lora')")
    assert "--drop-model" in warning
    assert served_name_warning([PLAIN]) is None
