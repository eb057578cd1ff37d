"""Rates, spreads and the example, on requests whose sums are known."""

from __future__ import annotations

import pytest

from kvrelease.demo.figures import (
    ROUNDS,
    Served,
    Strategy,
    choose_example,
    strategy_figures,
    ttft_gap,
    ttft_spread,
)
from kvrelease.demo.traffic import Worker
from kvrelease.workload.prompt_set import Prompt, PromptKind


def served(number: int = 0, *, text: str = "new", worker: Worker = Worker.NEW, **changes: object) -> Served:
    values: dict[str, object] = {
        "strategy": Strategy.TOKENS_ONLY,
        "twin": 0,
        "prompt_id": "q",
        "prompt_tokens": 100,
        "cached_tokens": 50,
        "ttft_s": 0.004,
    }
    return Served(number=number, text=text, worker=worker, **{**values, **changes})  # type: ignore[arg-type]


def prompt(name: str, *, weight: float = 1.0) -> Prompt:
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": f"{name}?"}]
    return Prompt(id=name, weight=weight, kind=PromptKind.CHAT, body={"messages": messages})


def test_rates_are_of_tokens_for_hits_and_of_answers_for_consistency() -> None:
    found = strategy_figures(
        Strategy.TOKENS_ONLY,
        [
            served(cached_tokens=0, worker=Worker.OLD, text="old", ttft_s=0.010),
            served(cached_tokens=60, prompt_tokens=300, worker=Worker.OLD, text="old", ttft_s=0.002),
            served(cached_tokens=90),
            served(cached_tokens=30, text="stale"),
            served(strategy=Strategy.BOUND, cached_tokens=0, text="new"),
        ],
        clean={"q": "new"},
        key_us=12.5,
    )
    assert found.hit_rate_old == 60 / 400
    assert found.hit_rate_new == 120 / 200
    assert found.consistency == 0.5
    assert found.ttft_ms_p50 == pytest.approx(4.0)
    assert found.key_us == 12.5


def twins(first_s: float, second_s: float, *, strategy: Strategy, parts: range = range(ROUNDS)) -> list[Served]:
    """Two requests for each part of the run and each of two identical arms."""
    return [
        served(2 * part + place, strategy=strategy, twin=twin, ttft_s=ttft_s)
        for part in parts
        for place in (0, 1)
        for twin, ttft_s in ((0, first_s), (1, second_s))
    ]


def test_the_spread_is_the_largest_difference_of_identical_arms_in_any_part() -> None:
    bound = twins(0.010, 0.010, strategy=Strategy.BOUND)
    quiet = twins(0.010, 0.010, strategy=Strategy.TOKENS_ONLY)
    assert ttft_spread(bound + quiet) == 0.0
    last = range(ROUNDS - 1, ROUNDS)
    disturbed = twins(0.010, 0.010, strategy=Strategy.TOKENS_ONLY, parts=range(ROUNDS - 1))
    disturbed += twins(0.010, 0.012, strategy=Strategy.TOKENS_ONLY, parts=last)
    assert ttft_spread(bound + disturbed) == pytest.approx(0.002 / 0.011)


def test_the_gap_is_between_strategies_over_the_whole_run() -> None:
    requests = twins(0.010, 0.010, strategy=Strategy.TOKENS_ONLY) + twins(0.012, 0.012, strategy=Strategy.BOUND)
    assert ttft_gap(requests) == pytest.approx(0.002 / 0.011)


PROMPTS = {one.id: one for one in (prompt("rare"), prompt("usual", weight=5.0), prompt("common", weight=9.0))}
OLD = dict.fromkeys(PROMPTS, "old")
CLEAN = dict.fromkeys(PROMPTS, "new")


def test_the_example_belongs_to_neither_release_if_any_answer_does() -> None:
    found = choose_example(
        [
            served(prompt_id="common", text="old"),
            served(prompt_id="rare", text="nonsense"),
            served(prompt_id="usual", text="neither", cached_tokens=80),
        ],
        prompts=PROMPTS,
        old=OLD,
        clean=CLEAN,
    )
    assert found is not None
    assert (found.question, found.old, found.stale, found.clean) == ("usual?", "old", "neither", "new")
    assert (found.cached_tokens, found.prompt_tokens) == (80, 100)


def test_the_old_answer_is_an_example_too() -> None:
    found = choose_example([served(prompt_id="rare", text="old")], prompts=PROMPTS, old=OLD, clean=CLEAN)
    assert found is not None
    assert found.stale == "old"


def test_clean_answers_and_bound_arms_are_no_example() -> None:
    requests = [
        served(prompt_id="common", text="new"),
        served(prompt_id="common", text="odd", strategy=Strategy.BOUND),
        served(prompt_id="common", text="odd", worker=Worker.OLD),
    ]
    assert choose_example(requests, prompts=PROMPTS, old=OLD, clean=CLEAN) is None
