"""Files of a release as rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvrelease.errors import InputError, NotFound
from kvrelease.release.local_source import open_directory
from kvrelease.release.release_file import FileRole, ReleaseFile, release_file, row_of


def test_a_row_has_name_size_and_purpose(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = open_directory(tmp_path).file("config.json")
    expected = ReleaseFile(path="config.json", bytes=2, role=FileRole.CONFIG)
    assert release_file(file, FileRole.CONFIG) == row_of(file, FileRole.CONFIG, size_bytes=2) == expected


def test_what_is_absent_or_no_file_has_no_row(tmp_path: Path) -> None:
    source = open_directory(tmp_path)
    with pytest.raises(NotFound):
        release_file(source.file("absent"), FileRole.EXTRA)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        release_file(source.file("folder"), FileRole.EXTRA)


def test_a_name_that_no_artifact_can_hold_is_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"w\xff.safetensors")
    (tmp_path / name).touch()
    with pytest.raises(InputError, match="its name is not valid UTF-8"):
        release_file(open_directory(tmp_path).file(name), FileRole.WEIGHTS)
