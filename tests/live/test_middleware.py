"""Real vLLM behind the middleware: clients that send no salt, and a reload in place that none of them notices.

One server tells one story; each step runs once, in a module fixture, and each test states one promise about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.conftest import REPOSITORY, Pair
from tests.live.servers import Server, vllm_server

OLD = "kv1-abcdefghijklmnopqrstuvwxyz234567-0a1b2c3d-e0"
NEW = "kv1-bcdefghijklmnopqrstuvwxyz234567a-0a1b2c3d-e0"
TOKEN = "a token of the live test"
SYSTEM = "You answer for the returns desk of a shop. " + " ".join(
    f"Rule {number}: customers may ask about item {number} and get a short answer." for number in range(1, 16)
)


@pytest.fixture(scope="module")
def server(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with vllm_server(
        pair.old,
        served_model_name="smollm2",
        log_path=tmp_path_factory.mktemp("vllm") / "server.log",
        extra_args=("--middleware", "kvrelease.binding.middleware.Bound"),
        env={"PYTHONPATH": str(REPOSITORY), "KVRELEASE_NAMESPACE": OLD, "KVRELEASE_CONTROL_TOKEN": TOKEN},
    ) as running:
        yield running


class Story:
    """What happened, step by step; of each request what the engine says it had cached."""

    first: int
    again: int
    as_the_namespace: int
    tenant: int
    tenant_again: int
    completion: tuple[int, int]
    headers: httpx.Headers
    streamed: list[str]
    rejected: httpx.Response
    held: dict[str, Any]
    resumed: dict[str, Any]
    during: int
    after: int
    as_the_old_namespace: int


def ask(server: Server, **fields: object) -> httpx.Response:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "May I return an opened item?"}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 4, "temperature": 0, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=180).raise_for_status()


def cached(answer: httpx.Response) -> int:
    details = answer.json()["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"]) if details else 0


def complete(server: Server, **fields: object) -> int:
    body = {"model": "smollm2", "prompt": "completions. " + SYSTEM, "max_tokens": 1, **fields}
    return cached(httpx.post(f"{server.url}/v1/completions", json=body, timeout=180).raise_for_status())


def control(server: Server, name: str, **fields: object) -> dict[str, Any]:
    answer = httpx.post(
        f"{server.url}/kvrelease/{name}", json=fields, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30
    )
    document: dict[str, Any] = answer.raise_for_status().json()
    return document


@pytest.fixture(scope="module")
def story(server: Server, pair: Pair) -> Story:
    told = Story()
    first = ask(server)
    told.first, told.headers = cached(first), first.headers
    told.again = cached(ask(server))
    told.as_the_namespace = cached(ask(server, cache_salt=OLD))
    told.tenant = cached(ask(server, cache_salt="tenant"))
    told.tenant_again = cached(ask(server, cache_salt="tenant"))
    told.completion = complete(server), complete(server, cache_salt=OLD)
    told.streamed = [line for line in ask(server, stream=True).text.splitlines() if line.startswith("data: ")]
    told.rejected = httpx.post(f"{server.url}/v1/completions", content=b'{"model":}', headers=JSON, timeout=30)

    told.held = control(server, "hold")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, server)
        httpx.post(
            f"{server.url}/collective_rpc",
            json={"method": "reload_weights", "kwargs": {"weights_path": str(pair.new)}},
            timeout=120,
        ).raise_for_status()
        told.resumed = control(server, "resume", hold=told.held["hold"], namespace=NEW)
        told.during = cached(waiting.result())
    told.after = cached(ask(server))
    told.as_the_old_namespace = cached(ask(server, cache_salt=OLD))
    return told


JSON = {"content-type": "application/json"}


def test_clients_that_send_no_salt_share_what_they_compute(story: Story) -> None:
    assert story.first == 0
    assert story.again > 0
    assert story.headers["kvrelease-namespace"] == OLD


def test_what_they_compute_lies_in_the_namespace_and_not_in_the_unsalted_key_space(story: Story) -> None:
    """A block has one key: what a request with the namespace for a salt hits is in no other key space."""
    assert story.as_the_namespace == story.again
    assert story.completion[0] == 0
    assert story.completion[1] > 0


def test_a_tenant_shares_with_nobody_but_itself(story: Story) -> None:
    assert story.tenant == 0
    assert story.tenant_again == story.again


def test_a_streamed_answer_arrives_whole(story: Story) -> None:
    assert story.streamed[-1] == "data: [DONE]"
    assert len(story.streamed) > 2


def test_the_engine_refuses_what_is_no_json_itself(story: Story) -> None:
    assert story.rejected.status_code == 400
    assert "kvrelease" not in story.rejected.text


def test_vllm_takes_a_salt_on_every_route_that_we_salt(server: Server, story: Story) -> None:
    assert story.first == 0
    assert "takes no salt" not in Path(server.log_path).read_text(errors="replace")


def test_after_a_reload_in_place_nobody_hits_what_the_old_weights_made(story: Story) -> None:
    assert story.held["in_flight"] == 0
    assert story.resumed["namespace"] == NEW
    assert story.during == 0
    assert story.after == story.again
    # A client that still salts with the old release's namespace is a tenant of the new one.
    assert story.as_the_old_namespace == 0
