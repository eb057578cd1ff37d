"""What every adapter promises, over a real socket; `tests/live` runs real engines through the same adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from kvrelease.engines.base import EngineClient, EngineIdentity, EngineKind, Observation, Request
from kvrelease.engines.detect import open_engine
from kvrelease.errors import (
    KvreleaseError,
    PromptTooLong,
    Refused,
    ServiceError,
    ServiceTimeout,
    UnexpectedReply,
    Unreachable,
    UsageError,
    WrongModel,
)
from tests.engines.clients import PROMPT, ask, chat, completion, use
from tests.engines.scripted import Break, ScriptedEngine

KINDS = (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.LLAMACPP, EngineKind.OPENAI)
SALTED = (EngineKind.VLLM, EngineKind.SGLANG)
SHAPES = {
    "chat": chat(),
    "chat-stream": chat(streams=True),
    "completion": completion(),
    "completion-stream": completion(streams=True),
}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Iterator[ScriptedEngine]:
    with ScriptedEngine(request.param) as scripted:
        yield scripted


def failure(engine: ScriptedEngine, request: Request, *, timeout_s: float = 5.0) -> KvreleaseError:
    with pytest.raises(KvreleaseError) as caught:
        ask(engine.url, request, kind=engine.kind, timeout_s=timeout_s)
    return caught.value


async def identity(client: EngineClient) -> EngineIdentity:
    return await client.identify()


@pytest.mark.parametrize("shape", SHAPES)
def test_one_request_shows_text_tokens_and_usage(engine: ScriptedEngine, shape: str) -> None:
    (found,) = ask(engine.url, SHAPES[shape])
    assert len(found.text.split()) == 3
    assert [token.token for token in found.tokens] == found.text.split()
    assert all(len(token.top) == 20 for token in found.tokens)
    for token in found.tokens:
        assert token.logprob == token.top[0].logprob
        assert [item.logprob for item in token.top] == sorted((item.logprob for item in token.top), reverse=True)
    assert found.cached_tokens == 0
    assert found.prompt_tokens is not None
    assert found.prompt_tokens > 64
    assert found.finish_reason == "length"
    assert found.model == "scripted"
    # SGLang's label of the weights is in whole answers only.
    assert (found.system_fingerprint is None) == (engine.kind is EngineKind.SGLANG and SHAPES[shape].streams)
    assert found.retries == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_only_a_streamed_request_tells_the_time_to_the_first_token(engine: ScriptedEngine, shape: str) -> None:
    (found,) = ask(engine.url, SHAPES[shape])
    if SHAPES[shape].streams:
        assert found.ttft_s is not None
        assert 0 < found.ttft_s <= found.total_s
    else:
        assert found.ttft_s is None


def test_all_four_ways_of_asking_show_the_same_generation(engine: ScriptedEngine) -> None:
    first, second = ask(engine.url, chat(), chat(streams=True))
    assert [token.top for token in first.tokens] == [token.top for token in second.tokens]
    third, fourth = ask(engine.url, completion(), completion(streams=True))
    assert [token.top for token in third.tokens] == [token.top for token in fourth.tokens]


def test_the_second_of_two_equal_requests_hits(engine: ScriptedEngine) -> None:
    first, second = ask(engine.url, chat(), chat())
    assert first.cached_tokens == 0
    assert second.cached_tokens is not None
    assert second.cached_tokens > 48


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_that_does_not_say_is_unknown_and_never_zero(engine: ScriptedEngine, *, streams: bool) -> None:
    engine.reports_cached_tokens = engine.keeps_extensions = False
    assert [found.cached_tokens for found in ask(engine.url, chat(), chat(streams=streams))] == [None, None]


def test_what_production_sends_arrives_whole(engine: ScriptedEngine) -> None:
    extra = {"temperature": 0.3, "tools": [{"type": "function", "function": {"name": "f"}}], "x": {"y": [1, None]}}
    ask(engine.url, chat(extra=dict(extra)))
    sent = engine.generations()[-1].body
    assert {key: sent[key] for key in extra} == extra
    assert sent["messages"] == [{"role": "user", "content": PROMPT}]
    assert (sent["model"], sent["max_tokens"]) == ("scripted", 3)


def test_a_body_that_streams_by_itself_is_asked_for_whole(engine: ScriptedEngine) -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 500}
    (found,) = ask(engine.url, chat(extra=dict(body)))
    sent = engine.generations()[-1].body
    assert (sent["stream"], sent["max_completion_tokens"]) == (False, 3)
    assert "stream_options" not in sent
    assert "max_tokens" not in sent
    assert len(found.tokens) == 3


def test_identity_names_model_process_and_capabilities(engine: ScriptedEngine) -> None:
    found = use(engine.url, identity)
    assert (found.kind, found.url, found.model) == (engine.kind, engine.url, "scripted")
    assert found.process is not None
    assert found.capabilities.has_salt == (engine.kind in SALTED)
    assert found.capabilities.has_bypass == (engine.kind is not EngineKind.OPENAI)
    assert found.capabilities.reference_heals == (engine.kind is EngineKind.LLAMACPP)


def test_the_process_is_told_by_one_request_as_the_identity_tells_it(engine: ScriptedEngine) -> None:
    async def both(client: EngineClient) -> tuple[str | None, str | None, int]:
        identified = (await client.identify()).process
        before = len(engine.requests)
        return identified, await client.current_process(), len(engine.requests) - before

    identified, process, requests = use(engine.url, both)
    assert process == identified
    assert requests <= 1


def test_another_model_than_the_served_is_named_with_what_is_served(engine: ScriptedEngine) -> None:
    with pytest.raises(WrongModel) as caught:
        use(engine.url, identity, model="gpt-9")
    assert "'gpt-9'" in caught.value.message
    assert caught.value.hint == "served: 'scripted'"


@pytest.mark.parametrize("streams", [False, True])
def test_a_bypass_or_a_salt_is_honoured_or_refused(engine: ScriptedEngine, *, streams: bool) -> None:
    salted, bypassed = chat(salt="blue", streams=streams), chat(bypasses=True, streams=streams)
    if engine.kind in SALTED:
        ask(engine.url, salted)
    else:
        assert isinstance(failure(engine, salted), UsageError)
    if engine.kind is EngineKind.OPENAI or (engine.kind is EngineKind.VLLM and streams):
        assert isinstance(failure(engine, bypassed), UsageError)
    else:
        assert [found.cached_tokens for found in ask(engine.url, chat(), bypassed)] == [0, 0]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Break.HTML, UnexpectedReply),
        (Break.LOGIN, UnexpectedReply),
        (Break.UNAUTHORIZED, Refused),
        (Break.FORBIDDEN, Refused),
        (Break.NO_ROUTE, Refused),
        (Break.BAD_REQUEST, Refused),
        (Break.BUSY, Refused),
        (Break.LOADING, Refused),
        (Break.CRASHING, Refused),
        (Break.DROP, Unreachable),
        (Break.NOT_JSON, UnexpectedReply),
        (Break.NO_CHOICES, UnexpectedReply),
        (Break.EMPTY, UnexpectedReply),
        (Break.ERROR_EVENT, Refused),
    ],
)
def test_each_fault_is_its_own_error(
    engine: ScriptedEngine, how: Break, expected: type[ServiceError], *, streams: bool
) -> None:
    """https://github.com/NVIDIA/NemoClaw/issues/9487"""
    engine.break_with(how)
    error = failure(engine, chat(streams=streams))
    assert type(error) is expected
    assert "POST" in error.message
    assert engine.url in error.message


