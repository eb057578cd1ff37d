"""Text from outside, made fit for a terminal."""

from __future__ import annotations

from kvrelease.errors import InputError
from kvrelease.printable import first_of, listed, number_of, printable


def test_control_characters_are_spelt_out() -> None:
    assert printable("a\x1b[31mred\n\tb\x07\u202e\udcff") == "a\\x1b[31mred\\n\\tb\\x07\\u202e\\udcff"


def test_letters_of_any_language_stay() -> None:
    assert printable("Prüfung 検査 …") == "Prüfung 検査 …"


def test_an_error_quotes_no_control_character() -> None:
    error = InputError("reading \x1b[31mred\0", hint="remove \x07")
    assert (error.message, error.hint) == ("reading \\x1b[31mred\\x00", "remove \\x07")
    assert str(error) == error.message


def test_names_are_listed_quoted_and_the_rest_is_counted() -> None:
    assert listed([]) == ""
    assert listed(["a", "\x1b[31mb"]) == r"'a', '\x1b[31mb'"
    assert listed("abcde") == "'a', 'b', 'c', 'd', 'e'"
    assert listed("abcdefg") == "'a', 'b', 'c', 'd', 'e' and 2 more"


def test_a_count_has_the_noun_and_the_verb_that_go_with_it() -> None:
    assert [number_of(count, "prompt") for count in (0, 1, 2, 1200)] == [
        "0 prompts",
        "1 prompt",
        "2 prompts",
        "1,200 prompts",
    ]
    assert [number_of(count, "prompt was", "prompts were") for count in (1, 2)] == ["1 prompt was", "2 prompts were"]


def test_the_first_name_stands_for_the_others() -> None:
    assert first_of(["a"]) == "a"
    assert first_of(("a", "b", "c")) == "a and 2 more"
