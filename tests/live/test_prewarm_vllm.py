"""Prewarming real vLLM: a cache of half the size that is needed, and a run that is killed after a third."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvrelease.engines.base import Counters, EngineClient, Request, Route
from kvrelease.simulator.cache import SimulatedBlocks
from kvrelease.simulator.simulate import simulate
from kvrelease.simulator.traffic import request_of_tokens
from tests.engines.clients import counters, use
from tests.live.conftest import Operator, Pair, Run
from tests.live.desks import write_desks
from tests.live.killing import Killed, kill_after
from tests.live.servers import Server, vllm_server

BLOCK_TOKENS = 32
# Little more than half of what the first set below needs, one of them vLLM's own.
BLOCKS = 70
HALF = {"desks": 4, "questions": 8, "system_words": 250, "question_words": 80}
THIRD = {"desks": 2, "questions": 6, "system_words": 60, "question_words": 40}
AT_ONCE = 2
# A unique prompt of two blocks and a little, sent twice; the second time its end is computed again.
MOST_OF_A_CONTROL = 6 * BLOCK_TOKENS


@pytest.fixture(scope="module")
def server(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    small = ("--max-model-len", "1024", "--num-gpu-blocks-override", str(BLOCKS))
    with vllm_server(pair.new, served_model_name="smollm2", log_path=log, extra_args=small) as running:
        yield running


def computed(before: Counters | None, after: Counters | None) -> float:
    """Prompt tokens that the engine computed meanwhile, by its own counters."""
    assert before is not None
    assert after is not None
    return after.queried_tokens - after.cached_tokens - before.queried_tokens + before.cached_tokens


async def when_idle(engine: EngineClient) -> Counters | None:
    """The counters once nothing is in flight any more."""
    while (found := await engine.counters()) is not None and found.running_requests:  # noqa: ASYNC110
        await asyncio.sleep(0.02)  # another process has no event to wait for
    return found


class Resumed:
    """A run that was killed after a third, and the same command again."""

    killed: Killed
    run: Run
    computed_before: float


@pytest.fixture(scope="module")
def resumed(server: Server, pair: Pair, operator: Operator) -> Resumed:
    told = Resumed()
    operator.configure()
    write_desks(operator.directory / "third.yaml", **THIRD, seed=4)
    command: tuple[str | Path, ...] = ("prewarm", "--release", pair.new, "--prompts", "third.yaml")
    command += ("--engine-url", server.url, "--namespace", "third", "--concurrency", "2", "--journal", "third.jsonl")
    before = use(server.url, counters)
    with operator.start(*command) as process:
        told.killed = kill_after(process, journal=operator.directory / "third.jsonl", answered=4)
    told.computed_before = computed(before, use(server.url, when_idle))
    told.run = operator.run(*command)
    return told


Record = Callable[[str, object], None]
"""What docs/benchmarks.md tells: `pytest -o junit_family=xunit1 --junitxml FILE` writes it."""


def test_a_killed_run_is_resumed_and_no_prompt_is_computed_twice(resumed: Resumed, record_property: Record) -> None:
    report = resumed.run.expect(0).json
    (replica,) = report["replicas"]
    done = len(resumed.killed.done)
    assert done < 12
    assert (replica["resumed"], replica["sent"]) == (done, 12 - done)
    assert (replica["foreign_tokens"], replica["hit_rate_after"]) == (0, 1.0)
    assert replica["over_lower_bound"] <= 1.02
    both = resumed.computed_before + replica["computed_tokens"]
    record_property("killed", f"{done} answered, {len(resumed.killed.in_flight)} in flight")
    record_property("computed", f"{both:.0f}, bound {report['plan']['lower_bound_tokens']}")
    assert both <= report["plan"]["lower_bound_tokens"] + MOST_OF_A_CONTROL


def test_the_journal_of_a_complete_run_is_gone(resumed: Resumed, operator: Operator) -> None:
    assert resumed.run.code == 0
    assert not (operator.directory / "third.jsonl").exists()


class Half:
    """The same prompts asked once, heaviest first: after a prewarm into half the room, and after the file's order."""

    run: Run
    naive: float
    planned: float
    tokens: dict[str, tuple[int, ...]]
    weights: dict[str, float]

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(sorted(self.weights, key=lambda name: (-self.weights[name], name)))


