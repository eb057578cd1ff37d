"""A Hub of one's own, where the environment leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.release.hub_server import Hub, serve_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield served
