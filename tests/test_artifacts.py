from __future__ import annotations

import datetime
import json
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from kvrelease import __version__, artifacts
from kvrelease.artifacts import Artifact, Fault, fault_of
from kvrelease.errors import DamagedFile, InputError, NotFound, Unreachable
from tests import builders


class Reading(Artifact, frozen=True, kw_only=True, tag="kvrelease/reading"):
    """An artifact of these tests."""

    value: float
    maybe: float | None = None
    name: str = ""


class Other(Artifact, frozen=True, kw_only=True, tag="kvrelease/other"):
    """Another kind."""


def json_of(**changes: object) -> bytes:
    content = {"kind": "kvrelease/reading", "schema": 1, "tool": "0", "created": "2026-01-02T03:04:05Z", "value": 1.0}
    return json.dumps(content | changes).encode()


def read(data: bytes) -> Reading:
    return artifacts.from_json(data, Reading, source="a.json")


# Kinds whose keys have changed since they were first written.
SCHEMAS = {"prewarm": 2}

# --- reading ---


@pytest.mark.parametrize("name", builders.every_kind())
def test_every_kind_reads_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    artifact = builders.every_kind()[name]
    artifacts.write(tmp_path / "a.json", artifact)
    assert artifacts.read(tmp_path / "a.json", type(artifact)) == artifact


@pytest.mark.parametrize("name", builders.every_kind())
def test_every_kind_begins_with_the_envelope(name: str) -> None:
    content = json.loads(artifacts.to_json(builders.every_kind()[name]))
    assert content["kind"] == f"kvrelease/{name}"
    assert (content["schema"], content["tool"]) == (SCHEMAS.get(name, 1), builders.TOOL)
    assert datetime.datetime.fromisoformat(content["created"]) == builders.CREATED
    about = content.get("release", {})
    assert set(about) <= {"name", "version", "source", "kv_name"}
    assert about or name in ("prompts", "log", "selection", "demo")  # of no release, and of two


def test_the_tool_and_the_time_are_told() -> None:
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(milliseconds=1)
    reading = Reading(value=1.0)
    assert reading.tool == __version__
    assert before <= reading.created <= datetime.datetime.now(datetime.UTC)


def test_a_byte_order_mark_is_accepted() -> None:
    assert read(b"\xef\xbb\xbf" + json_of()).value == 1.0


def test_keys_of_a_later_tool_are_ignored() -> None:
    assert read(json_of(more=[1])).value == 1.0


def test_an_older_schema_is_read() -> None:
    assert read(json_of(schema=0)).schema == 0


def test_a_newer_schema_is_an_input_error_that_says_upgrade() -> None:
    with pytest.raises(InputError, match="schema 2 is newer than 1") as caught:
        read(json_of(schema=2, value="another shape"))
    assert caught.value.exit_code == 4
    assert caught.value.hint == "upgrade kvrelease on this machine"


def test_another_kind_is_named() -> None:
    with pytest.raises(DamagedFile, match="as kvrelease/reading: it is a kvrelease/other artifact") as caught:
        read(artifacts.to_json(Other()).encode())
    assert caught.value.hint == "give a kvrelease/reading artifact, as --output writes it"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b"<html></html>",
        b"[]",
        b"null",
        b"{}",
        b'{"kind": "kvrelease/reading"}',
        b"[" * 100_000,
        b'{"kind": "\xff"}',
        json_of()[:-5],
        json_of(value="text"),
        json_of(value=None),
        json_of().replace(b"1.0", b"NaN"),
        json_of(created="yesterday"),
        json_of(name="\udc80"),
    ],
)
def test_what_is_no_artifact_is_a_damaged_file(data: bytes) -> None:
    with pytest.raises(DamagedFile, match=r"reading a\.json") as caught:
        read(data)
    assert caught.value.exit_code == 4


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.json: No such file"):
        artifacts.read(tmp_path / "none.json", Reading)


