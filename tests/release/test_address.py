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


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("models/lama", "did you mean {here}/models/llama?"),
        ("models/llama/config.json/x", "{here}/models/llama/config.json is a file: "),
        ("models/broken", "{here}/models/broken is a link to what is not there: "),
        ("acme/support-8b", "{here} has no acme; a model on the Hub is written hf:acme/support-8b@REVISION"),
        ("/mnt-that-is-not/there/v2", "/ is there, and has no mnt-that-is-not: "),
        ("a\0b", "{here} is there, and has no a"),
        ("x" * 300, "{here} is there, and has no xxx"),
    ],
)
def test_a_path_that_leads_nowhere_comes_with_a_next_step(
    what: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_release(tmp_path / "models" / "llama")
    (tmp_path / "models" / "broken").symlink_to(tmp_path / "gone")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match="no such file or directory") as caught:
        open_source(f"{what}/v2" if what.endswith("broken") else what)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint.format(here=tmp_path))
