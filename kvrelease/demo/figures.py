"""What the demo's requests add up to. Computes, and touches nothing."""

from __future__ import annotations

import enum
import random
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.artifacts import Artifact, Fault, ReleaseRef, Verdict
from kvrelease.demo.traffic import Worker
from kvrelease.release.diff_record import KvStatus
from kvrelease.workload.prompt_set import Prompt

# Which of two identical arms served a request first is chance, so swapping them request by request shows how far apart
# the medians of identical arms may lie. Source: E. S. Edgington, Randomization Tests, 1980 (paired designs).
RELABELLINGS = 400
SPREAD_QUANTILE = 0.95


class Strategy(enum.StrEnum):
    """What keys a block."""

    TOKENS_ONLY = "tokens-only"
    BOUND = "bound"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that a user got.

    Attributes:
        number: place of the request in the traffic, from 0.
        strategy: of the arm.
        copy: which of the arm's identical copies.
        worker: who answered.
        prompt_id: what was asked.
        text: the answer.
        prompt_tokens: of the request.
        cached_tokens: of these, from the store.
        is_warm: all of them that can come from a cache did.
        ttft_s: seconds to the first token.
    """

    number: int
    strategy: Strategy
    copy: int
    worker: Worker
    prompt_id: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    is_warm: bool
    ttft_s: float


class StrategyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        name: the strategy.
        hit_rate_old: cached share of the prompt tokens that the old worker got, 0 to 1.
        hit_rate_new: of those that the new worker got.
        consistency: share of the new worker's answers that equal the new release's own clean answers, 0 to 1.
        consistency_old: the same of the old worker, which finds what the new one left.
        computed_tokens_new: prompt tokens that the new worker computed, in one arm: what a cold cache costs once.
        ttft_ms_p50: median time to the first token of requests that were warm in every arm, over both workers.
        key_us: microseconds to make the keys of one prompt's blocks, median.
    """

    name: Strategy
    hit_rate_old: float
    hit_rate_new: float
    consistency: float
    consistency_old: float
    computed_tokens_new: int
    ttft_ms_p50: float
    key_us: float


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One question with three answers.

    Attributes:
        question: of the user.
        old: the old release's clean answer.
        stale: what the new worker answered from keys made of tokens only.
        clean: the new release's own clean answer.
        cached_tokens: of the stale answer's prompt.
        prompt_tokens: of that prompt.
    """

    question: str
    old: str
    stale: str
    clean: str
    cached_tokens: int
    prompt_tokens: int


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` says about the new worker of one arm.

    Attributes:
        strategy: of the arm.
        verdict: of the gate.
        reason: in its words.
        probes: that were judged.
        stale: of these, proved to be stale.
        suspect: of these, not repeated once failure was proven.
        stale_below: the share that it was asked to exclude, 0 to 1.
    """

    strategy: Strategy
    verdict: Verdict
    reason: str
    probes: int
    stale: int
    suspect: int
    stale_below: float