def test_a_directory_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="Is a directory"):
        artifacts.read(tmp_path, Reading)


def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_ARTIFACT_BYTES", 10)
    (tmp_path / "a.json").write_bytes(json_of())
    with pytest.raises(DamagedFile, match="more than 10 bytes"):
        artifacts.read(tmp_path / "a.json", Reading)


def test_an_endless_device_is_read_no_further_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_ARTIFACT_BYTES", 1000)
    with pytest.raises(DamagedFile):
        artifacts.read(Path("/dev/zero"), Reading)


# --- writing ---


def test_nan_where_a_number_must_be_known_is_our_bug_and_nothing_is_written(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(AssertionError, match="our own kvrelease/reading artifact is not valid"):
        artifacts.write(target, Reading(value=float("nan")))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert target.read_text() == "old"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_where_not_known_is_allowed_becomes_not_known(value: float) -> None:
    text = artifacts.to_json(Reading(value=1.0, maybe=value))
    assert "NaN" not in text
    assert read(text.encode()).maybe is None


def test_a_name_that_is_not_utf8_is_an_input_error() -> None:
    with pytest.raises(InputError, match="not valid UTF-8"):
        artifacts.to_json(Reading(value=1.0, name="dir\udcff"))


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"a\.json: No space left on device; nothing was written"):
        artifacts.write(target, Reading(value=1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert target.read_text() == "old"


def test_an_interrupted_write_leaves_the_old_file_and_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")

    def stop(_handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        artifacts.write(target, Reading(value=1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_does_not_read_back_does_not_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    monkeypatch.setattr(Path, "read_bytes", lambda _path: b"rotten")
    with pytest.raises(InputError, match="read back is not what was written"):
        artifacts.write(target, Reading(value=1.0))
    assert target.read_text() == "old"


def test_a_missing_directory_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory; nothing was written"):
        artifacts.write_atomically(tmp_path / "none" / "a.json", "x")


def test_readers_never_see_a_part(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    texts = ["a" * 200_000, "b" * 200_000]
    artifacts.write_atomically(target, texts[0])
    stop = threading.Event()

    def write() -> None:
        for turn in range(30):
            artifacts.write_atomically(target, texts[turn % 2])
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not stop.is_set():
        seen.add(target.read_text())
    writer.join()
    assert seen <= set(texts)


def test_a_new_file_obeys_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        artifacts.write_atomically(tmp_path / "private", "x")
        os.umask(0o022)
        artifacts.write_atomically(tmp_path / "public", "x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "public")]
    assert modes == [0o600, 0o644]


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.touch(mode=0o600)
    artifacts.write_atomically(target, "x")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "a.json")
    artifacts.write_atomically(link, "x")
    assert link.is_symlink()
    assert (tmp_path / "real" / "a.json").read_text() == "x"


def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    artifacts.write_atomically(pipe, "x")
    reader.join()
    assert got == ["x"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_to_not_replaced() -> None:
    artifacts.write_atomically(Path(os.devnull), "x")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_long_file_name_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 250 + ".json")
    artifacts.write_atomically(target, "x")
    assert target.read_text() == "x"


# --- faults ---


def test_a_fault_tells_what_the_error_told() -> None:
    error = Unreachable("no connection to http://a", hint="is it up?")
    assert fault_of(error, where="http://a") == Fault(
        where="http://a", exit_code=5, message="no connection to http://a", hint="is it up?"
    )


def test_a_fault_survives_json() -> None:
    fault = fault_of(InputError("damaged"), where="a")
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


def test_a_fault_names_its_place_once() -> None:
    place = "http://a (llm.prod.svc)"
    assert Fault(where=place, exit_code=5, message="no answer").shown == "http://a (llm.prod.svc): no answer"
    assert Fault(where=place, exit_code=3, message=f"{place} is gone").shown == f"{place} is gone"
