"""Small files: read whole, within limits, and as every reader of JSON would understand them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease.errors import DamagedFile, InputError, NotFound
from kvrelease.release.canonical import encode_json
from kvrelease.release.small_files import MAX_JSON_DEPTH, read_bytes, read_json_object, read_text
from tests.release.builders import local_file


def written(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_of(tmp_path: Path, content: bytes | str) -> object:
    return read_json_object(local_file(written(tmp_path, content)))


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    file = local_file(written(tmp_path, b'\xef\xbb\xbf{"a": 1}'))
    assert read_bytes(file) == b'{"a": 1}'
    assert read_text(file) == '{"a": 1}'
    assert read_json_object(file) == {"a": 1}


def test_line_ends_are_one_whatever_system_wrote_them(tmp_path: Path) -> None:
    assert read_text(local_file(written(tmp_path, "a\r\nb\rc\nd\r\r\n"))) == "a\nb\nc\nd\n\n"


def test_text_that_is_not_utf8_is_refused_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match=r"config.json: not UTF-8 \(byte 2\)"):
        read_text(local_file(written(tmp_path, b"ab\xff")))


def test_numbers_are_those_that_strict_json_can_say(tmp_path: Path) -> None:
    found = json_of(tmp_path, json.dumps({"max": 2**63 - 1, "over": 2**63, "huge": 10**300}))
    assert found == {"max": 2**63 - 1, "over": 2.0**63, "huge": 1e300}
    assert [type(value) for value in dict(found).values()] == [int, float, float]
    assert json_of(tmp_path, f'{{"min": {-(2**63)}, "under": {-(2**63) - 1}}}') == {
        "min": -(2**63),
        "under": -(2.0**63),
    }
    assert json_of(tmp_path, '{"a": Infinity, "b": -Infinity, "c": NaN}') == {
        "a": "Infinity",
        "b": "-Infinity",
        "c": "NaN",
    }
    encode_json(found)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[1]", "expected a JSON object, found list"),
        ("{", "not valid JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ('{"x": {"b": 1, "b": 1}}', "the key 'b' occurs twice"),
        (f'{{"n": 1{"0" * 400}}}', "not valid JSON"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        ("[" * 100_000, "nested deeper than 64"),
        ("version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_reason(tmp_path: Path, content: bytes | str, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        json_of(tmp_path, content)


def test_nesting_is_allowed_up_to_the_limit_and_many_brackets_are_no_depth(tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        return '{"a":' * depth + "1" + "}" * depth

    json_of(tmp_path, nested(MAX_JSON_DEPTH))
    with pytest.raises(DamagedFile, match=f"nested deeper than {MAX_JSON_DEPTH} levels"):
        json_of(tmp_path, nested(MAX_JSON_DEPTH + 1))
    json_of(tmp_path, json.dumps({"a": [[]] * 500}))


def test_a_file_over_its_limit_is_not_read(tmp_path: Path) -> None:
    file = local_file(written(tmp_path, "x" * 101))
    assert len(read_bytes(file, limit_bytes=101)) == 101
    with pytest.raises(DamagedFile, match="101 bytes, more than the 100 such a file may have"):
        read_bytes(file, limit_bytes=100)


def test_what_is_no_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_bytes(local_file(tmp_path / "absent.json"))
    with pytest.raises(InputError, match="not a regular file"):
        read_bytes(local_file(tmp_path))
