"""How many requests are in flight, as a server of known behaviour answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvrelease.prewarm.pace import AUTO_CAP, Pace, Slower

TOKENS = 100


class Server:
    """A clock, and a server whose first token takes `ttft_s(in flight)`."""

    def __init__(self, pace: Pace, ttft_s: Callable[[int], float]) -> None:
        self.pace, self.ttft_s = pace, ttft_s
        self.now_s = 0.0
        self.limits: list[int] = []

    def answer(self, rounds: int, *, throttled: bool = False) -> None:
        """So many rounds of as many requests as may be in flight."""
        for _ in range(rounds):
            together, sent_s = self.pace.limit, self.now_s
            self.limits.append(together)
            took_s = self.ttft_s(together)
            self.now_s += took_s
            for _ in range(together):
                self.pace.answered(
                    sent_s=sent_s, at_s=self.now_s, was_throttled=throttled, ttft_s=took_s, computed_tokens=TOKENS
                )


def test_a_server_that_takes_more_gets_more_up_to_the_cap_and_never_beyond() -> None:
    server = Server(Pace(13), lambda _: 0.1)
    server.answer(12)
    assert server.limits[:3] == [4, 8, 13]
    assert set(server.limits[2:]) == {13}
    assert server.pace.lowered_by.total() == 0


@pytest.mark.parametrize("cap", [1, 2, AUTO_CAP])
def test_the_first_requests_do_not_exceed_a_small_cap(cap: int) -> None:
    assert Pace(cap).limit == min(cap, 4)


def test_a_server_that_asks_for_less_gets_half_and_then_slowly_more() -> None:
    server = Server(Pace(32), lambda _: 0.1)
    server.answer(3)
    assert server.pace.limit == 32
    server.answer(1, throttled=True)
    assert (server.pace.limit, server.pace.lowered_by) == (16, {Slower.ASKED: 1})
    server.answer(3)
    assert server.pace.limit == 19


def test_it_never_stops_altogether() -> None:
    server = Server(Pace(8), lambda _: 0.1)
    server.answer(20, throttled=True)
    assert server.pace.limit == 1
    server.answer(2)
    assert server.pace.limit == 3


def test_answers_to_what_was_sent_before_lower_it_once() -> None:
    pace = Pace(8, start=8)
    for _ in range(8):
        pace.answered(sent_s=0.0, at_s=1.0, was_throttled=True)
    assert (pace.limit, pace.lowered_by.total()) == (4, 1)


def test_a_queue_of_its_own_making_lowers_it() -> None:
    pace = Pace(32, start=8)
    pace.queued(3.0, at_s=1.0)
    assert pace.limit == 8
    pace.queued(5.0, at_s=2.0)
    assert (pace.limit, pace.lowered_by) == (4, {Slower.QUEUE: 1})


def test_a_server_that_computes_one_after_another_is_not_made_to_queue() -> None:
    server = Server(Pace(64), lambda together: 0.1 * together)
    server.answer(40)
    assert max(server.limits[10:]) <= 16
    assert server.pace.lowered_by.total() > 0


def test_a_server_that_batches_keeps_its_requests_though_each_takes_longer() -> None:
    server = Server(Pace(16), lambda together: 0.1 * together**0.5)
    server.answer(20)
    assert set(server.limits[3:]) == {16}


def test_prompts_of_other_lengths_are_not_taken_for_a_slow_server() -> None:
    pace = Pace(16, start=4)
    for step in range(200):
        tokens = 600 if step % 5 == 0 else 20
        pace.answered(
            sent_s=step * 0.1, at_s=step * 0.1 + 1, was_throttled=False, ttft_s=tokens / 100, computed_tokens=tokens
        )
    assert (pace.limit, pace.lowered_by.total()) == (16, 0)


def test_unknown_times_speak_neither_for_nor_against() -> None:
    pace = Pace(16)
    for _ in range(40):
        pace.answered(sent_s=0.0, at_s=1.0, was_throttled=False)
    assert pace.limit == 16


def test_a_queue_lowers_it_from_more_than_half_of_ours_and_more_than_one() -> None:
    few, many, one = Pace(32, start=8), Pace(32, start=8), Pace(32, start=1)
    few.queued(4.0, at_s=1.0)
    many.queued(4.2, at_s=1.0)
    one.queued(1.0, at_s=1.0)
    assert (few.limit, many.limit, one.limit) == (8, 4, 1)
    for step in (2.0, 3.0, 3.0):
        one.answered(sent_s=step, at_s=step, was_throttled=False)
    assert one.limit == 4, "it goes on doubling"


def test_one_request_at_a_time_is_never_called_lowered() -> None:
    pace = Pace(1)
    pace.queued(9.0, at_s=1.0)
    assert (pace.limit, pace.lowered_by.total()) == (1, 0)


def test_long_prompts_after_short_ones_are_not_taken_for_a_slow_server() -> None:
    pace = Pace(16, start=4)
    for step in range(80):
        tokens = 20 if step < 40 else 600
        pace.answered(sent_s=step, at_s=step + 1, was_throttled=False, ttft_s=tokens / 100, computed_tokens=tokens)
    assert (pace.limit, pace.lowered_by.total()) == (16, 0)


def rounds(pace: Pace, *rounds_of_s: tuple[float, ...]) -> None:
    """Rounds of answers whose first tokens took so long, one after the other."""
    for number, times in enumerate(rounds_of_s):
        for ttft_s in times:
            sent_s = 10.0 * number
            pace.answered(
                sent_s=sent_s, at_s=sent_s + ttft_s, was_throttled=False, ttft_s=ttft_s, computed_tokens=TOKENS
            )


def test_a_first_token_of_more_than_twice_the_best_lowers_it_where_nothing_is_won() -> None:
    slow, bearable, half_as_dear = (Pace(4, start=2) for _ in range(3))
    rounds(slow, (0.1, 0.1), (0.201,) * 4)
    rounds(bearable, (0.1, 0.1), (0.2,) * 4)
    rounds(half_as_dear, (0.1, 0.1), (0.179,) * 4)
    assert (slow.lowered_by, bearable.lowered_by, half_as_dear.lowered_by) == ({Slower.NO_GAIN: 1}, {}, {})


def test_one_slow_answer_of_a_round_does_not_lower_it() -> None:
    pace = Pace(8, start=4)
    rounds(pace, (0.1,) * 4, (*(0.1,) * 6, 0.1, 9.0))
    assert pace.lowered_by.total() == 0


def test_the_least_that_a_request_cost_with_fewer_in_flight_is_remembered() -> None:
    """A slow round of seven does not make eight look cheap: with four each cost less."""
    pace = Pace(8, start=8)
    pace.queued(9.0, at_s=0.0)
    rounds(pace, (0.1,) * 4, (0.1,) * 5, (0.1,) * 6, (0.2,) * 7, (0.205,) * 8)
    assert pace.lowered_by.total() == 2
