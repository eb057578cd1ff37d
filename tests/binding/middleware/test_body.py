"""What the engine's parser makes of a body is what it made of it before, with the salt set."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvrelease.binding.middleware.body import Fields, NotBound, read_fields, with_salt

SALT = "kv1-abc-e0"

# How long drawing takes says how busy the machine is.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Texts that look like what the scan looks for, escapes and halves of surrogate pairs among them.
TRICKY = st.sampled_from(
    [
        "cache_salt",
        "model",
        '"cache_salt"',
        '"cache_salt": "x"',
        '"model":',
        '"model',
        '"cache_salt',
        '\\"',
        *'\\"{}[],:',
    ]
)
TEXTS = st.one_of(TRICKY, st.lists(TRICKY, max_size=4).map("".join), st.text(max_size=12))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)
SALTS = st.one_of(st.none(), TEXTS)


def written(pairs: list[tuple[str, Any]], draw: st.DrawFn) -> str:
    """An object with its pairs in this order, keys that come twice included, in one of JSON's many spellings."""
    blank = st.sampled_from(["", " ", "\n", "\t\r\n "])
    ascii_only = draw(st.booleans())
    parts = []
    for key, value in pairs:
        name = json.dumps(key, ensure_ascii=ascii_only)
        if draw(st.booleans()) and draw(st.booleans()):
            name = '"' + "".join(f"\\u{unit:04x}" for unit in units(key)) + '"'
        spelt = json.dumps(value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])))
        parts.append(f"{draw(blank)}{name}{draw(blank)}:{draw(blank)}{spelt}{draw(blank)}")
    return draw(blank) + "{" + ",".join(parts) + (draw(blank) if not parts else "") + "}" + draw(blank)


def units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    pairs: list[tuple[str, Any]] = draw(st.lists(st.tuples(TEXTS, VALUES), max_size=5))
    for key, values in (("cache_salt", SALTS), ("model", SCALARS)):
        for _ in range(draw(st.integers(0, 2))):
            pairs.insert(draw(st.integers(0, len(pairs))), (key, draw(values)))
    # The other keys may be spelt like the salt's, and then their value is the salt.
    pairs = [(key, value) for key, value in pairs if key != "cache_salt" or value is None or isinstance(value, str)]
    encoding = draw(
        st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be"])
    )
    return written(pairs, draw).encode(encoding, "surrogatepass")


