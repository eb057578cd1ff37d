"""The simulator beside real vLLM: the same requests, one after the other, through a cache too small for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from kvrelease.simulator.cache import SimulatedBlocks
from kvrelease.simulator.simulate import simulate
from kvrelease.simulator.traffic import SimulatedRequest, request_of_tokens
from tests.live.conftest import Pair
from tests.live.servers import Server, vllm_server

BLOCK_TOKENS = 32
USABLE_BLOCKS = 48
REQUESTS = 60


@pytest.fixture(scope="module")
def server(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    # One block more than can be used: vLLM keeps the first one for itself.
    small = ("--max-model-len", "1024", "--num-gpu-blocks-override", str(USABLE_BLOCKS + 1))
    with vllm_server(pair.old, served_model_name="smollm2", log_path=log, extra_args=small) as running:
        yield running


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000, 20_000) for _ in range(count)]


def prompts_and_answers(seed: int) -> list[tuple[list[int], int]]:
    """Sixty requests over five prefixes: short ones, whole blocks, repeats, longer answers."""
    rng = random.Random(seed)
    prefixes = [ids(rng, length) for length in (96, 200, 320, 400, 510)]
    found: list[tuple[list[int], int]] = []
    for number in range(REQUESTS):
        if number % 9 == 4:
            tokens = rng.choice(found)[0]
        elif number % 11 == 5:
            tokens = ids(rng, rng.randint(1, 40))
        else:
            tokens = rng.choices(prefixes, (5, 4, 3, 2, 1))[0] + ids(rng, rng.choice((1, 17, 32, 60, 96)))
        found.append((tokens, rng.choice((1, 1, 1, 40))))
    return found


def body(tokens: Sequence[int], answer: int, *, salt: str) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": answer, "min_tokens": answer, "ignore_eos": True}
    return {"model": "smollm2", "prompt": list(tokens), "cache_salt": salt, **sampling}


def cached_tokens(reply: httpx.Response) -> int:
    assert reply.status_code == 200, reply.text
    details = reply.json()["usage"]["prompt_tokens_details"] or {}
    return details.get("cached_tokens") or 0


def test_one_after_the_other_each_request_hits_what_the_simulator_says(server: Server) -> None:
    asked = prompts_and_answers(seed=7)
    traffic = [request_of_tokens(tokens, block_tokens=BLOCK_TOKENS, answer_tokens=n) for tokens, n in asked]
    expected = simulate(traffic, [SimulatedBlocks(USABLE_BLOCKS)], block_tokens=BLOCK_TOKENS)
    assert expected.evicted > 100, "the cache must be too small, or nothing is compared"
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client:
        found = [cached_tokens(client.post("/v1/completions", json=body(*one, salt="one-by-one"))) for one in asked]
    assert found == list(expected.hit_tokens)


def test_requests_that_come_together_share_what_is_still_computed(server: Server) -> None:
    """vLLM enters blocks when it schedules them: eight requests at once compute a common prefix once."""
    rng = random.Random(8)
    prefix = ids(rng, 6 * BLOCK_TOKENS)
    asked = [[*prefix, *ids(rng, 9)] for _ in range(8)]

    async def together() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
            sent = [client.post("/v1/completions", json=body(one, 1, salt="together")) for one in asked]
            return [cached_tokens(reply) for reply in await asyncio.gather(*sent)]

    found = asyncio.run(together())
    traffic: list[SimulatedRequest] = [request_of_tokens(one, block_tokens=BLOCK_TOKENS) for one in asked]
    cache = SimulatedBlocks(USABLE_BLOCKS, hits_in_flight=True)
    expected = simulate(traffic, [cache], block_tokens=BLOCK_TOKENS, concurrency=8)
    assert sorted(found) == sorted(expected.hit_tokens) == [0, *[len(prefix)] * 7]
