"""Prewarming real llama.cpp: four slots, a run that is killed, two servers behind one name beside a dead address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.clients import counters, use
from tests.live.conftest import Operator, Pair, Run
from tests.live.desks import write_desks
from tests.live.killing import Killed, kill_after
from tests.live.names import with_name
from tests.live.servers import Server, free_port, llamacpp_server

SLOTS = 4
MOST_OF_A_CONTROL = 150
# Of one system prompt about 220 tokens, and of a question 40: two desks, four questions each.
SET = {"desks": 2, "questions": 4, "system_words": 200, "question_words": 30}
NAME = "replicas.kvrelease.test"
NUMBERS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def server(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("llamacpp") / "slots.log"
    arguments = ("-c", "4096", "-np", str(SLOTS))
    with llamacpp_server(pair.new_gguf, extra_args=arguments, log_path=log) as running:
        yield running


Record = Callable[[str, object], None]
"""What docs/benchmarks.md tells: `pytest -o junit_family=xunit1 --junitxml FILE` writes it."""


class Slots:
    """A prewarm on four slots."""

    run: Run
    chats: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def slots(server: Server, pair: Pair, operator: Operator) -> Slots:
    told = Slots()
    operator.configure()
    told.chats = write_desks(operator.directory / "slots.yaml", **SET, seed=1)
    told.run = operator.run("prewarm", "--release", pair.new, "--engine-url", server.url, "--prompts", "slots.yaml")
    return told


def cached_and_all(url: str, body: dict[str, Any]) -> tuple[int, int]:
    """Cached and all tokens of a prompt, as the reply tells them."""
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def test_each_of_four_slots_is_warm_though_prompts_share_their_system_prompt(slots: Slots) -> None:
    report = slots.run.expect(0).json
    (replica,) = report["replicas"]
    assert (replica["foreign_tokens"], replica["hit_rate_after"]) == (0, 1.0)
    assert [one["slot"] for one in replica["slots"]] == list(range(SLOTS))
    assert all(one["cached_tokens"] == one["cacheable_tokens"] > 200 for one in replica["slots"])
    assert len({one["prompt"] for one in replica["slots"]}) == SLOTS
    assert any(f"each of {SLOTS} slots, asked by its number" in note for note in report["notes"])


def test_no_slot_computes_more_than_its_prompts_need(slots: Slots, record_property: Record) -> None:
    (replica,) = slots.run.json["replicas"]
    record_property("computed", f"{replica['computed_tokens']}, {replica['over_lower_bound']:.3f} of the bound")
    record_property("slots", replica["slots"])
    assert replica["over_lower_bound"] <= 1.02


def test_the_engines_own_replies_say_so_slot_by_slot(slots: Slots, server: Server) -> None:
    for one in slots.run.json["replicas"][0]["slots"]:
        cached, whole = cached_and_all(server.url, slots.chats[one["prompt"]] | {"id_slot": one["slot"]})
        assert cached == whole - 1


def test_users_who_come_together_all_find_their_system_prompt(
    slots: Slots, server: Server, record_property: Record
) -> None:
    """Before, the second one found an empty slot: the prompts had followed each other through one."""
    held = [one["prompt"] for one in slots.run.json["replicas"][0]["slots"]]
    desk = max(("d0", "d1"), key=lambda name: sum(prompt.startswith(name) for prompt in held))
    alike = [prompt for prompt in held if prompt.startswith(desk)]
    assert len(alike) == 3, "of two desks one gets a slot, and the heavier one the rest"
    system = slots.chats[alike[0]]["messages"][0]
    asked = [
        slots.chats[alike[0]] | {"messages": [system, {"role": "user", "content": f"{n} is new"}], "max_tokens": 8}
        for n in range(3)
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda body: cached_and_all(server.url, body), asked))
    record_property("cached of all", found)
    assert all(cached > 200 for cached, _ in found), found


def test_a_server_that_empties_idle_slots_is_found_and_warmed_for_its_users(
    pair: Pair, operator: Operator, tmp_path: Path
) -> None:
    """llama-server's own default: one pool of KV for all slots."""
    chats = write_desks(operator.directory / "pool.yaml", **SET, seed=7)
    pool = ("-np", "-1", "-c", "8192")
    with llamacpp_server(pair.new_gguf, extra_args=pool, log_path=tmp_path / "pool.log") as unified:
        command = ("prewarm", "--release", pair.new, "--engine-url", unified.url, "--prompts", "pool.yaml")
        report = operator.run(*command).expect(0).json
        (replica,) = report["replicas"]
        assert (replica["foreign_tokens"], replica["hit_rate_after"], replica["slots"]) == (0, 1.0, [])
        assert replica["over_lower_bound"] <= 1.02
        assert any("empties idle slots into host memory" in note for note in report["notes"])
        for prompt in report["plan"]["proof_first"]:
            cached, whole = cached_and_all(unified.url, chats[prompt])
            assert cached == whole - 1


