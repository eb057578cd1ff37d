from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines import http, vllm
from kvrelease.engines.base import Counters, EngineClient, EngineIdentity, EngineKind, Request, Route
from kvrelease.errors import PromptTooLong, ServiceTimeout, UsageError
from tests.engines.clients import ask, chat, completion, counters, flush, identity, tokenized, use
from tests.engines.scripted import Break, ScriptedEngine


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(EngineKind.VLLM, capacity_blocks=100) as scripted:
        yield scripted


def test_salts_are_key_spaces_of_their_own(engine: ScriptedEngine) -> None:
    found = ask(engine.url, chat(), chat(salt="blue"), chat(salt="green"), chat(salt="blue"), chat())
    assert [one.cached_tokens for one in found] == [0, 0, 0, 80, 80]
    assert [seen.body.get("cache_salt") for seen in engine.generations()] == [None, "blue", "green", "blue", None]


def test_a_salt_of_production_stays_unless_the_probe_has_one(engine: ScriptedEngine) -> None:
    extra: JsonObject = {"cache_salt": "production"}
    ask(engine.url, chat(extra=extra), chat(extra=extra, salt="probe"))
    assert [seen.body["cache_salt"] for seen in engine.generations()] == ["production", "probe"]


@pytest.mark.parametrize("salt", ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b"])
def test_a_salt_that_vllm_refuses_is_not_sent(engine: ScriptedEngine, salt: str) -> None:
    with pytest.raises(UsageError):
        ask(engine.url, chat(salt=salt))
    assert engine.generations() == []


def test_a_bypass_reads_nothing_and_still_writes(engine: ScriptedEngine) -> None:
    found = ask(engine.url, chat(bypasses=True), chat(), chat(bypasses=True))
    assert [one.cached_tokens for one in found] == [0, 80, 0]
    assert engine.generations()[0].body["prompt_logprobs"] == 0


def test_a_bypass_is_not_counted_and_everything_else_is(engine: ScriptedEngine) -> None:
    ask(engine.url, chat(), chat(), chat(bypasses=True))
    found = use(engine.url, counters)
    assert found is not None
    assert (found.queried_tokens, found.cached_tokens, found.external_cached_tokens) == (
        2 * engine_prompt(engine),
        80,
        0,
    )
    assert found.running_requests == 0


def engine_prompt(engine: ScriptedEngine) -> int:
    seen = engine.generations()[0]
    return len(engine.prompt_ids(seen.path, seen.body)[0])


def test_hits_of_a_store_outside_are_counted_apart() -> None:
    with ScriptedEngine(store={}) as engine:
        ask(engine.url, chat())
        engine.restart("new")
        (found,) = ask(engine.url, chat(salt="blue"))
        assert found.cached_tokens == 80
        counted = use(engine.url, counters)
        assert counted is not None
        assert (counted.cached_tokens, counted.external_cached_tokens) == (0, 80)


def test_without_metrics_there_are_no_counters_and_a_process_all_the_same(engine: ScriptedEngine) -> None:
    engine.has_metrics = False
    assert use(engine.url, counters) is None
    found = use(engine.url, identity)
    assert found.process is not None
    assert found.process.startswith("pid:")


def count(engine: ScriptedEngine, path: str) -> int:
    return sum(seen.path == path for seen in engine.requests)


def test_metrics_that_hang_tell_nothing_and_are_asked_once(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "OPTIONAL_S", 0.05)
    engine.break_with(Break.HANG, path="/metrics")

    async def run(client: EngineClient) -> tuple[EngineIdentity, list[Counters | None]]:
        return await client.identify(), [await client.counters() for _ in range(3)]

    found, counted = use(engine.url, run, timeout_s=60.0)
    assert counted == [None, None, None]
    assert count(engine, "/metrics") == 1
    assert (found.process or "").startswith("pid:")
    assert found.runtime["kv_cache_dtype"] == "auto"  # what /server_info tells is not lost


def test_every_optional_route_may_hang_and_the_model_is_still_told(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "OPTIONAL_S", 0.05)
    for path in ("/metrics", "/version", "/server_info", "/weight_info"):
        engine.break_with(Break.HANG, path=path)
    started = time.monotonic()
    found = use(engine.url, identity, timeout_s=60.0)
    assert time.monotonic() - started < 20.0
    assert (found.model, found.version, found.runtime) == ("scripted", None, {"engine": "vllm"})
    assert not found.capabilities.has_flush


def test_server_info_has_a_time_of_its_own_because_its_first_answer_runs_other_programs(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "SERVER_INFO_S", 0.05)
    engine.break_with(Break.HANG, path="/server_info")
    started = time.monotonic()
    found = use(engine.url, identity, timeout_s=60.0)
    assert time.monotonic() - started < http.OPTIONAL_S
    assert (found.version, found.capabilities.has_flush) == ("0.32.0", False)
    assert found.runtime["block_size"] == "16"  # what /metrics tells is not lost


def test_a_process_once_told_by_its_start_is_never_told_otherwise_because_a_page_is_slow(
    engine: ScriptedEngine,
) -> None:
    async def twice(client: EngineClient) -> None:
        assert (await client.identify()).process == "started:1700000000.00"
        engine.break_with(Break.HANG, path="/metrics")
        await client.current_process()

    with pytest.raises(ServiceTimeout, match="/metrics"):
        use(engine.url, twice, timeout_s=0.5)


def test_ids_of_generated_tokens_are_told(engine: ScriptedEngine) -> None:
    for request in (chat(), chat(streams=True), completion(), completion(streams=True)):
        (found,) = ask(engine.url, request)
        assert all(token.token_id is not None for token in found.tokens)
    assert "return_token_ids" not in _body(engine, chat(top=0))


def _body(engine: ScriptedEngine, request: Request) -> JsonObject:
    ask(engine.url, request)
    return engine.generations()[-1].body


def test_a_chat_is_tokenized_with_all_that_its_template_sees(engine: ScriptedEngine) -> None:
    plain = chat()
    tools = chat(extra={"tools": [{"type": "function", "function": {"name": "f"}}]})
    kwargs = chat(extra={"chat_template_kwargs": {"enable_thinking": False}})
    effort = chat(extra={"reasoning_effort": "none"})
    bare = chat(extra={"add_generation_prompt": False})
    found = [tokenized(engine, request) for request in (plain, tools, kwargs, effort, bare)]
    assert len(set(found)) == 5
    asked = [seen.body for seen in engine.requests if seen.path == "/tokenize"]
    assert asked[3]["chat_template_kwargs"] == {"reasoning_effort": "none", "enable_thinking": False}
    assert all("temperature" not in body and body["model"] == "scripted" for body in asked)
    for request, ids in zip((plain, tools, kwargs), found, strict=False):
        (seen,) = ask(engine.url, request)
        assert ids is not None
        assert seen.prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("prompt", "length"),
    [("one two", 3), (["one two"], 3), ([5, 6], 2), ([[5, 6, 7]], 3), (["one", "two"], None), ([], None), (None, None)],
)
def test_one_prompt_of_a_completion_is_tokenized_and_several_are_not(
    engine: ScriptedEngine, prompt: object, length: int | None
) -> None:
    found = tokenized(engine, completion(prompt))
    assert (None if found is None else len(found)) == length


