from __future__ import annotations

import pytest

from kvrelease.release.canonical import digest_of, encode_json, frame


def test_moving_a_byte_between_fields_changes_the_bytes() -> None:
    assert frame(b"ab", b"c") != frame(b"a", b"bc")
    assert digest_of("p", [b"ab", b"c"]) != digest_of("p", [b"a", b"bc"])
    assert digest_of("p", [b"q"]) != digest_of("pq", [])


@pytest.mark.parametrize(
    ("left", "right"),
    [({"a": 1, "b": 2}, {"b": 2, "a": 1}), (10000.0, 10000), (-0.0, 0), ((1, 2), [1, 2]), (1e-6, 0.000001)],
)
def test_one_value_has_one_encoding(left: object, right: object) -> None:
    assert encode_json(left) == encode_json(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (0, False),
        (0, None),
        ("1", 1),
        ([], {}),
        ([[]], [[], []]),
        ([1, [2]], [[1], 2]),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
        (1e-6, 1.0000000000000002e-6),
        ({"a": None}, {}),
    ],
)
def test_two_values_have_two_encodings(left: object, right: object) -> None:
    assert encode_json(left) != encode_json(right)


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_json({"a": "\ud800"})
