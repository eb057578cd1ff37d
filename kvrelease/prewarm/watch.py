"""Progress of a prewarm: a line for each replica, or one for all of many."""

from __future__ import annotations

from kvrelease.progress import Progress, ProgressEvent

# Bars that a terminal shows at once without scrolling its last command away.
MAX_LINES = 10


class Watch:
    """Counts requests, and tells after each."""

    def __init__(self, progress: Progress, *, replicas: int) -> None:
        """Tells `progress` of so many replicas."""
        self._progress = progress
        self._replicas = replicas
        self._done: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def expect(self, replica: str, requests: int) -> None:
        """So many requests are to be answered by a replica, in all."""
        stage = self._stage(replica)
        self._total[stage] = self._total.get(stage, 0) + requests

    def answered(self, replica: str) -> None:
        """One more was."""
        stage = self._stage(replica)
        done = self._done[stage] = self._done.get(stage, 0) + 1
        total = max(done, self._total.get(stage, 0))
        self._progress(ProgressEvent(stage=stage, done=done, total=total, unit="requests"))

    def _stage(self, replica: str) -> str:
        if self._replicas == 1:
            return "prewarming"
        return f"prewarming {replica}" if self._replicas <= MAX_LINES else f"prewarming {self._replicas} replicas"
