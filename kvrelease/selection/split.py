"""Which requests of a log are held out: chosen on one part, the set is judged on the other.

Pure.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Sequence

from kvrelease.workload.logged import LoggedRequest

# What a bound of strata that is whole in decimals may be off by in binary.
_ROUNDING = 1e-9


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
        draw = _Draw(share=self._share, seed=self._seed)
        return lambda _request: draw.takes_next()


class _Draw:
    """One request of every so many, at random within them: the share is exact, however few there are.

    Drawn each for itself, twenty requests at a fifth are held out as none or as eight. The first request is never
    drawn: where there is no other, it is chosen from.
    """

    def __init__(self, *, share: float, seed: int) -> None:
        self._share = share
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._seen = 0
        self._strata = 0
        self._end = 0
        self._drawn = 0

    def takes_next(self) -> bool:
        if self._seen == self._end:
            self._strata += 1
            start, self._end = self._end, math.ceil(self._strata / self._share - _ROUNDING)
            self._drawn = self._random.randrange(max(start, min(1, self._end - 1)), self._end)
        is_taken = self._seen == self._drawn
        self._seen += 1
        return is_taken


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