@pytest.mark.parametrize("how", [Break.BUSY, Break.LOADING, Break.CRASHING, Break.DROP])
@pytest.mark.parametrize("streams", [False, True])
def test_what_passes_is_tried_again_and_counted(engine: ScriptedEngine, how: Break, *, streams: bool) -> None:
    engine.break_with(how, times=2)
    (found,) = ask(engine.url, chat(streams=streams))
    assert found.retries == 2
    assert len(engine.generations()) == 3


@pytest.mark.parametrize("how", [Break.UNAUTHORIZED, Break.FORBIDDEN, Break.NO_ROUTE, Break.BAD_REQUEST, Break.HTML])
def test_what_does_not_pass_is_asked_once(engine: ScriptedEngine, how: Break) -> None:
    engine.break_with(how)
    failure(engine, chat())
    assert len(engine.generations()) == 1


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_that_hangs_meets_the_deadline(engine: ScriptedEngine, *, streams: bool) -> None:
    engine.break_with(Break.HANG)
    error = failure(engine, chat(streams=streams), timeout_s=0.05)
    assert isinstance(error, ServiceTimeout)
    assert "0.05 s" in error.message


def test_a_stream_that_ends_early_without_an_error_is_a_broken_connection(engine: ScriptedEngine) -> None:
    engine.break_with(Break.CUT)
    assert isinstance(failure(engine, chat(streams=True)), Unreachable)


