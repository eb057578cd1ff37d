from __future__ import annotations

import pytest

from kvrelease.engines.redaction import Redactor
from kvrelease.engines.replies import Reply, parse_json, parse_object, refusal
from kvrelease.errors import Refused, UnexpectedReply


def reply(status: int = 200, data: bytes = b"{}", **headers: str) -> Reply:
    return Reply(
        what="GET http://h/x",
        status=status,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        data=data,
        total_s=0.1,
        retries=0,
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"<!DOCTYPE html><title> Log in </title>", "an HTML page, where"),
        (b'{"a": ', "not valid JSON"),
        (b"\xff\xfe\x00garbage", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"1" * 5000, "not valid JSON"),
    ],
)
def test_what_is_no_json_is_named(data: bytes, words: str) -> None:
    with pytest.raises(UnexpectedReply) as caught:
        parse_json(data, what="GET x", headers={"content-type": "application/json"})
    assert words in caught.value.message


def test_numbers_that_json_does_not_have_are_read() -> None:
    value = parse_json(b'{"a": [NaN, -Infinity, null]}', what="GET x", headers={})
    assert str(value) == "{'a': [nan, -inf, None]}"


@pytest.mark.parametrize("data", [b"[]", b"1", b'"text"', b"null"])
def test_json_that_is_no_object_is_no_answer(data: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        parse_object(reply(data=data))


@pytest.mark.parametrize(
    "data",
    [
        b'{"error": {"message": "too bad", "code": 400}}',
        b'{"error": "too bad"}',
        b'{"message": "too bad"}',
        b'{"detail": "too bad"}',
    ],
)
def test_the_servers_own_words_are_repeated(data: bytes) -> None:
    error = refusal(reply(400, data), redactor=Redactor(()))
    assert error.message == "GET http://h/x: answered 400: too bad"


@pytest.mark.parametrize("data", [b"", b"oops", b"[]", b'{"detail": [{"msg": "x"}]}', b'{"error": null}'])
def test_an_error_without_words_is_one_all_the_same(data: bytes) -> None:
    error = refusal(reply(418, data), redactor=Redactor(()))
    assert isinstance(error, Refused)
    assert (error.message, error.status) == ("GET http://h/x: answered 418", 418)


def test_a_redirect_says_where_to_without_its_query() -> None:
    error = refusal(reply(302, b"", location="https://login.example/a?token=t"), redactor=Redactor(()))
    assert isinstance(error, UnexpectedReply)
    assert "https://login.example/a" in error.message
    assert "token" not in error.message
