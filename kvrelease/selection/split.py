"""Which requests of a log are held out: chosen on one part, the set is judged on the other.

Pure.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence

from kvrelease.workload.logged import LoggedRequest


class SplitBy(enum.StrEnum):
    """What decides which part a request is in."""

    TIME = "time"
    HASH = "hash"
    NONE = "none"


IsHeldOut = Callable[[LoggedRequest], bool]


class Split:
    """How one log is split; every pass over it asks anew, in the log's order."""

    def __init__(self, *, by: SplitBy, share: float, seed: int, from_s: float | None = None) -> None:
        """Makes it.

        Args:
            by: what decides.
            share: of the requests that are held out, 0 … 1.
            seed: of `SplitBy.HASH`.
            from_s: of `SplitBy.TIME`: requests from then on are held out.
        """
        self.by = by
        self.from_s = from_s
        self._share = share
        self._seed = seed

    def judge(self) -> IsHeldOut:
        """Whether each request of one pass is held out."""
        if self.by is SplitBy.NONE:
            return lambda _request: False
        if self.by is SplitBy.TIME:
            start = self.from_s
            assert start is not None, "a split by time has one"
            return lambda request: request.at_s is not None and request.at_s >= start
        draw = random.Random(self._seed)  # noqa: S311 - repeatable, not secret
        return lambda _request: draw.random() < self._share


def split_by(times: Sequence[float] | None, *, share: float, seed: int) -> Split:
    """The split of a log.

    Args:
        times: [requests] when they came; None when one does not say.
        share: of the requests to hold out; 0 holds out none.
        seed: for logs without times, or with one time only.
    """
    if share <= 0:
        return Split(by=SplitBy.NONE, share=0, seed=seed)
    if times:
        ordered = sorted(times)
        from_s = ordered[min(int(len(ordered) * (1 - share)), len(ordered) - 1)]
        if from_s > ordered[0]:
            return Split(by=SplitBy.TIME, share=share, seed=seed, from_s=from_s)
    return Split(by=SplitBy.HASH, share=share, seed=seed)