def test_a_prompt_longer_than_the_context_has_an_error_of_its_own(engine: ScriptedEngine) -> None:
    engine.context_tokens = 50
    error = failure(engine, chat())
    assert isinstance(error, PromptTooLong)
    assert len(engine.generations()) == 1


@pytest.mark.parametrize("streams", [False, True])
def test_nothing_secret_or_written_by_users_is_in_a_message(engine: ScriptedEngine, *, streams: bool) -> None:
    async def main(client: EngineClient) -> Observation:
        return await client.complete(chat("my password is tulip", streams=streams))

    for how in (Break.UNAUTHORIZED, Break.BAD_REQUEST, Break.LOGIN, Break.CRASHING, Break.HTML):
        engine.mend()
        engine.break_with(how)
        with pytest.raises(ServiceError) as caught:
            use(engine.url, main, api_key="sk-very-secret", headers={"x-tenant": "tenant-42"}, kind=engine.kind)
        shown = f"{caught.value.message} {caught.value.hint}"
        assert not [secret for secret in ("sk-very-secret", "tenant-42", "tulip", "return=secret") if secret in shown]


def test_a_key_is_sent_and_a_wrong_one_is_refused(engine: ScriptedEngine) -> None:
    engine.api_key = "sk-right"
    assert use(engine.url, identity, api_key="sk-right\n").model == "scripted"
    with pytest.raises(Refused) as caught:
        use(engine.url, identity, api_key="sk-wrong")
    assert caught.value.status == 401
    assert "sk-wrong" not in str(caught.value)
    assert "--api-key-env" in (caught.value.hint or "")


def test_log_probabilities_that_are_none_are_left_out(engine: ScriptedEngine) -> None:
    engine.break_with(Break.NAN)
    for request in (chat(), completion()):
        (found,) = ask(engine.url, request)
        assert found.tokens[0].logprob is None
        assert len(found.tokens[0].top) == 16
        assert found.tokens[1].logprob is not None


def test_a_server_that_cannot_write_its_log_probabilities_still_answers(engine: ScriptedEngine) -> None:
    engine.break_with(Break.INFINITE)
    (found,) = ask(engine.url, chat())
    assert found.tokens == ()
    assert len(found.text.split()) == 3
    assert found.retries == 1


def test_a_budget_spent_on_hidden_reasoning_is_a_generation(engine: ScriptedEngine) -> None:
    engine.break_with(Break.THINKING)
    (found,) = ask(engine.url, chat())
    assert (found.text, found.finish_reason) == ("", "length")


def test_the_declared_content_type_does_not_decide(engine: ScriptedEngine) -> None:
    engine.break_with(Break.WRONG_TYPE)
    (found,) = ask(engine.url, chat())
    assert len(found.tokens) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streams", [False, True])
def test_an_interrupt_closes_the_connection_so_that_the_server_stops(kind: EngineKind, *, streams: bool) -> None:
    models = b'{"data": [{"id": "m"}]}'

    async def main() -> None:
        asked, gone = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
                writer.write(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(models) + models
                )
            else:
                asked.set()
                await reader.read()  # ends when the client has closed
                gone.set()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = await open_engine(f"http://127.0.0.1:{port}", kind=kind, timeout_s=5.0)
            async with aclosing(client):
                task = asyncio.create_task(client.complete(chat(streams=streams, extra={"model": "m"})))
                await asked.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.wait_for(gone.wait(), 5.0)

    asyncio.run(main())


def test_flush_is_not_claimed_where_it_is_not_known(engine: ScriptedEngine) -> None:
    async def main(client: EngineClient) -> bool | None:
        return await client.flush()

    match engine.kind:
        case EngineKind.VLLM | EngineKind.SGLANG:
            assert use(engine.url, main) is True
        case EngineKind.LLAMACPP:
            assert use(engine.url, main) is None
        case _:
            with pytest.raises(UsageError):
                use(engine.url, main)
