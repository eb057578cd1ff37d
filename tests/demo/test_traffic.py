"""What the traffic promises: weights, shares, the same draw for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from kvrelease.demo.traffic import Worker, draw_traffic
from kvrelease.workload.prompt_set import Prompt, PromptKind

PROMPTS = tuple(
    Prompt(id=name, weight=weight, kind=PromptKind.CHAT, body={"messages": []})
    for name, weight in (("common", 9.0), ("rare", 1.0))
)


@pytest.mark.parametrize("requests", [60, 61, 240, 300])
def test_none_then_a_fifth_then_all_of_the_traffic_is_moved(requests: int) -> None:
    turns = draw_traffic(PROMPTS, requests=requests, seed=3)
    assert len(turns) == requests
    parts = [turns[part * requests // 3 : (part + 1) * requests // 3] for part in range(3)]
    moved = [sum(turn.worker is Worker.NEW for turn in part) for part in parts]
    assert moved == [0, round(0.2 * len(parts[1])), len(parts[2])]


def test_prompts_come_by_their_weight() -> None:
    count = Counter(turn.prompt_id for turn in draw_traffic(PROMPTS, requests=3000, seed=1))
    assert 0.88 < count["common"] / 3000 < 0.92  # 4 standard deviations of a share of 0.9


def test_a_seed_decides_everything() -> None:
    first, again, other = (draw_traffic(PROMPTS, requests=90, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other
