"""Files that are opened when they are needed, and few at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.errors import InputError
from kvrelease.release.open_files import MOST_IDLE, OpenFiles
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.source import read_range
from tests.release.builders import entry, local_file, raw_safetensors


def write_files(directory: Path, count: int) -> list[Path]:
    paths = [directory / f"{number}.safetensors" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(raw_safetensors({"a": entry(0, 1)}, bytes([number])))
    return paths


def count_open(directory: Path) -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(link.readlink().parent == directory for link in links)


def test_few_stay_open_and_all_can_be_read_again(tmp_path: Path) -> None:
    paths = write_files(tmp_path, MOST_IDLE + 10)
    with OpenFiles([read_safetensors(local_file(path)) for path in paths]) as files:
        for _ in range(2):
            for number, path in enumerate(paths):
                with files.readers([str(path)]) as readers:
                    size = path.stat().st_size
                    assert read_range(readers[str(path)], size - 1, 1) == bytes([number])
                assert count_open(tmp_path) <= MOST_IDLE
    assert count_open(tmp_path) == 0


def test_a_file_in_use_stays_open_whatever_else_is_read(tmp_path: Path) -> None:
    first, *others = write_files(tmp_path, MOST_IDLE + 10)
    with (
        OpenFiles([read_safetensors(local_file(path)) for path in (first, *others)]) as files,
        files.readers([str(first)]) as kept,
    ):
        for path in others:
            with files.readers([str(path), str(first)]):
                pass
        assert read_range(kept[str(first)], first.stat().st_size - 1, 1) == b"\0"


def change(path: Path) -> None:
    path.write_bytes(raw_safetensors({"a": entry(0, 2)}, b"xy"))


def test_a_file_that_changed_before_it_is_opened_is_told(tmp_path: Path) -> None:
    (path,) = write_files(tmp_path, 1)
    with OpenFiles([read_safetensors(local_file(path))]) as files:
        change(path)
        with pytest.raises(InputError, match="changed while it was read"), files.readers([str(path)]):
            pass
    assert count_open(tmp_path) == 0


def test_a_file_that_changed_after_it_was_read_is_told(tmp_path: Path) -> None:
    (path,) = write_files(tmp_path, 1)
    files = OpenFiles([read_safetensors(local_file(path))])
    with files.readers([str(path)]):
        pass
    change(path)
    with pytest.raises(InputError, match="changed while it was read"):
        files.__exit__(None, None, None)
    assert count_open(tmp_path) == 0
