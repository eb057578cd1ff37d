"""A working directory of its own for every test, without the user's settings and ledger."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.cli.app import run
from kvrelease.release.loading import load_release
from tests.cli.shell import PROMPTS, Releases, Result
from tests.tiny_models import build_release

Kv = Callable[..., Result]


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    """Two releases as directories, and their saved fingerprints: with these nothing runs in process."""
    root = tmp_path_factory.mktemp("releases")
    for name, seed in (("old", 1), ("new", 2)):
        build_release(root / name, seed=seed, layers=1)
        artifacts.write(root / f"{name}.json", load_release(str(root / name)))
    return Releases(root=root)


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("KVRELEASE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    (directory / "prompts.yaml").write_text(PROMPTS, encoding="utf-8")
    return directory


@pytest.fixture
def kv(capsys: pytest.CaptureFixture[str]) -> Kv:
    """Runs the program in this process."""

    def call(*argv: object) -> Result:
        capsys.readouterr()
        code = run([str(part) for part in argv])
        out, err = capsys.readouterr()
        return Result(code=code, out=out, err=err)

    return call
