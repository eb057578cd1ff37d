from __future__ import annotations

import datetime
import email.utils

import pytest

from kvrelease.engines.retry import MAX_BACKOFF_S, Attempts, may_pass, parse_retry_after, pause_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("2.5", 2.5), ("-1", 0.0), ("soon", None), ("", None), ("inf", None), (None, None), ("1e400", None)],
)
def test_seconds_are_read_and_nonsense_is_not(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text) == seconds


def test_a_date_is_read_with_and_without_its_zone() -> None:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    for text in (email.utils.format_datetime(moment), email.utils.format_datetime(moment.replace(tzinfo=None))):
        assert parse_retry_after(text) == pytest.approx(100, abs=2)


@pytest.mark.parametrize(
    "text",
    [
        "Fri, 31 Dec 9999999999999999999999 23:59:59 GMT",
        "Fri, 31 Dec 10000 23:59:59 GMT",
        "Fri, 31 Dec 2026 23:59:59 +99999999999999999999",
        "Fri, 99 Dec 2026 99:99:99 GMT",
        "Fri, 31 Dec 0 23:59:59 GMT",
        "9" * 5000,
        "\x00",
        ", , ,",
    ],
)
def test_no_header_of_a_server_is_a_fault_of_ours(text: str) -> None:
    assert parse_retry_after(text) is None or parse_retry_after(text) == 0.0


def test_waits_double_up_to_a_limit_and_have_jitter() -> None:
    for retries, longest in ((0, 0.25), (1, 0.5), (3, 2.0), (30, MAX_BACKOFF_S)):
        waits = {pause_s(retries, backoff_s=0.25, retry_after=None) for _ in range(50)}
        assert len(waits) > 1
        assert longest / 2 <= min(waits)
        assert max(waits) <= longest


def test_the_server_is_given_at_least_what_it_asks_for() -> None:
    assert all(3.0 <= pause_s(0, backoff_s=0.25, retry_after="3") <= 3.25 for _ in range(50))


def test_a_server_that_asks_for_no_wait_again_and_again_is_not_hammered() -> None:
    assert all(pause_s(3, backoff_s=0.25, retry_after="0") >= 1.0 for _ in range(50))


def test_what_is_throttled_is_tried_longer_than_what_breaks() -> None:
    def tried(status: int, retry_after: str | None) -> tuple[int, bool, float | None]:
        attempts = Attempts(most=2, backoff_s=0.25)
        while attempts.after_answer(status, b"", retry_after=retry_after) is not None:
            attempts.retries += 1
        return attempts.retries, attempts.was_throttled, attempts.retry_after_s

    assert tried(429, None) == (4, True, None)
    assert tried(429, "7") == (4, True, 7.0)
    assert tried(503, "7") == (4, True, 7.0)
    assert tried(503, None) == (2, False, None)
    assert tried(500, None) == (2, False, None)
    assert tried(400, "7") == (0, False, None)


def test_what_an_engine_may_have_computed_is_lost_and_what_it_turned_away_is_not() -> None:
    def lost(status: int, retry_after: str | None = None) -> int:
        attempts = Attempts(most=1, backoff_s=0.25)
        attempts.after_answer(status, b"", retry_after=retry_after)
        return attempts.lost

    assert [lost(status) for status in (408, 500, 502, 503, 504)] == [1] * 5
    assert [lost(429), lost(429, "7"), lost(503, "7"), lost(400)] == [0] * 4
    attempts = Attempts(most=4, backoff_s=0.25)
    for was_sent in (True, False, True):
        attempts.after_break(was_sent=was_sent)
    assert attempts.lost == 2


def test_the_longest_wait_that_was_asked_for_is_told() -> None:
    attempts = Attempts(most=4, backoff_s=0.25)
    for asked in ("3", "1"):
        attempts.after_answer(429, b"", retry_after=asked)
    assert attempts.retry_after_s == 3.0


def test_a_500_that_is_always_the_same_does_not_pass() -> None:
    assert may_pass(500, b"oops")
    assert not may_pass(500, b"ValueError: Out of range float values are not JSON compliant: -inf")
    assert not may_pass(404, b"")