def same(one: object, other: object) -> bool:
    """Equal as JSON values: NaN equals NaN, and 1 is neither 1.0 nor true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


@UNTIMED
@given(bodies(), st.booleans())
def test_fields_are_those_that_the_engine_parses(body: bytes, with_model: bool) -> None:
    parsed = json.loads(body)
    fields = read_fields(body, with_model=with_model)
    assert isinstance(fields, Fields)
    assert fields.own == parsed.get("cache_salt")
    if with_model:
        model = parsed.get("model")
        assert fields.model == (model if isinstance(model, str) else None)


@UNTIMED
@given(bodies())
def test_a_body_with_another_salt_parses_like_the_original_with_the_salt_set(body: bytes) -> None:
    fields = read_fields(body, with_model=False)
    assert isinstance(fields, Fields)
    expected = json.loads(body)
    # In a dict a key keeps the place where it came first.
    expected["cache_salt"] = SALT
    assert same(json.loads(with_salt(fields.body, SALT)), expected)


@UNTIMED
@given(bodies())
def test_nothing_of_a_body_is_written_again(body: bytes) -> None:
    fields = read_fields(body, with_model=False)
    assert isinstance(fields, Fields)
    salted = with_salt(fields.body, SALT)
    at = salted.rindex(b'"cache_salt":"' + SALT.encode() + b'"')
    before, after = salted[:at].removesuffix(b","), salted[at + len(b'"cache_salt":""') + len(SALT) :]
    assert before + after in (fields.body, fields.body.replace(b",}", b"}"))
    if json.detect_encoding(body).startswith("utf-8"):
        assert fields.body is body


@UNTIMED
@given(st.binary(max_size=60).map(lambda middle: b'{"a": "' + middle + b"}"))
def test_a_text_that_is_no_json_is_none_with_a_salt(body: bytes) -> None:
    fields = read_fields(body, with_model=True)
    if isinstance(fields, NotBound):
        return
    assert parses(with_salt(fields.body, SALT)) == parses(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,}',
        b'{,"a":1}',
        b"{,}",
        b'{"a":1}}',
        b'{"a":{}',
        b'{"a":"\x01"}',
        b'{"a":"\xff"}',
        b'{"a":"\\x"}',
        b'{"a" 1}',
        b"{} {}",
        b'{"a":"}',
        b'{"a":"\\"}',
        b'{"a":"\\u12}',
        b'{"cache_salt":"\\x"}',
        b'{"cache_salt":"a" "b":1}',
        b"{'cache_salt':'a'}",
    ],
)
def test_what_the_engine_refuses_it_refuses_with_a_salt_too(body: bytes) -> None:
    assert not parses(body)
    fields = read_fields(body, with_model=True)
    assert isinstance(fields, Fields)
    assert not parses(with_salt(fields.body, SALT))


def parses(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"text"', b"7", b"null", b"\x1f\x8b\x08 gzip", b"{", b"}", b"\xfe\xff\x00"]
)
def test_what_is_no_object_is_not_bound(body: bytes) -> None:
    assert isinstance(read_fields(body, with_model=False), NotBound)


@pytest.mark.parametrize("value", ["5", "5.0", "true", "[]", "{}", '["a"]', "-1", "NaN"])
def test_a_salt_that_is_no_text_is_not_bound(value: str) -> None:
    found = read_fields(f'{{"a": 1, "cache_salt" : {value} }}'.encode(), with_model=False)
    assert isinstance(found, NotBound)
    assert found.param == "cache_salt"


def test_a_salt_inside_a_message_is_nobodys_salt() -> None:
    inner = json.dumps({"cache_salt": "inner", "model": "inner"})
    document = {
        "messages": [{"role": "user", "content": inner, "cache_salt": "nested"}],
        "tools": [{"model": "nested"}],
        "model": "outer",
    }
    assert read_fields(json.dumps(document).encode(), with_model=True) == Fields(
        json.dumps(document).encode(), None, "outer"
    )


@pytest.mark.parametrize("lookalikes", [1, 7, 8, 9, 2000])
def test_a_body_full_of_lookalikes_is_read_right(lookalikes: int) -> None:
    for key in ("cache_salt", "model"):
        body = json.dumps({key: "mine", "nested": [{key: "not mine"}] * lookalikes}).encode()
        fields = read_fields(body, with_model=True)
        assert isinstance(fields, Fields)
        assert (fields.own if key == "cache_salt" else fields.model) == "mine"


@pytest.mark.parametrize("front", [0, 70_000, 200_000])
def test_a_salt_is_found_wherever_it_stands_in_a_long_body(front: int) -> None:
    texts = ['say "x" \\ {[' * 20] * (front // 280)
    body = json.dumps({"a": texts, "cache_salt": "mine", "b": ["\\"] * 40_000}).encode()
    fields = read_fields(body, with_model=False)
    assert isinstance(fields, Fields)
    assert fields.own == "mine"


@pytest.mark.parametrize("backslashes", range(4))
@pytest.mark.parametrize(("before", "behind"), [("", "b" * 200), ("b" * 200, "")])
def test_a_key_that_ends_like_the_salt_is_none(backslashes: int, before: str, behind: str) -> None:
    document = {"a": before, "b" + "\\" * backslashes + '"cache_salt': "not mine", "c": behind}
    assert read_fields(json.dumps(document).encode(), with_model=False) == Fields(
        json.dumps(document).encode(), None, None
    )


def test_a_body_nested_deeper_than_python_parses_is_not_bound_where_it_has_to_be_parsed() -> None:
    body = b'{"\\u0061":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert isinstance(read_fields(body, with_model=False), NotBound)