class Impact(msgspec.Struct, frozen=True, kw_only=True):
    """What `diff` says about the pair."""

    status: KvStatus
    summary: str


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a demo left behind, as paths that the user can type.

    Attributes:
        old: directory of the release before.
        new: directory of the release after.
        store: directory of blocks, as the traffic of both kinds of keys left it.
    """

    old: str
    new: str
    store: str


class DemoReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/demo"):
    """What `kvrelease demo` says; every figure was measured in this run.

    Attributes:
        old: the release before.
        new: the release after.
        strategies: tokens-only, then bound.
        ttft_spread: how far the median TTFT of two identical arms may lie apart (`SPREAD_QUANTILE` of
            `RELABELLINGS`), as a share of the larger one, 0 to 1.
        ttft_gap: how far the medians of the two strategies lie apart, likewise.
        ttft_requests: requests that were warm in every arm, which both are told of.
        example: one question; None when no answer was stale.
        stale: wrong answers of the new worker in the tokens-only arm.
        stale_of_neither: of these, neither the old release's answer nor the new one's.
        impact: of the upgrade on old KV.
        gates: what the release gate says about each arm.
        requests: sent to each arm.
        moved: of these, to the new worker.
        different: questions that the two releases answer differently.
        questions: in the prompt set.
        prompt_set: what `--prompts` calls it.
        seconds: that the run took.
        kept: what was left behind; None when nothing was.
        faults: what went wrong at the end, the figures being measured.
    """

    old: ReleaseRef
    new: ReleaseRef
    strategies: tuple[StrategyFigures, ...]
    ttft_spread: float
    ttft_gap: float
    ttft_requests: int
    example: Example | None
    stale: int
    stale_of_neither: int
    impact: Impact
    gates: tuple[Gate, ...]
    requests: int
    moved: int
    different: int
    questions: int
    prompt_set: str
    seconds: float
    kept: Kept | None = None
    faults: tuple[Fault, ...] = ()


def strategy_figures(
    strategy: Strategy, served: Sequence[Served], *, clean: Mapping[Worker, Mapping[str, str]], key_us: float
) -> StrategyFigures:
    """One row of the table.

    Args:
        strategy: whose row.
        served: by all arms.
        clean: each release's own answers, by prompt id.
        key_us: microseconds for one prompt's keys.
    """
    own = [one for one in served if one.strategy is strategy]
    old, new = ([one for one in own if one.worker is worker] for worker in Worker)
    return StrategyFigures(
        name=strategy,
        hit_rate_old=_hit_rate(old),
        hit_rate_new=_hit_rate(new),
        consistency=_consistency(new, clean[Worker.NEW]),
        consistency_old=_consistency(old, clean[Worker.OLD]),
        computed_tokens_new=sum(one.prompt_tokens - one.cached_tokens for one in new if one.copy == 0),
        ttft_ms_p50=_p50_s(warm_everywhere(served), strategy) * 1000,
        key_us=key_us,
    )


def warm_everywhere(served: Sequence[Served]) -> list[Served]:
    """Requests that were warm in every arm, so that all arms did the same work for them."""
    cold = {one.number for one in served if not one.is_warm}
    return [one for one in served if one.number not in cold]


def ttft_spread(served: Sequence[Served], *, seed: int) -> float:
    """See `DemoReport.ttft_spread`; the larger one of the two strategies.

    Args:
        served: by all arms.
        seed: of the relabellings.
    """
    warm = warm_everywhere(served)
    return max(
        _identical_arms_gap([one for one in warm if one.strategy is strategy], seed=seed) for strategy in Strategy
    )


def ttft_gap(served: Sequence[Served]) -> float:
    """See `DemoReport.ttft_gap`."""
    warm = warm_everywhere(served)
    return _gap(*(_p50_s(warm, strategy) for strategy in Strategy))


def wrong_answers(served: Sequence[Served], *, clean: Mapping[str, str]) -> list[Served]:
    """What the new worker answered in the tokens-only arm, where it is not the new release's own answer."""
    return [
        one
        for one in served
        if one.strategy is Strategy.TOKENS_ONLY
        and one.copy == 0
        and one.worker is Worker.NEW
        and one.text != clean[one.prompt_id]
    ]


def choose_example(
    wrong: Sequence[Served], *, prompts: Mapping[str, Prompt], old: Mapping[str, str], clean: Mapping[str, str]
) -> Example | None:
    """The most frequent question that got a wrong answer; one that belongs to neither release, if there is any."""
    if not wrong:
        return None
    worst = max(wrong, key=lambda one: (one.text != old[one.prompt_id], prompts[one.prompt_id].weight, -one.number))
    return Example(
        question=question_of(prompts[worst.prompt_id]),
        old=old[worst.prompt_id],
        stale=worst.text,
        clean=clean[worst.prompt_id],
        cached_tokens=worst.cached_tokens,
        prompt_tokens=worst.prompt_tokens,
    )


def question_of(prompt: Prompt) -> str:
    """What the user asked: the last message of a chat."""
    messages = prompt.body["messages"]
    assert isinstance(messages, list)
    return str(messages[-1]["content"])


def _hit_rate(served: Sequence[Served]) -> float:
    return sum(one.cached_tokens for one in served) / sum(one.prompt_tokens for one in served)


def _consistency(served: Sequence[Served], clean: Mapping[str, str]) -> float:
    return sum(one.text == clean[one.prompt_id] for one in served) / len(served)


def _p50_s(served: Sequence[Served], strategy: Strategy) -> float:
    return statistics.median(one.ttft_s for one in served if one.strategy is strategy)


def _identical_arms_gap(warm: Sequence[Served], *, seed: int) -> float:
    choose = random.Random(seed)  # noqa: S311 - a statistic, no secret
    first, second = ({one.number: one.ttft_s for one in warm if one.copy == copy} for copy in (0, 1))
    pairs = [(first[number], second[number]) for number in sorted(first)]
    gaps = []
    for _ in range(RELABELLINGS):
        swapped = [pair if choose.random() < 0.5 else pair[::-1] for pair in pairs]
        gaps.append(_gap(*(statistics.median(pair[copy] for pair in swapped) for copy in (0, 1))))
    return statistics.quantiles(gaps, n=100)[round(SPREAD_QUANTILE * 100) - 1]


def _gap(first: float, second: float) -> float:
    return abs(first - second) / max(first, second)
