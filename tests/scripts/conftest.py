"""`scripts/` is no installed package: its folder goes on the path, as it does when `scripts/engines.py` runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from provision.places import Places
from provision.progress import Progress


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(root=tmp_path / "cache")


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def progress(lines: list[str]) -> Progress:
    return Progress(say=lines.append)