class Resumed:
    """A run that was killed after a third, and the same command again."""

    killed: Killed
    run: Run
    computed: float
    chats: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def resumed(server: Server, pair: Pair, operator: Operator) -> Resumed:
    told = Resumed()
    told.chats = write_desks(operator.directory / "killed.yaml", **SET | {"questions": 6}, seed=2)
    command: tuple[str | Path, ...] = ("prewarm", "--release", pair.new, "--prompts", "killed.yaml")
    command += ("--engine-url", server.url, "--journal", "killed.jsonl")
    before = use(server.url, counters)
    with operator.start(*command) as process:
        told.killed = kill_after(process, journal=operator.directory / "killed.jsonl", answered=4)
    told.run = operator.run(*command)
    after = use(server.url, counters)
    assert before is not None
    assert after is not None
    told.computed = after.queried_tokens - after.cached_tokens - before.queried_tokens + before.cached_tokens
    return told


def test_a_killed_run_is_resumed_and_sends_nothing_again_that_was_answered(
    resumed: Resumed, record_property: Record
) -> None:
    report = resumed.run.expect(0).json
    (replica,) = report["replicas"]
    record_property(
        "computed", f"{resumed.computed:.0f}, bound {report['plan']['lower_bound_tokens']}, {resumed.killed}"
    )
    assert len(resumed.killed.done) < 12
    assert resumed.computed <= report["plan"]["lower_bound_tokens"] + 2 * MOST_OF_A_CONTROL
    assert (replica["resumed"], replica["sent"]) == (len(resumed.killed.done), 12 - len(resumed.killed.done))
    assert (replica["foreign_tokens"], replica["hit_rate_after"]) == (0, 1.0)
    assert [one["slot"] for one in replica["slots"]] == list(range(SLOTS))


def test_two_servers_behind_one_name_are_warm_and_the_dead_address_is_named(
    pair: Pair, operator: Operator, tmp_path: Path
) -> None:
    port = free_port(*NUMBERS)
    write_desks(operator.directory / "fleet.yaml", **SET, seed=3)
    within = with_name(NAME, NUMBERS, directory=tmp_path)
    with (
        llamacpp_server(pair.new_gguf, host=NUMBERS[0], port=port, log_path=tmp_path / "one.log") as one,
        llamacpp_server(pair.new_gguf, host=NUMBERS[1], port=port, log_path=tmp_path / "two.log") as two,
    ):
        command = ("prewarm", "--release", pair.new, "--engine-url", f"dns+http://{NAME}:{port}")
        done = operator.run(*command, "--prompts", "fleet.yaml", within=within)
        report = done.expect(5).json
        dead = f"http://{NUMBERS[2]}:{port}"
        assert report["verdict"] == "inconclusive"
        assert dead in report["reason"]
        assert dead in done.stderr
        assert [fault["where"] for fault in report["faults"]] == [f"{dead} ({NAME})"]
        assert [replica["url"] for replica in report["replicas"]] == [one.url, two.url]
        for replica, engine in zip(report["replicas"], (one, two), strict=True):
            assert (replica["foreign_tokens"], replica["hit_rate_before"], replica["hit_rate_after"]) == (0, 0.0, 1.0)
            counted = use(engine.url, counters)
            assert counted is not None
            assert counted.queried_tokens - counted.cached_tokens >= replica["computed_tokens"] > 500
