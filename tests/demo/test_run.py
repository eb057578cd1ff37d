"""What cannot be run; what a run shows is tested in tests/live/test_demo.py."""

from __future__ import annotations

import asyncio

import pytest

from kvrelease.demo.pair import shipped_pair
from kvrelease.demo.run import demo
from kvrelease.errors import UsageError


def test_a_handful_of_requests_shows_nothing() -> None:
    with pytest.raises(UsageError, match="at least 60"):
        asyncio.run(demo(shipped_pair(), requests=59))
