"""When an exchange is tried again, and after how long."""

from __future__ import annotations

import datetime
import email.utils
import math
import random

# Four retries, doubling from 0.25 s, spend about 4 s on a server that is not there, and outlast a dropped connection.
MAX_RETRIES = 4
BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0

# A full queue empties in seconds to minutes, and a queue-depth guard answers 429 until then: twice as many, which is
# half a minute where the server does not say how long.
THROTTLED_RETRIES = 2

_PASSING = frozenset({408, 429, 500, 502, 503, 504})
# vLLM and SGLang fail so on log-probabilities of minus infinity, every time.
NOT_JSON_NUMBER = b"Out of range float values"


def may_pass(status: int, data: bytes) -> bool:
    """Whether an answer of this status may be another one when asked again. Any other 4xx will not change."""
    return status in _PASSING and NOT_JSON_NUMBER not in data


def is_throttling(status: int, *, retry_after: str | None) -> bool:
    """Whether an answer asks for fewer requests: too many, or overloaded with a time when it is over."""
    return status == 429 or (status == 503 and retry_after is not None)


def may_have_run(status: int, *, retry_after: str | None) -> bool:
    """Whether an engine may have computed a request that was answered so.

    A gateway answers 5xx and 408 when the engine behind it was cut off, an engine when it failed midway. Any other 4xx,
    and whatever asks for fewer requests, comes before anything is computed.
    """
    return (status >= 500 or status == 408) and not is_throttling(status, retry_after=retry_after)


class Attempts:
    """The attempts of one call, and what the server said about their number.

    Attributes:
        retries: attempts that were repeated.
        lost: of these, those that the engine may have computed all the same.
        was_throttled: an answer asked for fewer requests.
        retry_after_s: the longest wait that the server asked for, seconds; None when it asked for none.
    """

    def __init__(self, *, most: int, backoff_s: float) -> None:
        """Begins a call.

        Args:
            most: retries of what breaks; of what is throttled `THROTTLED_RETRIES` times as many.
            backoff_s: the first wait.
        """
        self._most = most
        self._backoff_s = backoff_s
        self.retries = 0
        self.lost = 0
        self.was_throttled = False
        self.retry_after_s: float | None = None

    def after_answer(self, status: int, data: bytes, *, retry_after: str | None) -> float | None:
        """Seconds to wait before the next attempt after an answer; None where the answer is the last."""
        if not may_pass(status, data):
            return None
        most = self._most
        if is_throttling(status, retry_after=retry_after):
            self.was_throttled = True
            most *= THROTTLED_RETRIES
        asked_s = parse_retry_after(retry_after)
        if asked_s is not None:
            self.retry_after_s = max(asked_s, self.retry_after_s or 0.0)
        pause = self._pause(most, retry_after=retry_after)
        self.lost += pause is not None and may_have_run(status, retry_after=retry_after)
        return pause

    def after_break(self, *, was_sent: bool) -> float | None:
        """Seconds to wait before the next attempt after a connection failed; None where it is given up.

        Args:
            was_sent: the connection had been made, so that the request may have arrived.
        """
        self.lost += was_sent
        return self._pause(self._most, retry_after=None)

    def _pause(self, most: int, *, retry_after: str | None) -> float | None:
        if self.retries >= most:
            return None
        return pause_s(self.retries, backoff_s=self._backoff_s, retry_after=retry_after)


def pause_s(retries: int, *, backoff_s: float, retry_after: str | None) -> float:
    """Seconds to wait before the next attempt: doubling, and at least what the server asks for; with jitter.

    Args:
        retries: attempts that were repeated already.
        backoff_s: the first wait.
        retry_after: the server's header, None without one.
    """
    jitter = random.random()  # noqa: S311 - spreads clients in time, hides nothing
    asked_s = parse_retry_after(retry_after)
    own_s = min(backoff_s * 2.0**retries, MAX_BACKOFF_S)
    if asked_s is not None and asked_s >= own_s:
        return asked_s + backoff_s * jitter
    return max(asked_s or 0.0, own_s * (0.5 + jitter / 2))


def parse_retry_after(text: str | None) -> float | None:
    """Seconds from now that a `Retry-After` header asks for; None when there is none that can be read.

    Source: RFC 9110, section 10.2.3: seconds, or a date.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(text)
        except (ValueError, OverflowError):  # no date, or one of a year that no calendar has
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        value = (moment - datetime.datetime.now(datetime.UTC)).total_seconds()
    return max(value, 0.0) if math.isfinite(value) else None