@pytest.fixture(scope="module")
def half(server: Server, pair: Pair, operator: Operator) -> Half:
    told = Half()
    operator.configure()
    chats = write_desks(operator.directory / "half.yaml", **HALF, seed=5)
    told.weights = {name: weight_of(name) for name in chats}

    def cached(names: Sequence[str], *, salt: str, at_once: int = 1) -> dict[str, int]:
        return use(server.url, lambda engine: sent(engine, chats, names, salt=salt, at_once=at_once), timeout_s=120)

    told.tokens = use(server.url, lambda engine: tokenised(engine, chats), timeout_s=120)
    cached(tuple(chats), salt="naive", at_once=AT_ONCE)
    told.naive = weighted(told, cached(told.asked, salt="naive"))
    told.run = operator.run(
        *("prewarm", "--release", pair.new, "--engine-url", server.url, "--prompts", "half.yaml"),
        *("--namespace", "half", "--concurrency", str(AT_ONCE)),
    )
    told.planned = weighted(told, cached(told.asked, salt="half"))
    return told


def weight_of(name: str) -> float:
    """What `write_desks` gave `d2q3`."""
    desk, question = name.removeprefix("d").split("q")
    return 1.0 / (1 + int(desk)) / (1 + int(question))


async def tokenised(engine: EngineClient, chats: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    found = {name: await engine.tokenize(Request(route=Route.CHAT, body=body)) for name, body in chats.items()}
    return {name: ids for name, ids in found.items() if ids is not None}


async def sent(
    engine: EngineClient, chats: Mapping[str, Any], names: Sequence[str], *, salt: str, at_once: int
) -> dict[str, int]:
    """Cached tokens of each, by the engine's own replies."""
    found: dict[str, int] = {}
    left = iter(names)

    async def worker() -> None:
        for name in left:
            seen = await engine.complete(Request(route=Route.CHAT, body=chats[name], salt=salt))
            found[name] = seen.cached_tokens or 0

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return found


def weighted(half: Half, cached: Mapping[str, int]) -> float:
    """Cached by all tokens of traffic in which each prompt comes as often as its weight says."""
    asked = sum(half.weights[name] * len(ids) for name, ids in half.tokens.items())
    return sum(half.weights[name] * tokens for name, tokens in cached.items()) / asked


def simulated(half: Half) -> float:
    """The same in a simulated cache of this size that was sent the plan, and its touch pass."""
    order = half.run.json["plan"]["order"]
    before = (*order, *reversed(order))
    requests = [request_of_tokens(half.tokens[name], block_tokens=BLOCK_TOKENS) for name in (*before, *half.asked)]
    found = simulate(requests, [SimulatedBlocks(BLOCKS - 1)], block_tokens=BLOCK_TOKENS)
    return weighted(half, dict(zip(half.asked, found.hit_tokens[len(before) :], strict=True)))


def worth_of_blocks(half: Half) -> dict[tuple[int, ...], float]:
    """Weight of the traffic through each block, named by its whole prefix; none weighs more than the one before it."""
    worth: dict[tuple[int, ...], float] = {}
    for name, ids in half.tokens.items():
        for end in range(BLOCK_TOKENS, len(ids), BLOCK_TOKENS):
            worth[ids[:end]] = worth.get(ids[:end], 0.0) + half.weights[name]
    return worth


def test_half_of_the_set_is_left_out_and_the_run_is_complete(half: Half) -> None:
    report = half.run.expect(0).json
    assert report["plan"]["blocks_needed"] <= BLOCKS < 0.6 * len(worth_of_blocks(half))
    assert len(report["plan"]["dropped"]) >= 12
    assert (report["replicas"][0]["foreign_tokens"], report["replicas"][0]["hit_rate_after"]) == (0, 1.0)


def test_what_is_kept_is_the_most_valuable_by_weight(half: Half) -> None:
    plan = half.run.json["plan"]
    worth = worth_of_blocks(half)
    kept = {block for name in plan["order"] for block in worth if half.tokens[name][: len(block)] == block}
    best = sum(sorted(worth.values(), reverse=True)[: plan["blocks_needed"]])
    assert sum(worth[block] for block in kept) >= 0.97 * best


def test_weighted_traffic_hits_within_three_points_of_the_best_and_more_than_after_the_files_order(
    half: Half, record_property: Record
) -> None:
    asked = sum(half.weights[name] * len(ids) for name, ids in half.tokens.items())
    best = BLOCK_TOKENS * sum(sorted(worth_of_blocks(half).values(), reverse=True)[: BLOCKS - 1]) / asked
    for name, rate in (
        ("planned", half.planned),
        ("simulated", simulated(half)),
        ("best", best),
        ("naive", half.naive),
    ):
        record_property(name, f"{rate:.4f}")
    assert half.planned == pytest.approx(simulated(half), abs=0.01)
    assert half.planned >= best - 0.03
    assert half.planned > half.naive + 0.03


def test_the_engine_is_up_to_the_last_step(half: Half, server: Server) -> None:
    assert half.run.code == 0
    models = httpx.get(f"{server.url}/v1/models", timeout=10, trust_env=False).json()
    assert [model["id"] for model in models["data"]] == ["smollm2"]
