"""How requests reach one replica; what they are is told by the tests of whole runs."""

from __future__ import annotations

import pytest

from kvrelease.prewarm import sending
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import warmed


def test_a_queue_at_the_server_lowers_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "QUEUE_POLL_S", 0.001)
    monkeypatch.setattr(sending, "_POLL_SHARE_S", 0.001)
    with ScriptedEngine(release="new") as engine:
        engine.waiting = 50
        (found,) = warmed(engine).replicas
        assert found.throttled > 0
        assert found.hit_rate_after == 1.0
