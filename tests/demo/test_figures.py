"""Rates, spreads and the example, on requests whose sums are known."""

from __future__ import annotations

import random

import msgspec
import pytest

from kvrelease.demo.figures import (
    Served,
    Strategy,
    choose_example,
    strategy_figures,
    ttft_gap,
    ttft_spread,
    warm_everywhere,
    wrong_answers,
)
from kvrelease.demo.traffic import Worker
from kvrelease.workload.prompt_set import Prompt, PromptKind


def served(number: int = 0, *, text: str = "new", worker: Worker = Worker.NEW, **changes: object) -> Served:
    values: dict[str, object] = {
        "strategy": Strategy.TOKENS_ONLY,
        "copy": 0,
        "prompt_id": "q",
        "prompt_tokens": 100,
        "cached_tokens": 50,
        "is_warm": True,
        "ttft_s": 0.004,
    }
    return Served(number=number, text=text, worker=worker, **{**values, **changes})  # type: ignore[arg-type]


def prompt(name: str, *, weight: float = 1.0) -> Prompt:
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": f"{name}?"}]
    return Prompt(id=name, weight=weight, kind=PromptKind.CHAT, body={"messages": messages})


CLEAN_OF = {Worker.OLD: {"q": "old"}, Worker.NEW: {"q": "new"}}


def test_rates_are_of_tokens_for_hits_and_of_answers_for_consistency() -> None:
    found = strategy_figures(
        Strategy.TOKENS_ONLY,
        [
            served(0, cached_tokens=0, worker=Worker.OLD, text="old", ttft_s=0.010, is_warm=False),
            served(1, cached_tokens=60, prompt_tokens=300, worker=Worker.OLD, text="odd", ttft_s=0.002),
            served(2, cached_tokens=90, ttft_s=0.006),
            served(3, cached_tokens=30, text="stale"),
            served(3, cached_tokens=30, text="stale", copy=1),
            served(4, strategy=Strategy.BOUND, cached_tokens=0, text="new"),
        ],
        clean=CLEAN_OF,
        key_us=12.5,
    )
    assert found.hit_rate_old == 60 / 400
    assert found.hit_rate_new == 150 / 300
    assert found.consistency == 1 / 3
    assert found.consistency_old == 1 / 2
    assert found.computed_tokens_new == 10 + 70
    assert found.ttft_ms_p50 == pytest.approx(4.0)  # of 2, 6, 4 and 4 ms: the cold one does other work
    assert found.key_us == 12.5


def test_a_request_that_was_cold_in_one_arm_is_compared_in_none() -> None:
    requests = [served(0), served(0, strategy=Strategy.BOUND, is_warm=False), served(1)]
    assert [one.number for one in warm_everywhere(requests)] == [1]


def arms(*, tokens_only: tuple[float, float], bound: tuple[float, float], requests: int = 40) -> list[Served]:
    """Requests of two identical arms for each strategy, every one with its arm's TTFT in seconds."""
    return [
        served(number, strategy=strategy, copy=copy, ttft_s=ttft_s)
        for number in range(requests)
        for strategy, times in ((Strategy.TOKENS_ONLY, tokens_only), (Strategy.BOUND, bound))
        for copy, ttft_s in enumerate(times)
    ]


def test_arms_without_noise_have_no_spread_and_show_every_cost() -> None:
    requests = arms(tokens_only=(0.010, 0.010), bound=(0.0101, 0.0101))
    assert ttft_spread(requests, seed=0) == 0.0
    assert ttft_gap(requests) == pytest.approx(0.0001 / 0.0101)


def test_the_spread_covers_identical_arms_in_19_of_20_runs_and_a_cost_is_seen_beyond_it() -> None:
    covered, seen = [], []
    for seed in range(60):
        noise = random.Random(seed)
        requests = [
            msgspec.structs.replace(one, ttft_s=one.ttft_s * noise.lognormvariate(0, 0.1))
            for one in arms(tokens_only=(0.010, 0.010), bound=(0.010, 0.010), requests=120)
        ]
        dearer = [
            msgspec.structs.replace(one, ttft_s=one.ttft_s * (1.1 if one.strategy is Strategy.BOUND else 1.0))
            for one in requests
        ]
        covered.append(ttft_gap(requests) <= ttft_spread(requests, seed=seed))
        seen.append(ttft_gap(dearer) > ttft_spread(dearer, seed=seed))
    assert sum(covered) >= 54  # 95 % of 60 is 57; three standard deviations of a binomial are 5
    assert sum(seen) >= 54


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
    assert choose_example([], prompts=PROMPTS, old=OLD, clean=CLEAN) is None


def test_only_what_the_new_worker_answered_over_unbound_keys_is_wrong() -> None:
    wrong = served(prompt_id="rare", text="odd")
    requests = [
        wrong,
        served(prompt_id="rare", text="odd", copy=1),
        served(prompt_id="common", text="new"),
        served(prompt_id="common", text="odd", strategy=Strategy.BOUND),
        served(prompt_id="common", text="odd", worker=Worker.OLD),
    ]
    assert wrong_answers(requests, clean=CLEAN) == [wrong]
