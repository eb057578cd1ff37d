from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines.base import CacheTiers, Counters, EngineClient, EngineKind, Observation, Request
from kvrelease.errors import PromptTooLong, Refused, UnexpectedReply, UsageError, WrongModel
from tests.engines.clients import PROMPT, ask, chat, completion, counters, flush, identity, tokenized, use
from tests.engines.scripted import Break, ScriptedEngine
from tests.engines.scripted_model import chat_prompt, token_ids


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(EngineKind.SGLANG, capacity_blocks=100) as scripted:
        yield scripted


def sent(engine: ScriptedEngine, field: str) -> list[object]:
    return [seen.body.get(field) for seen in engine.generations()]


# --- key spaces and the bypass ---------------------------------------------------------------------------------------


def test_salts_are_key_spaces_of_their_own(engine: ScriptedEngine) -> None:
    found = ask(engine.url, chat(), chat(salt="blue"), chat(salt="green"), chat(salt="blue"), chat())
    assert [one.cached_tokens for one in found] == [0, 0, 0, 80, 80]
    assert sent(engine, "extra_key") == [None, "blue", "green", "blue", None]


def test_a_tenants_own_salt_stays_beside_the_namespace(engine: ScriptedEngine) -> None:
    tenant: JsonObject = {"cache_salt": "tenant-7"}
    found = ask(engine.url, chat(extra=tenant, salt="v2"), chat(salt="v2"), chat(extra=tenant, salt="v2"))
    assert [one.cached_tokens for one in found] == [0, 0, 80]
    assert sent(engine, "cache_salt") == ["tenant-7", None, "tenant-7"]


def test_an_empty_salt_would_be_none_and_is_not_sent(engine: ScriptedEngine) -> None:
    with pytest.raises(UsageError):
        ask(engine.url, chat(salt=""))
    assert engine.generations() == []


@pytest.mark.parametrize("streams", [False, True])
def test_a_bypass_is_productions_request_in_a_key_space_nobody_used(engine: ScriptedEngine, *, streams: bool) -> None:
    bypassed = chat(salt="v2", bypasses=True, streams=streams, extra={"cache_salt": "tenant-7"})
    engine.release = "old"
    ask(engine.url, chat(salt="v2", extra={"cache_salt": "tenant-7"}))
    engine.reload("new")
    first, second = ask(engine.url, bypassed, bypassed)
    assert engine.cached_of == [0, 0, 0]
    # Every generated token is the new release's own, not the first alone.
    with ScriptedEngine(EngineKind.SGLANG, release="new") as clean:
        assert first.tokens == second.tokens == ask(clean.url, bypassed)[0].tokens
    salts = sent(engine, "cache_salt")
    assert salts[0] == "tenant-7"
    assert len(set(salts)) == 3
    assert all(str(salt).startswith("kvrelease-bypass-") for salt in salts[1:])
    assert sent(engine, "extra_key") == ["v2"] * 3
    assert {seen.path for seen in engine.generations()} == {"/v1/chat/completions"}


def test_a_bypass_leaves_productions_entries_as_they_are(engine: ScriptedEngine) -> None:
    found = ask(engine.url, chat(), chat(bypasses=True), chat())
    assert [one.cached_tokens for one in found] == [0, 0, 80]


def test_a_bypass_that_a_gateway_drops_shows_its_hits(engine: ScriptedEngine) -> None:
    engine.ignores_salt = True
    found = ask(engine.url, chat(), chat(bypasses=True))
    assert [one.cached_tokens for one in found] == [0, 80]


# --- hits ------------------------------------------------------------------------------------------------------------

SILENT = [
    (chat(), [0, 80]),
    (chat(streams=True), [None, 80]),
    (completion(), [None, 80]),
    (completion(streams=True), [None, 80]),
]


@pytest.mark.parametrize(("request_", "expected"), SILENT, ids=["chat", "chat-stream", "completion", "stream"])
def test_hits_are_told_without_a_cache_report_and_a_miss_is_not_made_up(
    engine: ScriptedEngine, request_: Request, expected: list[int | None]
) -> None:
    """Null on a real hit, and zero looks like off: https://github.com/noonghunna/club-3090/issues/1297,
    https://github.com/sgl-project/sglang/pull/28801, https://github.com/sgl-project/sglang/issues/4707
    """
    engine.reports_cached_tokens = False
    assert [one.cached_tokens for one in ask(engine.url, request_, request_)] == expected


