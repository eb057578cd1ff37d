from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import pytest

from kvrelease.artifacts import from_json, to_json
from kvrelease.errors import TrafficLogError
from kvrelease.selection.cutting import Unit
from kvrelease.selection.result import Selection
from kvrelease.selection.select import Selected, select
from kvrelease.selection.split import SplitBy
from kvrelease.workload.body import whole_text
from kvrelease.workload.budget import Budget
from kvrelease.workload.logged import LoggedRequest
from tests.selection.builders import chat, desk_log, opened, trace, words


def selecting(
    log: Sequence[LoggedRequest],
    *,
    requests: int | None = None,
    length: int | None = None,
    blocks: int | None = None,
    held_out: float = 0.2,
    seed: int = 0,
) -> Selected:
    budget = Budget(requests=requests, length=length, blocks=blocks)
    return select(opened(log), source="log.jsonl", budget=budget, held_out_share=held_out, seed=seed)


def text_of(request: LoggedRequest) -> str:
    assert request.body is not None
    assert request.kind is not None
    return whole_text(request.body, kind=request.kind)


def hit_rate(log: Sequence[LoggedRequest], kept: Sequence[LoggedRequest], *, block: int = 64) -> float:
    """By comparing whole texts: what a cache that holds the beginnings that come back of `kept` hits of `log`."""
    hits = total = 0
    for request in log:
        text = text_of(request)
        common = 0
        for other in kept:
            shared = next((n for n, (a, b) in enumerate(zip(text, text_of(other), strict=False)) if a != b), len(text))
            common = max(common, min(shared, len(text) - 1) // block * block)
        hits += common
        total += len(text)
    return hits / total


def test_the_most_frequent_system_prompts_are_chosen_first() -> None:
    log = desk_log(600)
    report = selecting(log, requests=6).report
    assert len(report.prompts) == 6
    assert [one.saves for one in report.prompts] == sorted((one.saves for one in report.prompts), reverse=True)
    assert report.proved_share == pytest.approx(1, abs=0.01)
    assert [point.prompts for point in report.curve] == [1, 2, 3, 5, 6]


def test_the_expected_hit_rate_is_what_whole_texts_share() -> None:
    log = desk_log(300)
    found = selecting(log, requests=3)
    assert found.report.held_out is not None
    assert found.report.split is SplitBy.TIME
    assert found.report.held_out.requests == 60
    assert found.report.held_out.hit_rate == pytest.approx(hit_rate(log[240:], found.requests), abs=1e-9)
    assert found.report.curve[-1].held_out_hit_rate == found.report.held_out.hit_rate
    assert found.report.held_out.ceiling is not None
    assert found.report.held_out.ceiling > (found.report.held_out.hit_rate or 0)


def test_a_chosen_set_hits_more_of_held_out_traffic_than_a_random_one_of_equal_size() -> None:
    log = desk_log(400, desks=40)
    found = selecting(log, requests=8)
    assert found.report.held_out is not None
    rate = found.report.held_out.hit_rate
    rng = random.Random(1)
    others = [hit_rate(log[320:], rng.sample(log[:320], 8)) for _ in range(5)]
    assert rate is not None
    assert rate > max(others)


def test_weights_share_out_the_traffic_that_is_covered() -> None:
    log = desk_log(500, timed=False)
    report = selecting(log, requests=3, held_out=0).report
    counts = sorted(
        (sum(one.body["messages"][0] == other.body["messages"][0] for other in log) for one in _one_per_desk(log)),  # type: ignore[index]
        reverse=True,
    )
    assert [one.weight for one in report.prompts] == counts[:3]
    assert report.held_out is None


def _one_per_desk(log: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    return list({str(request.body["messages"][0]): request for request in log if request.body}.values())  # type: ignore[index]


def test_a_long_prompt_that_was_sent_once_is_worth_nothing() -> None:
    rng = random.Random(2)
    shared = words(rng, 300)
    log = [chat(words(rng, 50_000), "once", line=1), *(chat(shared, words(rng, 30), line=n) for n in (2, 3))]
    assert [one.line for one in selecting(log, requests=5, held_out=0).report.prompts] == [2]


def test_the_shortest_prompt_through_a_beginning_stands_for_it() -> None:
    rng = random.Random(3)
    shared = words(rng, 640)
    log = [chat(shared, words(rng, size), line=line) for line, size in enumerate((900, 90, 400), start=1)]
    assert [one.line for one in selecting(log, requests=1, held_out=0).report.prompts] == [2]


@pytest.mark.parametrize(("name", "limit"), [("length", 2700), ("blocks", 40)])
def test_a_budget_of_lengths_or_blocks_is_kept(name: str, limit: int) -> None:
    report = selecting(desk_log(300), **{name: limit}).report
    spent = {"length": report.curve[-1].length, "blocks": report.curve[-1].blocks}
    assert len(report.prompts) == 2
    assert limit * 0.8 < spent[name] <= limit


def test_tenants_and_models_share_nothing_and_are_counted_as_key_spaces() -> None:
    rng = random.Random(4)
    shared = words(rng, 640)
    log = [
        chat(shared, words(rng, 80), line=line, salt=salt, model=model)
        for line, (salt, model) in enumerate([("a", None), ("b", None), (None, "lora"), (None, None)] * 3, start=1)
    ]
    found = selecting(log, requests=9, held_out=0)
    assert found.report.key_spaces == len(found.report.prompts) == 4
    assert {(one.salt, one.model) for one in found.requests} == {("a", None), ("b", None), (None, "lora"), (None, None)}


def test_a_trace_gives_figures_and_no_set() -> None:
    log = [trace(1, 2, 3 + n, 100 + n, tokens=512 * 3 + 10, line=n + 1, at_s=float(n)) for n in range(50)]
    found = selecting(log, requests=5)
    report = found.report
    assert (report.is_trace, report.unit, report.block, found.requests) == (True, Unit.TOKENS, 512, ())
    assert len(report.prompts) == 1
    assert report.held_out is not None
    assert report.held_out.hit_rate == pytest.approx(1024 / 1546)


def test_equal_logs_and_seeds_choose_alike_and_another_seed_holds_out_others() -> None:
    log = desk_log(300, timed=False)
    first, again, other = (selecting(log, requests=4, seed=seed).report for seed in (1, 1, 2))
    assert first.split is SplitBy.HASH
    assert (first.prompts, first.curve, first.held_out) == (again.prompts, again.curve, again.held_out)
    assert first.held_out != other.held_out


def test_a_log_with_one_time_only_is_split_by_hash() -> None:
    log = [chat("x" * 200, str(n), line=n + 1, at_s=5.0) for n in range(100)]
    assert selecting(log, requests=2).report.split is SplitBy.HASH


def test_a_time_that_is_missing_late_in_the_log_does_not_split_by_time() -> None:
    log = [*(chat("x" * 70, str(n), at_s=float(n)) for n in range(1100)), chat("x" * 70, "y")]
    assert selecting(log, requests=2).report.split is SplitBy.HASH


def test_a_log_that_grows_while_it_is_read_is_an_error() -> None:
    log = desk_log(50, timed=False)
    passes = 0

    def open_log(_pass: str) -> Iterator[LoggedRequest]:
        nonlocal passes
        passes += 1
        return iter(log if passes < 4 else [*log, log[0]])

    with pytest.raises(TrafficLogError, match="it changed while it was read"):
        select(open_log, source="log.jsonl", budget=Budget(requests=3), held_out_share=0.2)


def test_a_log_without_text_or_hashes_cannot_be_chosen_from() -> None:
    with pytest.raises(TrafficLogError, match="neither text nor hashes"):
        selecting([trace(tokens=500)], requests=1)


def test_holding_everything_out_is_an_error() -> None:
    with pytest.raises(TrafficLogError, match="every request is held out"):
        selecting([chat("a" * 200, "b")], requests=1, held_out=1.0)


def test_prompts_shorter_than_a_block_are_told_and_nothing_is_chosen() -> None:
    report = selecting([chat("short", "one", line=n) for n in range(4)], requests=3, held_out=0).report
    assert (report.prompts, report.uncacheable_weight) == ((), 4)
    assert any("nothing was chosen" in warning for warning in report.warnings)


def test_a_small_sketch_chooses_the_heavy_prompts_all_the_same_and_says_what_may_be_missing() -> None:
    log = desk_log(600)
    small = select(
        opened(log), source="log.jsonl", budget=Budget(requests=3), held_out_share=0.2, max_blocks=200
    ).report
    large = selecting(log, requests=3).report
    assert small.undercount > 0
    assert any("may be missing" in warning for warning in small.warnings)
    assert small.held_out is not None
    assert large.held_out is not None
    assert math.isclose(small.held_out.hit_rate or 0, large.held_out.hit_rate or 1, rel_tol=0.02)


def test_the_artifact_is_read_back() -> None:
    report = selecting(desk_log(60), requests=3).report
    assert from_json(to_json(report).encode(), Selection, source="x") == report


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_a_prompt_saves_what_comes_back_to_its_blocks_and_the_first_request_is_none_of_it(weight: float) -> None:
    log = [chat("a" * 200, f"{n} and more", line=n + 1, weight=weight) for n in range(4)]
    (chosen,) = selecting(log, requests=3, held_out=0.0).report.prompts
    assert (chosen.saves, chosen.weight) == (3 * weight * 3 * 64, 4 * weight)
