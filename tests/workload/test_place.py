from __future__ import annotations

from kvrelease.workload.place import Place, did_you_mean, quoted


def test_a_place_reads_as_a_person_would_look_for_it() -> None:
    place = Place(source="support.yaml", line=12, entry=3, id="returns")
    assert str(place) == "support.yaml, line 12, prompt 3 (id 'returns')"


def test_quoted_words_are_short_and_printable_anywhere() -> None:
    assert len(quoted("x" * 5000)) < 50
    quoted("\ud800").encode("ascii")
    assert "\x1b" not in quoted("\x1b[31m")


def test_the_closest_word_is_suggested_else_all_are_listed() -> None:
    assert did_you_mean("wieght", ["weight", "id"]) == "did you mean 'weight'?"
    assert did_you_mean("zzz", ["weight", "id"]) == "known here: id, weight"
    assert did_you_mean("zzz", []) is None
