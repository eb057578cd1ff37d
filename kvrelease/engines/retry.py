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

_PASSING = frozenset({408, 429, 500, 502, 503, 504})
# vLLM and SGLang fail so on log-probabilities of minus infinity, every time.
NOT_JSON_NUMBER = b"Out of range float values"


def may_pass(status: int, data: bytes) -> bool:
    """Whether an answer of this status may be another one when asked again. Any other 4xx will not change."""
    return status in _PASSING and NOT_JSON_NUMBER not in data


def pause_s(retries: int, *, backoff_s: float, retry_after: str | None) -> float:
    """Seconds to wait before the next attempt: what the server asks for, else doubling; both with jitter.

    Args:
        retries: attempts that were repeated already.
        backoff_s: the first wait.
        retry_after: the server's header, None without one.
    """
    jitter = random.random()  # noqa: S311 - spreads clients in time, hides nothing
    asked_s = parse_retry_after(retry_after)
    if asked_s is not None:
        return asked_s + backoff_s * jitter
    return min(backoff_s * 2.0**retries, MAX_BACKOFF_S) * (0.5 + jitter / 2)


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
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        value = (moment - datetime.datetime.now(datetime.UTC)).total_seconds()
    return max(value, 0.0) if math.isfinite(value) else None
