"""Which headers say that an answer was kept, and which say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import EngineKind
from kvrelease.engines.front_cache import cached_in_front, next_step
from kvrelease.engines.replies import Reply
from kvrelease.engines.wire import observation
from tests.engines.clients import ask, chat, completion
from tests.engines.response_cache import CachingGateway
from tests.engines.scripted import ScriptedEngine

RECORDED = Path(__file__).parent / "recorded"

HITS = [
    ({"x-litellm-cache-key": "e3b0c442"}, "LiteLLM"),
    ({"x-portkey-cache-status": "HIT"}, "Portkey"),
    ({"x-portkey-cache-status": "SEMANTIC HIT"}, "Portkey"),
    ({"helicone-cache": "HIT", "helicone-cache-bucket-idx": "0"}, "Helicone"),
    ({"cf-aig-cache-status": "HIT"}, "Cloudflare AI Gateway"),
    ({"cf-cache-status": "STALE"}, "Cloudflare"),
    ({"x-openrouter-cache-status": "HIT"}, "OpenRouter"),
    ({"x-cache-status": "Hit", "x-cache-key": "0a"}, "Kong or nginx"),
    ({"apisix-cache-status": "HIT"}, "Apache APISIX (proxy-cache)"),
    ({"x-ai-cache-status": "HIT-L2"}, "Apache APISIX (ai-cache)"),
    ({"x-aisix-cache": "hit"}, "AISIX"),
    ({"x-vsr-cache-hit": "true"}, "vLLM semantic router"),
    ({"x-cache": "MISS, HIT"}, "A CDN"),
    ({"x-cache": "Hit from cloudfront"}, "A CDN"),
    ({"x-cache": "TCP_MEM_HIT from a23-1-2-3.deploy.akamaitechnologies.com"}, "A CDN"),
    ({"x-varnish": "32770 3"}, "Varnish"),
    ({"cache-status": 'edge; hit; ttl=30; detail="a, b; hit"'}, "An HTTP cache"),
    ({"age": "17"}, "An HTTP cache"),
]
SILENT = [
    {},
    {"x-litellm-cache-key": ""},
    {"x-litellm-semantic-similarity": "0.31", "x-litellm-call-id": "1"},
    *({"x-portkey-cache-status": word} for word in ("MISS", "SEMANTIC MISS", "DISABLED", "REFRESH")),
    {"helicone-cache": "MISS"},
    *({"cf-cache-status": word} for word in ("MISS", "BYPASS", "DYNAMIC", "EXPIRED", "NONE/UNKNOWN")),
    *({"x-cache-status": word} for word in ("Miss", "Bypass", "Refresh")),
    {"x-ai-cache-status": "SKIP-STREAM"},
    {"x-vsr-cache-hit": "false"},
    {"x-cache": "HIT-FOR-PASS"},
    {"x-varnish": "32770"},
    {"cache-status": 'edge; fwd=miss; stored; detail="no hit; hit"'},
    {"age": "0"},
    {"age": "soon"},
]


@pytest.mark.parametrize(("headers", "name"), HITS, ids=[str(headers) for headers, _ in HITS])
def test_a_hit_names_the_cache_and_how_to_get_past_it(headers: dict[str, str], name: str) -> None:
    sentence = cached_in_front(headers)
    assert sentence is not None
    assert sentence.startswith(f"{name} answered from what it had kept (header ")
    assert "e3b0c442" not in sentence
    assert next_step(sentence)


@pytest.mark.parametrize("headers", SILENT, ids=str)
def test_a_miss_says_nothing(headers: dict[str, str]) -> None:
    assert cached_in_front(headers) is None


def test_caches_that_tell_it_in_the_answer_itself() -> None:
    told: list[tuple[JsonObject, str]] = [
        ({"gptcache": True}, "GPTCache"),
        ({"extra_fields": {"cache_debug": {"cache_hit": True, "hit_type": "semantic"}}}, "Bifrost"),
    ]
    for body, name in told:
        sentence = cached_in_front({}, [{}, body])
        assert sentence is not None
        assert sentence.startswith(name)
        assert next_step(sentence)
    assert cached_in_front({}, [{"gptcache": "yes", "extra_fields": {"cache_debug": {"cache_hit": False}}}]) is None


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp"])
def test_recorded_engines_give_each_answer_an_id_and_a_time_and_say_nothing_of_a_cache(name: str) -> None:
    replies = [json.loads((RECORDED / name / f"chat_{leg}.json").read_text())["reply"] for leg in ("cold", "hit")]
    reply = Reply(what="POST x", status=200, headers={}, total_s=1.0, retries=0, sent_at=5.0)
    cold, hit = (observation(reply, [(payload, None)], top=5) for payload in replies)
    assert cold.id is not None
    assert hit.id is not None
    assert cold.id != hit.id
    assert cold.created is not None
    assert hit.created is not None
    assert cold.created <= hit.created
    assert (cold.sent_at, cold.cached_in_front) == (5.0, None)


@pytest.mark.parametrize("created", [0, -1, None, "1700000000", 1_700_000_000_000, True])
def test_what_is_no_unix_time_in_seconds_is_no_time(created: object) -> None:
    reply = Reply(what="POST x", status=200, headers={}, total_s=1.0, retries=0)
    payload = {"id": "", "created": created, "choices": [{"index": 0, "text": "a"}]}
    seen = observation(reply, [(payload, None)], top=0)
    assert (seen.id, seen.created, seen.sent_at) == (None, None, None)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("make", [chat, completion])
def test_a_kept_answer_comes_back_whole_with_its_id_through_both_routes(make: object, streams: bool) -> None:
    request = (chat if make is chat else completion)(streams=streams)
    with (
        ScriptedEngine(EngineKind.VLLM) as engine,
        CachingGateway(engine, says={"X-Cache": "HIT"}) as gateway,
    ):
        first, second = ask(gateway.url, request, request)
    assert (first.id, first.text, first.created) == (second.id, second.text, second.created)
    assert first.cached_in_front is None
    assert second.cached_in_front == "A CDN answered from what it had kept (header x-cache)"
    assert first.sent_at is not None
    assert second.sent_at is not None
    assert first.sent_at < second.sent_at
