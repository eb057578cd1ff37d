"""The adapter on what a real SGLang 0.5.23 said (`recorded/README.md`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvrelease.engines.base import CacheTiers, Counters, EngineClient, EngineIdentity, Observation, Request
from kvrelease.errors import PromptTooLong
from tests.engines.clients import chat, completion, use

RECORDED = Path(__file__).parent / "recorded" / "sglang"
PROMPT_TOKENS = len(json.loads((RECORDED / "tokenize_messages.json").read_text())["reply"]["tokens"])


def server(**names: str) -> httpx.MockTransport:
    """A server that answers each path as recorded under a name; 404 for any other path."""
    fixed = {"/v1/models": "models", "/model_info": "model_info", "/server_info": "server_info"}
    files = fixed | {"/" + path.replace("__", "/"): name for path, name in names.items()}

    def handle(request: httpx.Request) -> httpx.Response:
        name = files.get(request.url.path)
        if name is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        if (text := RECORDED / f"{name}.txt").exists():
            return httpx.Response(200, text=text.read_text())
        document: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
        return httpx.Response(document["status"], json=document["reply"])

    return httpx.MockTransport(handle)


def found_in(name: str) -> dict[str, Any]:
    """`meta_info` of a recorded reply of `/generate`."""
    meta: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())["reply"]["meta_info"]
    return meta


def observed(name: str, request: Request) -> Observation:
    async def main(client: EngineClient) -> Observation:
        return await client.complete(request)

    connector = server(v1__chat__completions=name, v1__completions=name)
    return use("http://recorded", main, connector=connector)


def test_a_miss_and_a_hit_are_told_with_tiers_and_ids() -> None:
    cold, hit = observed("chat_cold", chat(top=5)), observed("chat_hit", chat(top=5))
    assert cold.prompt_tokens == hit.prompt_tokens == PROMPT_TOKENS
    cacheable = (PROMPT_TOKENS - 1) // 16 * 16
    assert (cold.cached_tokens, cold.tiers) == (0, None)
    assert (hit.cached_tokens, hit.tiers) == (cacheable, CacheTiers(device_tokens=cacheable))
    assert [token.token_id for token in cold.tokens] == [token.token_id for token in hit.tokens]
    assert all(token.token_id is not None and len(token.top) == 5 for token in cold.tokens)
    assert cold.system_fingerprint == "default"


@pytest.mark.parametrize("name", ["chat_salted", "chat_bypassed"])
def test_an_extra_key_and_an_unused_salt_find_nothing(name: str) -> None:
    found = observed(name, chat(top=5))
    assert (found.cached_tokens, found.tiers) == (0, None)
    assert found.text == observed("chat_cold", chat(top=5)).text


def test_a_stream_tells_the_hit_in_an_event_of_its_own() -> None:
    found = observed("chat_stream", chat(top=5, streams=True))
    assert found.tiers is not None
    assert found.tiers.tokens == found.cached_tokens != 0
    assert found.ttft_s is not None
    assert found.text == observed("chat_hit", chat(top=5)).text


def test_completions_have_ids_beside_parallel_arrays() -> None:
    found = observed("completion_ids", completion(top=5))
    assert [token.token_id is not None for token in found.tokens] == [True] * 4
    assert found.cached_tokens == (PROMPT_TOKENS - 1) // 16 * 16


def test_an_update_in_place_serves_old_entries_under_new_weights() -> None:
    stale, clean = observed("chat_stale", chat(top=5)), observed("chat_clean_new", chat(top=5))
    assert stale.cached_tokens == (PROMPT_TOKENS - 1) // 16 * 16
    assert (clean.cached_tokens, clean.system_fingerprint) == (0, "v1.3")
    assert stale.tokens[0].logprob != clean.tokens[0].logprob


def test_only_a_key_space_nobody_used_recomputes_every_token() -> None:
    """Matching no prefix is not enough: after its prefill the request reads what the tree had already."""
    clean, bypassed = observed("chat_clean_new", chat(top=5)), observed("chat_bypassed_stale", chat(top=5))
    assert bypassed.cached_tokens == 0
    assert bypassed.tokens == clean.tokens
    meta = found_in("generate_recomputed_stale")
    recomputed = [row[0] for row in meta["output_token_logprobs"]]
    wanted = [token.logprob for token in clean.tokens]
    assert meta["cached_tokens"] == 0
    assert recomputed[0] == wanted[0]
    assert recomputed[1:] != wanted[1:]


def test_any_name_of_a_model_is_answered_and_repeated() -> None:
    assert observed("any_model", completion(top=5)).model == "nobody"


def test_a_prompt_over_the_context_is_refused() -> None:
    with pytest.raises(PromptTooLong):
        observed("too_long", completion())


def test_identity_and_counters() -> None:
    async def main(client: EngineClient) -> tuple[EngineIdentity, Counters | None]:
        return await client.identify(), await client.counters()

    found, counted = use("http://recorded", main, connector=server(metrics="metrics"))
    # Updated in place before: the served name, "smollm2", has given way to the path.
    assert (found.version, found.model, found.context_tokens) == ("0.5.23", "/models/smollm2-v1.2", 8192)
    assert (found.capabilities.block_tokens, found.capacity_tokens) == (16, 8192)
    assert not found.capabilities.cache_outlives_process
    assert found.labels["model_path"] == "/models/smollm2-v1.2"
    assert str(found.process).startswith("startup:")
    assert found.runtime_unread == ()
    assert counted is not None
    assert counted.queried_tokens > counted.cached_tokens > 0
    assert counted.external_cached_tokens is None
    assert counted.running_requests == 0