def test_a_server_without_the_route_cannot_tell_tokens(engine: ScriptedEngine) -> None:
    engine.break_with(Break.NO_ROUTE, path="/tokenize")
    assert tokenized(engine, chat()) is None
    engine.mend()
    # Gateways often let nothing but /v1 through.
    engine.break_with(Break.FORBIDDEN, path="/tokenize")
    assert tokenized(engine, chat()) is None


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ((200, b'{"success": true}'), True),
        ((200, b'{"success": false}'), False),
        ((200, b""), None),
        ((200, b'{"status": "TODO"}'), None),
        ((200, b'{"success": "yes"}'), None),
        ((409, b'{"detail": "busy"}'), False),
        ((500, b"Internal Server Error"), False),
    ],
)
def test_only_an_affirmative_answer_is_a_flush(
    engine: ScriptedEngine, reply: tuple[int, bytes], *, expected: bool | None
) -> None:
    """https://github.com/vllm-project/vllm-omni/issues/6739: a stub answers TODO, and did nothing.

    https://github.com/llm-d/llm-d-benchmark/pull/1918, https://github.com/vllm-project/vllm/pull/12284: refusals by
    status, by body, and an empty body, which says nothing.
    """
    engine.flush_reply = reply
    assert use(engine.url, flush) is expected
    sent = [seen for seen in engine.requests if seen.path == "/reset_prefix_cache"]
    assert len(sent) == 1


