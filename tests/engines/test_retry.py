from __future__ import annotations

import datetime
import email.utils

import pytest

from kvrelease.engines.retry import MAX_BACKOFF_S, may_pass, parse_retry_after, pause_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("2.5", 2.5), ("-1", 0.0), ("soon", None), ("", None), ("inf", None), (None, None)],
)
def test_seconds_are_read_and_nonsense_is_not(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text) == seconds


def test_a_date_is_read_with_and_without_its_zone() -> None:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    for text in (email.utils.format_datetime(moment), email.utils.format_datetime(moment.replace(tzinfo=None))):
        assert parse_retry_after(text) == pytest.approx(100, abs=2)


def test_waits_double_up_to_a_limit_and_have_jitter() -> None:
    for retries, longest in ((0, 0.25), (1, 0.5), (3, 2.0), (30, MAX_BACKOFF_S)):
        waits = {pause_s(retries, backoff_s=0.25, retry_after=None) for _ in range(50)}
        assert len(waits) > 1
        assert longest / 2 <= min(waits)
        assert max(waits) <= longest


def test_the_server_is_given_at_least_what_it_asks_for() -> None:
    assert all(3.0 <= pause_s(0, backoff_s=0.25, retry_after="3") <= 3.25 for _ in range(50))


def test_a_500_that_is_always_the_same_does_not_pass() -> None:
    assert may_pass(500, b"oops")
    assert not may_pass(500, b"ValueError: Out of range float values are not JSON compliant: -inf")
    assert not may_pass(404, b"")
