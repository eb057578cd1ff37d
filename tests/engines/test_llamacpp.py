from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.engines import http
from kvrelease.engines.base import Counters, EngineClient, EngineIdentity, EngineKind, Request
from kvrelease.errors import ServiceTimeout, UsageError
from tests.engines.clients import ask, chat, completion, counters, flush, identity, tokenized, use
from tests.engines.scripted import Break, ScriptedEngine

OTHER = "Something else entirely, that shares no word with the first prompt of all."


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(EngineKind.LLAMACPP) as scripted:
        yield scripted


@pytest.mark.parametrize(
    "request_",
    [
        chat(),
        chat(extra={"tools": [{"type": "function", "function": {"name": "f"}}]}),
        chat(extra={"chat_template_kwargs": {"enable_thinking": False}}),
        completion("one two three"),
        completion(["one two three"]),
        completion([5, 6, 7, 8]),
    ],
)
def test_as_many_ids_as_the_server_counts(engine: ScriptedEngine, request_: Request) -> None:
    ids = tokenized(engine, request_)
    (found,) = ask(engine.url, request_)
    assert ids is not None
    assert found.prompt_tokens == len(ids)


def test_ids_include_the_token_that_completions_begin_with(engine: ScriptedEngine) -> None:
    tokenized(engine, completion("one two"))
    asked = engine.requests[-1].body
    assert asked == {"content": "one two", "add_special": True, "parse_special": True}


def test_what_cannot_be_tokenized_exactly_is_not_told(engine: ScriptedEngine) -> None:
    image: JsonObject = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    assert tokenized(engine, chat(extra=image)) is None
    assert tokenized(engine, completion(["one", "two"])) is None
    engine.break_with(Break.NO_ROUTE, path="/apply-template")
    assert tokenized(engine, chat()) is None


def test_a_request_goes_to_the_slot_that_it_names() -> None:
    with ScriptedEngine(EngineKind.LLAMACPP, slots=2) as engine:
        one, other = (msgspec.structs.replace(chat(), slot=slot) for slot in (0, 1))
        found = ask(engine.url, one, other, one, other)
        whole = (found[0].prompt_tokens or 0) - 1
        assert [observed.cached_tokens for observed in found] == [0, 0, whole, whole]
        assert engine.generations()[1].body["id_slot"] == 1
    with ScriptedEngine() as vllm, pytest.raises(UsageError, match="has no slots"):
        ask(vllm.url, one)


def test_a_bypass_reads_nothing_and_replaces_the_slot(engine: ScriptedEngine) -> None:
    first, bypassed, after = ask(engine.url, chat(), chat(OTHER, bypasses=True), chat())
    assert engine.generations()[1].body["cache_prompt"] is False
    assert (first.cached_tokens, bypassed.cached_tokens) == (0, 0)
    assert after.cached_tokens is not None
    assert after.cached_tokens < 10


@pytest.mark.parametrize("streams", [False, True])
def test_hits_are_read_from_timings_where_usage_does_not_tell(engine: ScriptedEngine, *, streams: bool) -> None:
    from tests.engines.scripted_routes import Handler

    original = Handler._usage
    try:
        Handler._usage = lambda self, made: original(self, made) | {"prompt_tokens_details": None}  # type: ignore[method-assign]
        first, second = ask(engine.url, chat(), chat(streams=streams))
    finally:
        Handler._usage = original  # type: ignore[method-assign]
    assert first.cached_tokens == 0
    assert second.cached_tokens == (second.prompt_tokens or 0) - 1


def test_identity_tells_slots_and_what_no_route_tells(engine: ScriptedEngine) -> None:
    engine.slots = 3
    found = use(engine.url, identity)
    assert found.capabilities.cacheable_limit == 3
    assert found.capabilities.block_tokens == 1
    assert (found.context_tokens, found.capacity_tokens) == (4096, 3 * 4096)
    assert found.runtime["engine"] == "llamacpp"
    assert found.labels["model_path"] == "/models/old.gguf"
    assert "kv_cache_dtype" in found.runtime_unread


def test_the_process_is_told_by_the_metrics_or_by_the_port(engine: ScriptedEngine) -> None:
    assert use(engine.url, identity).process == "started:1700000000"
    engine.has_metrics = False
    assert (use(engine.url, identity).process or "").startswith("pid:")
    assert use(engine.url, counters) is None


def test_metrics_and_props_that_hang_tell_nothing_and_are_asked_once(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "OPTIONAL_S", 0.05)
    for path in ("/metrics", "/props"):
        engine.break_with(Break.HANG, path=path)

    async def run(client: EngineClient) -> tuple[EngineIdentity, list[Counters | None]]:
        return await client.identify(), [await client.counters() for _ in range(3)]

    found, counted = use(engine.url, run, kind=EngineKind.LLAMACPP, timeout_s=60.0)
    assert counted == [None, None, None]
    assert (found.process or "").startswith("pid:")
    assert (found.version, found.capabilities.cacheable_limit) == (None, None)
    asked = [seen.path for seen in engine.requests]
    assert (asked.count("/metrics"), asked.count("/props")) == (1, 1)


def test_a_process_once_told_by_its_start_is_never_told_otherwise_because_a_page_is_slow(
    engine: ScriptedEngine,
) -> None:
    async def twice(client: EngineClient) -> None:
        assert (await client.identify()).process == "started:1700000000"
        engine.break_with(Break.HANG, path="/metrics")
        await client.current_process()

    with pytest.raises(ServiceTimeout, match="/metrics"):
        use(engine.url, twice, timeout_s=0.5)


def test_counters_add_what_was_reused_to_what_was_computed(engine: ScriptedEngine) -> None:
    first, second = ask(engine.url, chat(), chat())
    found = use(engine.url, counters)
    assert found == Counters(
        queried_tokens=2.0 * (first.prompt_tokens or 0),
        cached_tokens=float(second.cached_tokens or 0),
        running_requests=0.0,
    )


def test_erasing_slots_is_no_proof_because_memory_fills_them_again() -> None:
    with ScriptedEngine(EngineKind.LLAMACPP, keeps_in_ram=True) as engine:
        ask(engine.url, chat(), chat(OTHER))
        assert use(engine.url, flush) is None
        (found,) = ask(engine.url, chat())
        assert found.cached_tokens == (found.prompt_tokens or 0) - 1


def test_an_erase_that_is_refused_is_false_and_one_without_the_flag_is_explained(engine: ScriptedEngine) -> None:
    engine.break_with(Break.LOADING, path="/slots")
    assert use(engine.url, flush) is False
    engine.mend()
    engine.has_dev_routes = False
    with pytest.raises(UsageError) as caught:
        use(engine.url, flush)
    assert "--slot-save-path" in (caught.value.hint or "")
