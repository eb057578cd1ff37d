"""`kvrelease reload` on real vLLM under load: no client binds anything, and none gets an answer of two releases.

Eight clients ask a dozen of production's prompts, two hundred times in all, while the weights are swapped. Each answer
is compared with what either release answers from an empty cache.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvrelease.verify.suspicion import WRITTEN_APART_NATS
from tests.live.conftest import REPOSITORY, Operator, Pair, Run
from tests.live.scenarios import CLAIM, LOAD_CONCURRENCY, MODEL, REQUEST_S, chats, flush, serve
from tests.live.servers import Server, vllm_server

REQUESTS = 200
SWAP_AFTER = 60
TOKEN = "a token of the live test"
TOP = 20

Candidates = Mapping[str, float]


def namespace_of(operator: Operator, release: Path) -> str:
    return str(operator.run("namespace", release, "--engine", "vllm").expect(0).json["namespace"])


@pytest.fixture(scope="module")
def server(pair: Pair, operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    operator.configure(salt="none")
    with vllm_server(
        pair.old,
        served_model_name=MODEL,
        log_path=tmp_path_factory.mktemp("vllm") / "server.log",
        extra_args=("--middleware", "kvrelease.binding.middleware.Bound"),
        env={
            "PYTHONPATH": str(REPOSITORY),
            "KVRELEASE_NAMESPACE": namespace_of(operator, pair.old),
            "KVRELEASE_CONTROL_TOKEN": TOKEN,
        },
    ) as running:
        yield running


class Story:
    """What happened, step by step.

    Attributes:
        clean: by namespace, what its release answers to each prompt from an empty cache.
        answers: of the load, in the order they came: the prompt, the namespace that the answer names, the candidates.
        reload: what the command said.
        verified: what the gate said afterwards.
    """

    def __init__(self) -> None:
        self.clean: dict[str, list[Candidates]] = {}
        self.answers: list[tuple[int, str, Candidates]] = []
        self.reload: Run
        self.verified: Run


def candidates(answer: httpx.Response) -> Candidates:
    """Log-probabilities of the first token's candidates, nats."""
    first = answer.json()["choices"][0]["logprobs"]["content"][0]
    return {one["token"]: one["logprob"] for one in first["top_logprobs"]}


def nats(one: Candidates, other: Candidates) -> float:
    """Mean difference over the candidates that both have."""
    shared = one.keys() & other.keys()
    assert shared
    return sum(abs(one[token] - other[token]) for token in shared) / len(shared)


def ask(client: httpx.Client, body: Mapping[str, Any], **more: str) -> httpx.Response:
    asked = {**body, **more, "max_tokens": 1, "logprobs": True, "top_logprobs": TOP}
    return client.post("/v1/chat/completions", json=asked).raise_for_status()


@pytest.fixture(scope="module")
def story(
    server: Server, operator: Operator, pair: Pair, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Story:
    told = Story()
    bodies = chats(prompts)
    old, new = (namespace_of(operator, release) for release in (pair.old, pair.new))
    with httpx.Client(base_url=server.url, timeout=REQUEST_S, trust_env=False) as client:

        def clean() -> list[Candidates]:
            return [candidates(ask(client, body, cache_salt=f"nobody-{number}")) for number, body in enumerate(bodies)]

        # Staging, before production begins: a golden record of v1.3, with a ledger of its own.
        serve(server, pair.new)
        told.clean[new] = clean()
        flush(server)
        staging = Operator(directory=tmp_path_factory.mktemp("staging"))
        staging.configure(salt="none")
        golden = operator.directory / "golden.json"
        at = ("--engine-url", server.url, "--prompts", prompts)
        staging.run("record", "--release", pair.new, *at, "-o", golden).expect(0)
        serve(server, pair.old)
        flush(server)
        told.clean[old] = clean()
        flush(server)

        numbers = itertools.count()
        is_time = threading.Event()

        def users() -> None:
            while (number := next(numbers)) < REQUESTS:
                prompt = number % len(bodies)
                answer = ask(client, bodies[prompt])
                told.answers.append((prompt, answer.headers["kvrelease-namespace"], candidates(answer)))
                if len(told.answers) >= SWAP_AFTER:
                    is_time.set()

        with ThreadPoolExecutor(LOAD_CONCURRENCY) as pool:
            load = [pool.submit(users) for _ in range(LOAD_CONCURRENCY)]
            assert is_time.wait(REQUEST_S)
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(os.environ, "KVRELEASE_CONTROL_TOKEN", TOKEN)
                told.reload = operator.run("reload", "--release", pair.new, "--golden", golden, *at)
            for one in load:
                one.result()
    releases = ("--release", pair.new, "--old-release", pair.old, "--golden", golden)
    told.verified = operator.run("verify", *releases, *at, *CLAIM)
    return told


def test_the_new_weights_are_proved_before_anybody_is_let_in(story: Story) -> None:
    report = story.reload.expect(0).json
    (replica,) = report["replicas"]
    assert (report["verdict"], replica["ending"]) == ("pass", "new")
    assert replica["held"] > 0, "users waited meanwhile"
    assert 0 < replica["hold_s"] < 60


def test_every_answer_across_the_swap_belongs_wholly_to_one_release(story: Story) -> None:
    assert len(story.answers) == REQUESTS
    assert {namespace for _, namespace, _ in story.answers} == set(story.clean)
    for prompt, namespace, answer in story.answers:
        assert nats(answer, story.clean[namespace][prompt]) < WRITTEN_APART_NATS
    apart = [nats(*pair) for pair in zip(*story.clean.values(), strict=True)]
    assert min(apart) > WRITTEN_APART_NATS, "the releases can be told apart by each prompt"


def test_verify_passes_afterwards_for_clients_that_bind_nothing(story: Story) -> None:
    assert story.verified.expect(0).json["binding"]["bound"]