def test_a_flush_never_reaches_the_store_that_others_share() -> None:
    """https://github.com/vllm-project/vllm/issues/57727: success, and the next request is served from a tier below.

    `reset_external` would empty it for others as well (https://github.com/vllm-project/vllm/pull/45767): never sent;
    what is served afterwards is asked.
    """
    paths: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        paths.append(str(request.url.raw_path, "ascii") + request.content.decode())
        return httpx.Response(200, json={"success": True})

    use("http://h", flush, kind=EngineKind.VLLM, connector=httpx.MockTransport(handle))
    assert not any("external" in path for path in paths)
    assert paths[0] == "/reset_prefix_cache{}"


def test_a_flush_empties_what_was_made_of_images_too_and_nothing_where_it_is_refused() -> None:
    """https://github.com/vllm-project/vllm/pull/46125
    https://github.com/vllm-project/vllm/issues/44939
    """
    for status, caches in ((200, ["prefix", "mm", "encoder"]), (409, ["prefix"])):
        paths: list[str] = []

        def handle(request: httpx.Request, paths: list[str] = paths, status: int = status) -> httpx.Response:
            paths.append(request.url.path)
            is_prefix = request.url.path == "/reset_prefix_cache"
            return httpx.Response(status, json={"success": True}) if is_prefix else httpx.Response(404)

        done = use("http://h", flush, kind=EngineKind.VLLM, connector=httpx.MockTransport(handle))
        assert paths == [f"/reset_{name}_cache" for name in caches]
        assert done is (status == 200)


def test_outside_development_mode_a_flush_is_refused_and_not_a_capability(engine: ScriptedEngine) -> None:
    engine.has_dev_routes = False
    with pytest.raises(UsageError) as caught:
        use(engine.url, flush)
    assert "VLLM_SERVER_DEV_MODE=1" in (caught.value.hint or "")
    found = use(engine.url, identity)
    assert not found.capabilities.has_flush
    assert found.runtime == {"engine": "vllm", "version": "0.32.0", "kv_cache_dtype": "auto", "block_size": "16"}
    assert "tensor_parallel_size" in found.runtime_unread


def test_development_mode_tells_the_runtime_and_the_capacity(engine: ScriptedEngine) -> None:
    found = use(engine.url, identity)
    assert found.capabilities.has_flush
    assert (found.capabilities.block_tokens, found.capacity_tokens, found.context_tokens) == (16, 1600, 4096)
    assert found.runtime["dtype"] == "bfloat16"
    assert found.runtime["quantization"] == "none"
    assert found.runtime_unread == ()
    assert found.labels["weight_version"] == "default"


def test_a_reload_changes_no_label_and_a_restart_is_another_process(engine: ScriptedEngine) -> None:
    before = use(engine.url, identity)
    engine.reload("new")
    reloaded = use(engine.url, identity)
    engine.restart("new")
    restarted = use(engine.url, identity)
    assert reloaded == before
    assert restarted.process != before.process


def test_a_generation_that_outgrows_the_context_is_told_by_older_releases() -> None:
    words = (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the messages, "
        "100 in the completion). Please reduce the length of the messages or completion."
    )

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(400, json={"object": "error", "message": words, "type": "BadRequestError", "code": 400})

    async def main(client: EngineClient) -> object:
        return await client.complete(Request(route=Route.CHAT, body={"messages": []}))

    with pytest.raises(PromptTooLong):
        use("http://h", main, kind=EngineKind.VLLM, connector=httpx.MockTransport(handle))
