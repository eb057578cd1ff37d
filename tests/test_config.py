"""`kvrelease.yaml`, `KVRELEASE_*` variables and defaults."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kvrelease import config
from kvrelease.config import (
    RUNTIME_EXAMPLE,
    Config,
    Production,
    api_key,
    load_config,
    option_defaults,
    parse_config,
    split_header,
)
from kvrelease.errors import InputError, UsageError


def parse(text: str) -> Config:
    return parse_config(text, source="kvrelease.yaml")


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError, match=r"reading kvrelease\.yaml") as caught:
        parse(text)
    return caught.value


def test_no_file_is_all_defaults(tmp_path: Path) -> None:
    assert load_config(tmp_path) == Config()


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "\ufeff"])
def test_an_empty_file_is_all_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / "kvrelease.yaml").write_text(text, encoding="utf-8")
    assert load_config(tmp_path) == Config()


def test_keys_are_the_long_options() -> None:
    found = parse(
        "engine-url: [http://a, http://b]\nstale-below: 0.1\nold-release: ./v1\ntimeout: 5\nno-ledger: true\n"
    )
    assert option_defaults(found) == {
        "engine_url": ["http://a", "http://b"],
        "stale_below": 0.1,
        "old_release": "./v1",
        "timeout": 5.0,
        "no_ledger": True,
    }


def test_one_replica_or_header_needs_no_list() -> None:
    found = parse("engine-url: http://a\nheader: X-Team=a b\n")
    assert option_defaults(found) == {"engine_url": ["http://a"], "header": ["X-Team=a b"]}


def test_headers_of_the_variable_stand_one_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVRELEASE_HEADER", "Authorization=Bearer a b\n\n X-Team=c \n")
    assert option_defaults(parse("header: X-Team=file"))["header"] == ["Authorization=Bearer a b", "X-Team=c"]


@pytest.mark.parametrize("entry", ["sk-secret", "=sk-secret", "' =sk-secret'", "'Authorization: sk-secret'"])
def test_a_header_that_is_none_is_told_by_its_place_and_never_repeated(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(f"header: [X-Team=a, {entry}]")
    assert error.message == "reading kvrelease.yaml: entry 2 of header is not of the form NAME=VALUE (not shown here)"
    assert "sk-secret" not in (error.hint or "sk-secret")
    assert refused(f"header: {entry}").message.startswith("reading kvrelease.yaml: entry 1 of header ")
    monkeypatch.setenv("KVRELEASE_HEADER", f"X-Team=a\n\n{entry.strip(chr(39))}\n")
    with pytest.raises(
        UsageError, match=r"^KVRELEASE_HEADER, line 3, is not of the form NAME=VALUE \(not shown here\)$"
    ):
        option_defaults(Config())


def test_a_value_of_a_header_may_hold_anything() -> None:
    assert split_header("X-Team= a=b ", where="it") == ("X-Team", " a=b ")
    assert split_header("X-Team=", where="it") == ("X-Team", "")


def test_production_and_runtime_are_no_options() -> None:
    found = parse("production: {salt: release, body: {tools: [{a: 1}]}}\nruntime: {engine: vllm, block_size: 16}\n")
    assert found.production == Production(salt="release", body={"tools": [{"a": 1}]})
    assert found.runtime == {"engine": "vllm", "block_size": 16}
    assert option_defaults(found) == {}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("modle: x", "did you mean 'model'?"),
        ("engine_url: [x]", "did you mean 'engine-url'?"),
        ("version: 0.32.0", f"put it under runtime:, as in {RUNTIME_EXAMPLE}"),
        ("{engine: vllm, block_size: 16}", f"put it under runtime:, as in {RUNTIME_EXAMPLE}"),
        ("production: {slat: x}", "did you mean 'salt'?"),
        ("production: {zzz: x}", "known keys: url, model, headers, body, salt"),
    ],
)
def test_an_unknown_key_is_named_with_a_suggestion(text: str, hint: str) -> None:
    error = refused(text)
    assert "unknown field" in error.message
    assert error.hint == hint


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("concurrency: many", "$.concurrency"),
        ("timeout: [1]", "$.timeout"),
        ("production: {salt: no}", "$.production.salt"),
        ("production: {headers: {A: 1}}", "$.production.headers"),
        ("runtime: {version: [1]}", "$.runtime"),
        ("runtime: {version: 0.10}", "runtime.version"),
        ("runtime: {version: 0x10}", "runtime.version"),
        ("runtime: {version: yes}", "runtime.version"),
        ("- a list", "array"),
        ("just text", "str"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(text: str, key: str) -> None:
    assert key in refused(text).message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: [", "line 1"),
        ("model: a\nmodel: b", "(line 2): the key 'model' stands twice"),
        ("production:\n  salt: a\n  salt: b", "(line 3): the key 'salt' stands twice"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("model: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("timeout: 2024-13-45", "put dates and odd numbers in quotes"),
        ("model: \x00", "a character in it is not allowed"),
        ("\tmodel: x", "line 1"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text: str, said: str) -> None:
    assert said in refused(text).message


def test_a_message_repeats_nothing_of_the_file() -> None:
    for text in ("production: {headers: {A: Bearer sk-secret\nx: y", "production: {headers: {A: [sk-secret]}}"):
        error = refused(text)
        assert "sk-secret" not in error.message + (error.hint or "")


def test_a_yaml_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    started = time.monotonic()
    assert "aliases" in refused("\n".join(lines)).message
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_deep_nesting_is_refused(opening: str) -> None:
    assert "nested deeper than 50 levels" in refused("production: {body: " + opening * 10_000).message


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MAX_CONFIG_BYTES", 100)
    (tmp_path / "kvrelease.yaml").write_text("# " + "x" * 200)
    with pytest.raises(InputError, match="larger than 100 bytes"):
        load_config(tmp_path)


def test_what_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "kvrelease.yaml").mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        load_config(tmp_path)


def test_latin_1_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "kvrelease.yaml").write_bytes("model: Prüfung".encode("latin-1"))
    with pytest.raises(InputError, match="codec"):
        load_config(tmp_path)


# --- API keys ---


def test_no_variable_is_no_key() -> None:
    assert api_key(None) is None


def test_a_key_is_read_from_its_variable_without_the_newline_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret\n")
    assert api_key("MY_KEY") == "sk-secret"


@pytest.mark.parametrize("given", ["sk-proj-abc123", "hf_AbCdEf123", "AKIAIOSFODNN7EXAMPLE", "a b", "", "MY_KEY"])
def test_a_key_in_place_of_a_name_is_never_repeated(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", " ")
    with pytest.raises(UsageError, match="--api-key-env") as caught:
        api_key(given)
    if given:
        assert given not in caught.value.message + (caught.value.hint or "")
