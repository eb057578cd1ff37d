"""Promises of `read_log` that hold for every format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvrelease.errors import DamagedFile, InputError, NotFound, TrafficLogError
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.formats import JSON_FORMATS
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.reading import TEXT_FORMATS, read_log
from kvrelease.workload.prompt_set import PromptKind

CHAT = {"model": "acme", "messages": [{"role": "user", "content": "Hi"}], "cache_salt": "tenant-a"}


def written(directory: Path, *lines: object, name: str = "log.jsonl") -> Path:
    path = directory / name
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def requests(path: Path) -> list[LoggedRequest]:
    return list(read_log(path, source=path.name))


def test_a_body_is_a_request_with_its_salt_apart(tmp_path: Path) -> None:
    found = requests(
        written(tmp_path, CHAT, b"", {"id": "b", "weight": 3, "timestamp": 12, "body": {"prompt": "Once"}})
    )
    assert [(one.place.line, one.kind, one.model, one.salt, one.weight, one.at_s) for one in found] == [
        (1, PromptKind.CHAT, "acme", "tenant-a", 1.0, None),
        (3, PromptKind.COMPLETIONS, None, None, 3.0, 12.0),
    ]
    assert found[0].body == {"model": "acme", "messages": CHAT["messages"]}
    assert found[1].place.id == "b"


def test_gzip_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(CHAT).encode()))
    assert [one.salt for one in requests(path)] == ["tenant-a"]


def test_a_gzip_stream_that_is_cut_off_is_never_a_short_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps({**CHAT, "n": n}).encode() + b"\n" for n in range(999)))[:-9])
    damage: list[InputError] = []
    with pytest.raises(DamagedFile, match="cut off"):
        list(read_log(path, source="log", on_bad_line=damage.append))


def test_damage_names_file_and_line_and_nothing_of_its_text(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT, b'{"messages": "my secret')
    with pytest.raises(TrafficLogError, match=r"reading the log log.jsonl, line 2: the line is not valid JSON") as told:
        requests(path)
    assert "secret" not in told.value.message


def test_damaged_lines_are_counted_and_passed_over_when_asked(tmp_path: Path) -> None:
    path = written(tmp_path, b"nonsense", CHAT, b"\xff\xfe", b"[1]")
    bad: list[InputError] = []
    assert len(list(read_log(path, source="log", on_bad_line=bad.append))) == 1
    assert [error.message.split(":")[0] for error in bad] == [f"reading the log log, line {n}" for n in (1, 3, 4)]


def test_an_empty_log_and_a_missing_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TrafficLogError, match="holds no requests"):
        requests(written(tmp_path, b"", b""))
    with pytest.raises(NotFound):
        requests(tmp_path / "none")


def test_every_format_has_exactly_one_reader() -> None:
    assert sorted([one.form for one in JSON_FORMATS] + list(TEXT_FORMATS)) == sorted(LogFormat)
