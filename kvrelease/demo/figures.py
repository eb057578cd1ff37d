"""What the demo's requests add up to. Computes, and touches nothing."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kvrelease.artifacts import Artifact, ReleaseRef, Verdict
from kvrelease.demo.traffic import Worker
from kvrelease.release.diff import KvStatus
from kvrelease.workload.prompt_set import Prompt

# The run is cut into so many parts, and identical arms are compared in each: the whole run would show one draw of their
# difference, which may happen to be zero.
ROUNDS = 10


class Strategy(enum.StrEnum):
    """What keys a block."""

    TOKENS_ONLY = "tokens-only"
    BOUND = "bound"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that a user got.

    Attributes:
        number: place of the request in the traffic, from 0.
        strategy: of the arm.
        twin: which of the arm's identical twins.
        worker: who answered.
        prompt_id: what was asked.
        text: the answer.
        prompt_tokens: of the request.
        cached_tokens: of these, from the store.
        ttft_s: seconds to the first token.
    """

    number: int
    strategy: Strategy
    twin: int
    worker: Worker
    prompt_id: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float


class StrategyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        name: the strategy.
        hit_rate_old: cached share of the prompt tokens that the old worker got, 0 to 1.
        hit_rate_new: of those that the new worker got.
        consistency: share of the new worker's answers that equal the new release's own clean answers, 0 to 1.
        ttft_ms_p50: median time to the first token, over both workers.
        key_us: microseconds to make the keys of one prompt's blocks, median.
    """

    name: Strategy
    hit_rate_old: float
    hit_rate_new: float
    consistency: float
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
    """What `verify` says about the new worker of one arm."""

    strategy: Strategy
    verdict: Verdict
    reason: str


class Impact(msgspec.Struct, frozen=True, kw_only=True):
    """What `diff` says about the pair."""

    status: KvStatus
    summary: str


class DemoReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/demo"):
    """What `kvrelease demo` says; every figure was measured in this run.

    Attributes:
        old: the release before.
        new: the release after.
        strategies: tokens-only, then bound.
        ttft_spread: largest difference in median TTFT between two identical arms in any of `ROUNDS` parts of the run,
            as a share of their mean, 0 to 1.
        ttft_gap: difference in median TTFT between the two strategies, as a share of their mean, 0 to 1.
        example: one question; None when no answer was stale.
        impact: of the upgrade on old KV.
        gates: what the release gate says about each arm.
        requests: sent to each arm.
        moved: of these, to the new worker.
        different: questions that the two releases answer differently.
        questions: in the prompt set.
        prompt_set: what `--prompts` calls it.
        seconds: that the run took.
        kept: directory of the tokens-only store as the traffic left it; None when nothing was kept.
    """

    old: ReleaseRef
    new: ReleaseRef
    strategies: tuple[StrategyFigures, ...]
    ttft_spread: float
    ttft_gap: float
    example: Example | None
    impact: Impact
    gates: tuple[Gate, ...]
    requests: int
    moved: int
    different: int
    questions: int
    prompt_set: str
    seconds: float
    kept: str | None = None


def strategy_figures(
    strategy: Strategy, served: Sequence[Served], *, clean: Mapping[str, str], key_us: float
) -> StrategyFigures:
    """One row of the table.

    Args:
        strategy: whose row.
        served: by all arms.
        clean: the new release's own answers, by prompt id.
        key_us: microseconds for one prompt's keys.
    """
    own = [one for one in served if one.strategy is strategy]
    new = [one for one in own if one.worker is Worker.NEW]
    return StrategyFigures(
        name=strategy,
        hit_rate_old=_hit_rate([one for one in own if one.worker is Worker.OLD]),
        hit_rate_new=_hit_rate(new),
        consistency=sum(one.text == clean[one.prompt_id] for one in new) / len(new),
        ttft_ms_p50=_p50(own) * 1000,
        key_us=key_us,
    )


def ttft_spread(served: Sequence[Served]) -> float:
    """See `DemoReport.ttft_spread`."""
    return max(_gap(_p50(first), _p50(second)) for first, second in _twins(served))


def ttft_gap(served: Sequence[Served]) -> float:
    """See `DemoReport.ttft_gap`."""
    first, second = (_p50([one for one in served if one.strategy is strategy]) for strategy in Strategy)
    return _gap(first, second)


def choose_example(
    served: Sequence[Served], *, prompts: Mapping[str, Prompt], old: Mapping[str, str], clean: Mapping[str, str]
) -> Example | None:
    """The most frequent question that got a stale answer; one that belongs to neither release, if there is any."""
    stale = [
        one
        for one in served
        if one.strategy is Strategy.TOKENS_ONLY and one.worker is Worker.NEW and one.text != clean[one.prompt_id]
    ]
    if not stale:
        return None
    worst = max(stale, key=lambda one: (one.text != old[one.prompt_id], prompts[one.prompt_id].weight, -one.number))
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


def _p50(served: Sequence[Served]) -> float:
    return statistics.median(one.ttft_s for one in served)


def _gap(first: float, second: float) -> float:
    return abs(first - second) / statistics.mean((first, second))


def _twins(served: Sequence[Served]) -> Iterator[tuple[list[Served], list[Served]]]:
    """The requests of two identical arms, for each strategy and part of the run."""
    count = max(one.number for one in served) + 1
    for strategy in Strategy:
        for part in range(ROUNDS):
            numbers = range(part * count // ROUNDS, (part + 1) * count // ROUNDS)
            own = [one for one in served if one.strategy is strategy and one.number in numbers]
            yield [one for one in own if one.twin == 0], [one for one in own if one.twin == 1]
