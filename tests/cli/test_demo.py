"""The demo's own bad input; what a run shows is tested in tests/live/test_demo.py, through this command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Kv


def test_without_the_extra_it_says_what_to_install(kv: Kv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = kv("demo")
    assert result.code == 2
    assert "pip install 'kvrelease[local]'" in result.err


def test_it_writes_into_no_directory_that_holds_something(kv: Kv, workdir: Path) -> None:
    before = sorted(workdir.iterdir())
    result = kv("demo", "--keep", ".")
    assert result.code == 2
    assert "not an empty directory" in result.err
    assert sorted(workdir.iterdir()) == before


@pytest.mark.parametrize("option", [("--requests", "59"), ("--output", "missing/demo.json")])
def test_what_cannot_work_is_told_before_the_run(kv: Kv, option: tuple[str, str]) -> None:
    result = kv("demo", *option)
    assert result.code == 2
    assert result.out == ""