def test_where_replies_tell_nothing_the_counters_witness_the_hit(engine: ScriptedEngine) -> None:
    """https://github.com/noonghunna/club-3090/issues/1297"""
    engine.reports_cached_tokens = engine.keeps_extensions = False

    async def main(client: EngineClient) -> tuple[Observation, list[Counters | None]]:
        await client.complete(chat())
        before = await client.counters()
        found = await client.complete(chat())
        return found, [before, await client.counters()]

    found, (before, after) = use(engine.url, main)
    assert found.cached_tokens is None
    assert before is not None
    assert after is not None
    assert after.cached_tokens - before.cached_tokens == 80


@pytest.mark.parametrize("streams", [False, True])
def test_a_hit_says_which_tier_it_came_from(*, streams: bool) -> None:
    """Pages of an earlier process, under the same name and directory, are read again by the next one:
    https://github.com/sgl-project/sglang/issues/24758, https://github.com/Tanguille/cluster/pull/4213
    """
    with ScriptedEngine(EngineKind.SGLANG, store={}) as engine:
        (cold,) = ask(engine.url, chat(streams=streams))
        engine.restart("new")
        stored, warm = ask(engine.url, chat(streams=streams), chat(streams=streams))
        assert cold.tiers is None
        assert stored.tiers == CacheTiers(device_tokens=0, storage_tokens=80, storage="HiCacheFile")
        assert (warm.tiers or stored.tiers) == CacheTiers(device_tokens=80, storage_tokens=0, storage="HiCacheFile")
        assert use(engine.url, identity).capabilities.cache_outlives_process
        counted = use(engine.url, counters)
        assert counted is not None
        assert (counted.cached_tokens, counted.external_cached_tokens) == (80, 80)


def test_a_namespace_of_its_own_finds_nothing_in_a_shared_store() -> None:
    with ScriptedEngine(EngineKind.SGLANG, store={}) as engine:
        ask(engine.url, chat(salt="v1"))
        engine.restart("new")
        found = ask(engine.url, chat(salt="v2"), chat(salt="v1"))
        assert [one.cached_tokens for one in found] == [0, 80]


def test_generated_tokens_have_their_ids_where_sglang_tells_them(engine: ScriptedEngine) -> None:
    found = ask(engine.url, chat(), completion(), completion(streams=True), chat(streams=True))
    assert [all(token.token_id for token in one.tokens) for one in found] == [True, True, True, False]
    assert [len(one.tokens) for one in found] == [3, 3, 3, 3]


def test_the_rank_that_answered_is_told_where_a_header_may_be_ignored() -> None:
    """A warm-up reached rank 0 twice and rank 7 never; the rank header ignored with 200; turns that rotate over ranks:
    https://github.com/sgl-project/sglang/pull/30748, https://github.com/ai-dynamo/dynamo/pull/11526,
    https://github.com/sgl-project/sglang/pull/38729, https://github.com/vllm-project/vllm/pull/42330,
    https://github.com/vllm-project/vllm/issues/52463, https://github.com/sgl-project/sglang/issues/26611
    """
    with ScriptedEngine(EngineKind.SGLANG, ranks=3) as several:
        found = ask(several.url, *[chat() for _ in range(3)], chat(streams=True))
        assert [one.rank for one in found] == [0, 1, 2, None]
        assert use(several.url, identity).ranks == (0, 1, 2)


def test_the_label_of_the_weights_comes_with_the_answer(engine: ScriptedEngine) -> None:
    engine.weight_versions = ["kv1-abc"]
    whole, streamed = ask(engine.url, chat(), chat(streams=True))
    assert (whole.system_fingerprint, streamed.system_fingerprint) == ("kv1-abc", None)


def test_an_answer_across_a_swap_of_weights_is_no_observation(engine: ScriptedEngine) -> None:
    engine.weight_versions = ["v1", "v2"]
    with pytest.raises(UnexpectedReply) as caught:
        ask(engine.url, chat())
    assert "swapped while it generated" in caught.value.message


def test_a_log_probability_that_json_cannot_hold_costs_the_log_probabilities_only(engine: ScriptedEngine) -> None:
    """https://github.com/sgl-project/sglang/issues/4097, https://github.com/sgl-project/sglang/issues/5984,
    https://github.com/vllm-project/vllm/issues/10234
    """
    engine.break_with(Break.INFINITE)
    (found,) = ask(engine.url, chat())
    assert (found.tokens, found.cached_tokens, found.retries) == ((), 0, 1)


def test_an_answer_of_no_tokens_is_a_fault(engine: ScriptedEngine) -> None:
    """https://github.com/NVIDIA/TensorRT-LLM/pull/17427, https://github.com/vllm-project/guidellm/issues/444,
    https://github.com/sgl-project/sglang/pull/40555
    """
    engine.break_with(Break.EMPTY)
    with pytest.raises(UnexpectedReply):
        ask(engine.url, chat())


