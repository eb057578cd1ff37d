from __future__ import annotations

import pytest

from kvrelease.engines.address import parse_address
from kvrelease.errors import UsageError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://host:8000", "http://host:8000"),
        (" http://host:8000/ ", "http://host:8000"),
        ("http://host:8000/v1", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("http://host:8000/v1/chat/completions", "http://host:8000"),
        ("http://host/v1/models", "http://host"),
        ("https://gateway.example/team-a/v1", "https://gateway.example/team-a"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("HTTP://Host:80", "http://host"),
    ],
)
def test_one_server_has_one_spelling(text: str, url: str) -> None:
    assert parse_address(text).url == url


@pytest.mark.parametrize(
    ("text", "port"), [("http://h", 80), ("https://h", 443), ("http://h:8000/v1", 8000), ("http://[::1]:9", 9)]
)
def test_the_port_is_the_schemes_own_where_none_is_named(text: str, port: int) -> None:
    assert parse_address(text).port == port


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("http://localhost:1", True),
        ("http://127.0.0.1:1", True),
        ("http://127.8.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1:1", False),
        ("http://localhost.example:1", False),
    ],
)
def test_loopback_is_told_by_name_and_number(text: str, *, is_loopback: bool) -> None:
    assert parse_address(text).is_loopback is is_loopback


@pytest.mark.parametrize(
    "text",
    ["", "  ", "host:8000", "localhost:8000", "ftp://host", "http://", "http://host:port", "http://h?a=b", "/v1"],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


def test_a_missing_scheme_is_suggested() -> None:
    with pytest.raises(UsageError) as caught:
        parse_address("localhost:8000")
    assert caught.value.hint == "did you mean http://localhost:8000?"


@pytest.mark.parametrize("text", ["http://user:hunter2@host:8000", "ftp://user:hunter2@host", "user:hunter2@host:1"])
def test_a_password_in_the_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"
