from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.errors import NotFound, UnsupportedRelease
from kvrelease.release.address import open_source
from tests.release.builders import write_release


def test_a_directory_and_a_single_file_are_releases(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    assert open_source(model).single_file is None
    assert open_source(str(model / "model.safetensors")).single_file == "model.safetensors"


def test_a_directory_may_end_like_a_file(tmp_path: Path) -> None:
    assert open_source(write_release(tmp_path / "v1.safetensors")).single_file is None


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("absent", NotFound, "no such file or directory"),
        ("absent.safetensors", NotFound, "no such file or directory"),
        ("notes.txt", UnsupportedRelease, "neither a model directory"),
    ],
)
def test_what_can_be_no_release_is_refused(tmp_path: Path, name: str, error: type[Exception], reason: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(error, match=reason):
        open_source(tmp_path / name)