# --- models ----------------------------------------------------------------------------------------------------------


def test_any_name_is_answered_and_goes_out_as_production_sends_it(engine: ScriptedEngine) -> None:
    (found,) = ask(engine.url, chat(extra={"model": "default"}))
    assert found.model == "default"
    assert sent(engine, "model") == ["default"]


def test_an_adapter_by_its_bare_name_would_be_the_base_model() -> None:
    with ScriptedEngine(EngineKind.SGLANG, adapters=("support",)) as engine:
        with pytest.raises(WrongModel) as caught:
            ask(engine.url, chat(extra={"model": "support"}))
        assert "base model" in caught.value.message
        assert "'scripted:support'" in (caught.value.hint or "")
        assert engine.generations() == []


def test_an_adapter_that_the_body_names_by_its_path_is_sent_as_it_is() -> None:
    with ScriptedEngine(EngineKind.SGLANG, adapters=("support",)) as engine:
        ask(engine.url, chat(extra={"model": "support", "lora_path": "support"}))
        assert (sent(engine, "model"), sent(engine, "lora_path")) == (["support"], ["support"])


def test_an_adapter_that_is_named_is_asked_for_as_sglang_takes_it() -> None:
    async def main(client: EngineClient) -> list[object]:
        found = await client.identify()
        return [found.model, *[(await client.complete(chat())).cached_tokens for _ in range(2)]]

    with ScriptedEngine(EngineKind.SGLANG, adapters=("support",)) as engine:
        assert use(engine.url, main, model="scripted")[1:] == [0, 80]
        assert use(engine.url, main, model="support") == ["scripted:support", 0, 80]
        assert sent(engine, "model") == ["scripted"] * 2 + ["scripted:support"] * 2


TOO_LONG = [
    "The input (70 tokens) is longer than the model's context length (50 tokens).",
    "Requested token count exceeds the model's maximum context length of 50 tokens. You requested a total of 60 tokens",
    "Input length (70 tokens) exceeds the maximum allowed length (50 tokens). Use a shorter input.",
]


@pytest.mark.parametrize("words", TOO_LONG)
def test_a_prompt_over_the_context_or_the_cache_has_an_error_of_its_own(words: str) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "sglang"}]})
        return httpx.Response(400, json={"object": "error", "message": words, "type": "BadRequestError", "code": 400})

    async def main(client: EngineClient) -> Observation:
        return await client.complete(chat())

    with pytest.raises(PromptTooLong):
        use("http://h", main, connector=httpx.MockTransport(handle))


# --- token ids -------------------------------------------------------------------------------------------------------


def test_a_chat_is_tokenised_as_its_route_renders_it(engine: ScriptedEngine) -> None:
    # The chat route ignores `add_generation_prompt`, which `/v1/tokenize` would obey.
    request = chat(extra={"tools": [{"type": "function"}], "add_generation_prompt": False, "stream": True})
    rendered = chat_prompt({**request.body, "add_generation_prompt": True})
    assert tokenized(engine, request) == token_ids(rendered)
    assert engine.requests[-1].path == "/v1/tokenize"
    assert ask(engine.url, request)[0].prompt_tokens != 0


def test_texts_and_ids_are_told_and_what_cannot_be_told_is_none(engine: ScriptedEngine) -> None:
    assert tokenized(engine, completion()) == token_ids(PROMPT)
    assert tokenized(engine, completion([PROMPT])) == token_ids(PROMPT)
    assert tokenized(engine, completion([5, 6, 7])) == (5, 6, 7)
    assert tokenized(engine, completion([PROMPT, PROMPT])) is None
    picture: JsonObject = {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]
    }
    assert tokenized(engine, chat(extra=picture)) is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"detail": "Not Found"}),
        (400, {"message": "[{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required'}]"}),
    ],
)
def test_releases_and_gateways_without_the_route_tell_no_ids(status: int, body: JsonObject) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "sglang"}]})
        return httpx.Response(status, json=body)

    async def main(client: EngineClient) -> tuple[int, ...] | None:
        return await client.tokenize(chat())

    assert use("http://h", main, connector=httpx.MockTransport(handle)) is None


def test_a_refused_tokenisation_is_an_error(engine: ScriptedEngine) -> None:
    engine.break_with(Break.BAD_REQUEST, path="/v1/tokenize")
    with pytest.raises(Refused):
        tokenized(engine, completion())


