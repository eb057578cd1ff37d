"""How requests reach one replica; what they are is told by the tests of whole runs."""

from __future__ import annotations

import pytest

from kvrelease.prewarm import sending
from kvrelease.prewarm.pace import Slower
from tests.engines.scripted import ScriptedEngine
from tests.verify.deployments import warmed


def test_a_queue_at_the_server_lowers_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "QUEUE_POLL_S", 0.001)
    monkeypatch.setattr(sending, "_POLL_SHARE_S", 0.001)
    with ScriptedEngine(release="new") as engine:
        engine.waiting = 50
        report = warmed(engine)
    (found,) = report.replicas
    assert found.throttled > 0
    assert sum(found.lowered_by.values()) == found.throttled
    assert found.hit_rate_after == 1.0
    queued = (
        f"fewer requests in flight, because requests waited in the server's queue ({found.lowered_by[Slower.QUEUE]} ×)"
    )
    assert any(queued in note for note in report.notes)
