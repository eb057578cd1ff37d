"""A walk through a header that believes no count, in a window that moves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kvrelease.errors import DamagedFile, UnsupportedRelease
from kvrelease.release import gguf_cursor
from kvrelease.release.gguf_cursor import HeaderCursor
from tests.release.builders import local_file
from tests.release.remote_file import Remote

U32 = struct.Struct("<I")


class Kept(bytearray):
    """Takes what was passed over."""

    def update(self, data: bytes | memoryview) -> None:
        self.extend(data)


@pytest.fixture(params=[4, 16, 2**20], ids=["narrow window", "window", "wide window"])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_cursor, "WINDOW_BYTES", request.param)


def cursor_at(data: bytes) -> HeaderCursor:
    with Remote(data).open() as reader:
        return HeaderCursor(reader, where="m.gguf")


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


@pytest.mark.usefixtures("window")
def test_every_way_of_reading_moves_on_by_what_it_read_and_hands_it_over_once() -> None:
    strings = [b"", b"a", b"twenty bytes of text", b"b" * 100]
    data = U32.pack(7) + b"abc" + text(b"name") + b"x" * 50 + b"".join(map(text, strings)) + b"rest"
    cursor, kept = cursor_at(data), Kept()
    assert cursor.read(U32, kept) == (7,)
    assert cursor.take(3, kept) == b"abc"
    assert cursor.string(max_bytes=4) == b"name"
    assert (cursor.position, cursor.remaining_bytes) == (19, len(data) - 19)
    cursor.skim(50, kept)
    cursor.skim_strings(len(strings), kept)
    assert bytes(kept) == data[:7] + data[19:-4]
    assert (cursor.position, cursor.remaining_bytes) == (len(data) - 4, 4)
    assert cursor.take(4) == b"rest"


@pytest.mark.usefixtures("window")
def test_the_end_of_the_file_is_told_with_the_item() -> None:
    reads: list[tuple[bytes, Callable[[HeaderCursor], object]]] = [
        (b"abc", lambda cursor: cursor.take(4)),
        (text(b"abcd")[:-1], lambda cursor: cursor.string(max_bytes=9)),
        (b"abc", lambda cursor: cursor.skim(4, Kept())),
        (text(b"ab") + text(b"abcd")[:-1], lambda cursor: cursor.skim_strings(2, Kept())),
    ]
    for data, read in reads:
        cursor = cursor_at(data)
        cursor.item = "key 'k'"
        with pytest.raises(DamagedFile, match=r"reading m.gguf: key 'k' (is cut off|announces)"):
            read(cursor)


def test_a_count_is_refused_where_the_file_is_too_short_for_it_before_memory_is_taken() -> None:
    cursor = cursor_at(bytes(64))
    cursor.require(8, 8, what="keys")
    for count in (9, 2**63):
        with pytest.raises(DamagedFile, match=f"announces {count} keys, and the file has only 64 more bytes"):
            cursor.require(count, 8, what="keys")
    with pytest.raises(DamagedFile, match=r"announces 9 strings"):
        cursor.skim_strings(9, Kept())


def test_a_name_longer_than_allowed_is_refused() -> None:
    with pytest.raises(DamagedFile, match="has a name of 5 bytes; the longest allowed has 4"):
        cursor_at(text(b"abcde")).string(max_bytes=4)


def test_a_header_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_cursor, "MAX_HEADER_BYTES", 100)
    monkeypatch.setattr(gguf_cursor, "WINDOW_BYTES", 10)
    cursor = cursor_at(bytes(200))
    cursor.skim(100, Kept())
    with pytest.raises(UnsupportedRelease, match="beyond the first 100 bytes"):
        cursor.take(1)


def test_a_file_that_became_shorter_meanwhile_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(100))
    with local_file(path).open() as reader:
        path.write_bytes(bytes(50))
        with pytest.raises(DamagedFile, match="became shorter meanwhile"):
            HeaderCursor(reader, where="m.gguf").take(80)