# --- emptying --------------------------------------------------------------------------------------------------------


def test_a_busy_server_refuses_to_empty_its_cache_and_says_so(engine: ScriptedEngine) -> None:
    """Weights new, cache old: https://github.com/areal-project/AReaL/issues/140,
    https://github.com/sgl-project/sglang/issues/12099
    """
    engine.flush_reply = (400, b"Flush cache failed.\n")
    ask(engine.url, chat())
    assert use(engine.url, flush) is False
    assert ask(engine.url, chat())[0].cached_tokens == 80
    assert sum(seen.path == "/flush_cache" for seen in engine.requests) == 1


def test_an_emptied_cache_misses(engine: ScriptedEngine) -> None:
    ask(engine.url, chat())
    assert use(engine.url, flush) is True
    assert ask(engine.url, chat())[0].cached_tokens == 0


def test_a_flush_above_a_store_proves_nothing_and_leaves_the_store() -> None:
    """Device and host are cleared, and the old pages come back from files:
    https://github.com/sgl-project/sglang/issues/26792, https://github.com/sgl-project/sglang/pull/29443
    """
    with ScriptedEngine(EngineKind.SGLANG, store={}) as engine:
        ask(engine.url, chat())
        assert use(engine.url, flush) is None
        assert ask(engine.url, chat())[0].cached_tokens == 80
        assert not [seen for seen in engine.requests if seen.path.startswith("/hicache")]


@pytest.mark.parametrize(("ranks", "tells"), [(2, True), (1, False)])
def test_a_flush_that_one_rank_answers_or_whose_tiers_nobody_tells_is_not_known(ranks: int, *, tells: bool) -> None:
    with ScriptedEngine(EngineKind.SGLANG, ranks=ranks, has_dev_routes=tells) as engine:
        assert use(engine.url, flush) is None


@pytest.mark.parametrize(("how", "error"), [(Break.NO_ROUTE, UsageError), (Break.UNAUTHORIZED, Refused)])
def test_a_flush_that_is_not_there_or_not_ours_is_an_error(
    engine: ScriptedEngine, how: Break, error: type[Exception]
) -> None:
    engine.break_with(how, path="/flush_cache")
    with pytest.raises(error):
        use(engine.url, flush)


# --- identity --------------------------------------------------------------------------------------------------------


def test_identity_has_page_capacity_settings_and_labels(engine: ScriptedEngine) -> None:
    found = use(engine.url, identity)
    assert (found.version, found.model, found.context_tokens) == ("0.5.23", "scripted", 4096)
    assert (found.capabilities.block_tokens, found.capacity_tokens) == (16, 1600)
    assert not found.capabilities.cache_outlives_process
    assert found.labels["model_path"] == "/models/old"
    assert found.labels["weight_version"] == "default"
    assert found.labels["enable_cache_report"] == "true"
    assert found.runtime == {
        "engine": "sglang",
        "version": "0.5.23",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": "none",
        "tensor_parallel_size": "1",
        "pipeline_parallel_size": "1",
        "block_size": "16",
        "max_model_len": "none",
        "overrides": "none",
    }
    assert found.runtime_unread == ()


def test_a_restart_is_another_process(engine: ScriptedEngine) -> None:
    first = use(engine.url, identity).process
    assert use(engine.url, identity).process == first
    engine.restart()
    assert use(engine.url, identity).process != first
    assert str(first).startswith("startup:")


def test_where_settings_are_closed_they_are_not_known(engine: ScriptedEngine) -> None:
    engine.has_dev_routes = False
    found = use(engine.url, identity)
    assert (found.version, found.capacity_tokens, found.capabilities.block_tokens) == (None, None, None)
    assert found.capabilities.cache_outlives_process  # not told is not no
    assert found.runtime == {"engine": "sglang"}
    assert "kv_cache_dtype" in found.runtime_unread
    assert str(found.process).startswith("pid:")


def test_the_servers_own_key_stays_out_of_what_is_said(engine: ScriptedEngine) -> None:
    engine.api_key = "sk-server-key"
    found = use(engine.url, identity, api_key="sk-server-key")
    assert "sk-server-key" not in repr(found)


def test_no_counters_without_metrics_or_before_the_first_request(engine: ScriptedEngine) -> None:
    assert use(engine.url, counters) is None
    ask(engine.url, chat())
    found = use(engine.url, counters)
    assert found is not None
    assert (found.queried_tokens, found.cached_tokens, found.running_requests) == (engine.queried_tokens, 0, 0)
    engine.has_metrics = False
    assert use(engine.url, counters) is None
