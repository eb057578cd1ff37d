"""How many requests may be in flight on one replica now; pure, told what happened and when.

Additive increase, multiplicative decrease, as TCP has it: the number doubles while nothing speaks against more, then
grows by one for each round of answers, and is halved when the server asks for less (429, 503), when requests wait in
its queue, or when the first token takes much longer and no more is computed for it.

Source: D. Chiu, R. Jain, Analysis of the increase and decrease algorithms for congestion avoidance in computer
networks, Computer Networks and ISDN Systems 17 (1989), 1-14.
"""

from __future__ import annotations

import enum
import statistics
from collections import Counter

# Of a fleet's engine nobody named a concurrency for: what a vLLM of one GPU batches easily (`max_num_seqs` is 128 and
# more), and a CPU's server asks back from.
AUTO_CAP = 32
_START = 4
_DECREASE = 0.5
# Requests that wait in the server's queue, for each that we have in flight: more means that it computes them one after
# another, and ours keep its users waiting.
_QUEUE_SHARE = 0.5
# A first token that takes twice as long as the best for a prompt of that size is no noise ...
_INFLATION = 2.0
# ... and is in vain where the time that a request costs the server (by Little's law, its time by the requests in
# flight) is not at least a tenth less than with fewer in flight.
_GAIN = 0.9


class Slower(enum.StrEnum):
    """Why the number of requests in flight was lowered."""

    ASKED = "asked"
    QUEUE = "queue"
    NO_GAIN = "no-gain"


class Pace:
    """The number of requests that may be in flight, between 1 and a cap.

    Args:
        cap: never exceeded, whatever happens.
        start: where it begins; None for a few.

    Attributes:
        limit: how many now.
        lowered_by: how often it was lowered, by why.
    """

    def __init__(self, cap: int, *, start: int | None = None) -> None:
        self._cap = cap
        self.limit = min(cap, _START if start is None else start)
        self.lowered_by: Counter[Slower] = Counter()
        self._doubles = True
        self._not_before_s = 0.0
        self._round: list[float] = []
        self._round_began_s: float | None = None
        self._best_s: dict[int, float] = {}  # by the magnitude of the tokens computed
        self._cost: dict[int, float] = {}  # by the magnitude of the limit

    def answered(
        self,
        *,
        sent_s: float,
        at_s: float,
        was_throttled: bool,
        ttft_s: float | None = None,
        computed_tokens: int | None = None,
    ) -> None:
        """One request came back.

        Args:
            sent_s: when it was sent, by a monotonic clock.
            at_s: when it was answered.
            was_throttled: the server answered 429 or 503 before.
            ttft_s: time to its first token, None when not told.
            computed_tokens: of its prompt; None when not known.
        """
        if was_throttled:
            # Of several that were sent before the limit was lowered, only the first lowers it.
            self._lower(Slower.ASKED, sent_s=sent_s, at_s=at_s)
            return
        if self._round_began_s is None:
            self._round_began_s = sent_s
        self._round.append(self._inflation(ttft_s, computed_tokens))
        if len(self._round) >= self.limit:
            self._end_round(at_s)

    def queued(self, waiting: float, *, at_s: float) -> None:
        """The server told how many requests wait for it."""
        if waiting > max(1.0, _QUEUE_SHARE * self.limit):
            self._lower(Slower.QUEUE, sent_s=at_s, at_s=at_s)

    def _inflation(self, ttft_s: float | None, computed_tokens: int | None) -> float:
        """The time by the best one so far of a request that computed as much; 1 where that is not known."""
        if ttft_s is None or not computed_tokens or ttft_s <= 0:
            return 1.0
        size = computed_tokens.bit_length()
        self._best_s[size] = min(self._best_s.get(size, ttft_s), ttft_s)
        return ttft_s / self._best_s[size]

    def _end_round(self, at_s: float) -> None:
        inflation = statistics.median(self._round)
        cost, level = inflation / self.limit, self.limit.bit_length()
        with_fewer = min((known for other, known in self._cost.items() if other < level), default=None)
        self._cost[level] = min(self._cost.get(level, cost), cost)
        if inflation > _INFLATION and with_fewer is not None and cost > _GAIN * with_fewer:
            began_s = self._round_began_s if self._round_began_s is not None else at_s
            self._lower(Slower.NO_GAIN, sent_s=began_s, at_s=at_s)
            return
        self._new_round()
        self.limit = min(self._cap, self.limit * 2 if self._doubles else self.limit + 1)

    def _lower(self, why: Slower, *, sent_s: float, at_s: float) -> None:
        self._doubles = False
        self._new_round()
        if sent_s < self._not_before_s:
            return
        self._not_before_s = at_s
        if self.limit > 1:
            self.lowered_by[why] += 1
        self.limit = max(1, int(self.limit * _DECREASE))

    def _new_round(self) -> None:
        self._round.clear()
        self._round_began_s = None
