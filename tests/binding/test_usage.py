"""What counters say of the window between two looks at them."""

from __future__ import annotations

import pytest

from kvrelease.binding.usage import counted_hit
from kvrelease.engines.base import Counters


def counters(queried: float, cached: float, external: float | None = None) -> Counters:
    return Counters(queried_tokens=queried, cached_tokens=cached, external_cached_tokens=external)


@pytest.mark.parametrize(
    ("before", "after", "hit"),
    [
        (counters(1000, 10), counters(1100, 74), 64),
        (counters(1000, 10, 5), counters(1100, 26, 53), 64),
        (None, counters(100, 64), 64),  # they appear with their first increment
        (counters(1000, 10), counters(1100, 10, 64), 64),  # so does that of a store outside the process
        (counters(1000, 10, 500), counters(1100, 10, 64), None),  # it went back: that of another process
        (counters(1000, 10), counters(1101, 74), None),  # somebody else asked as well
        (counters(1000, 10), counters(100, 64), None),  # a restart
        (counters(1000, 10, 0), counters(1100, 74, 64), None),  # more than was asked for
        (counters(1000, 10), None, None),
    ],
)
def test_the_hit_of_one_request_of_a_hundred_tokens(before: Counters | None, after: Counters | None, hit: int) -> None:
    assert counted_hit(before, after, prompt_tokens=100) == hit
    assert counted_hit(before, after, prompt_tokens=None) is None
