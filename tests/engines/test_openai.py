from __future__ import annotations

import json

import httpx
import msgspec
import pytest

from kvrelease.engines.base import EngineClient, EngineIdentity, EngineKind, Observation
from kvrelease.errors import KvreleaseError, PromptTooLong, Refused, UnexpectedReply, UsageError, WrongModel
from tests.engines.clients import chat, use


def models(*names: str) -> httpx.Response:
    return httpx.Response(200, json={"object": "list", "data": [{"id": name, "owned_by": "x"} for name in names]})


def answered(listing: httpx.Response, answer: httpx.Response, *, model: str | None = None) -> Observation:
    def handle(request: httpx.Request) -> httpx.Response:
        return listing if request.url.path == "/v1/models" else answer

    async def main(client: EngineClient) -> Observation:
        return await client.complete(chat("a secret question of users"))

    connector = httpx.MockTransport(handle)
    return use("http://h", main, kind=EngineKind.OPENAI, model=model, connector=connector)


def identified(listing: httpx.Response, *, model: str | None = None) -> EngineIdentity:
    async def main(client: EngineClient) -> EngineIdentity:
        return await client.identify()

    connector = httpx.MockTransport(lambda _: listing)
    return use("http://h", main, kind=EngineKind.OPENAI, model=model, connector=connector)


def test_the_only_model_is_the_model() -> None:
    assert identified(models("only")).model == "only"


def test_of_several_models_one_must_be_named() -> None:
    with pytest.raises(UsageError) as caught:
        identified(models("a", "b"))
    assert caught.value.hint == "served: 'a', 'b'"
    assert identified(models("a", "b"), model="b").model == "b"


def test_a_server_without_a_model_serves_none() -> None:
    with pytest.raises(WrongModel) as caught:
        identified(models())
    assert "is one loaded?" in (caught.value.hint or "")


def test_several_names_of_one_vllm_model_are_one_model_and_adapters_are_not() -> None:
    def listed(*more: dict[str, str]) -> httpx.Response:
        one = {"owned_by": "vllm", "root": "/models/a"}
        return httpx.Response(200, json={"data": [one | {"id": "users"}, one | {"id": "kv1-x"}, *more]})

    assert identified(listed()).model == "users"
    for other in (
        {"id": "lora", "root": "/models/a", "parent": "users"},
        {"id": "b", "root": "/models/b"},
        {"id": "c"},
    ):
        with pytest.raises(UsageError, match="serves 3 models"):
            identified(listed({"owned_by": "vllm"} | other))


def test_a_gateway_that_lists_no_models_takes_the_name_it_is_given() -> None:
    missing = httpx.Response(404, json={"detail": "Not Found"})
    assert identified(missing, model="named").model == "named"
    with pytest.raises(Refused):
        identified(missing)


@pytest.mark.parametrize("payload", [{}, {"data": None}, {"data": {"id": "a"}}, {"models": []}])
def test_json_that_lists_nothing_is_no_server_of_this_protocol(payload: object) -> None:
    with pytest.raises(UnexpectedReply):
        identified(httpx.Response(200, json=payload))


def test_odd_entries_of_the_list_are_passed_over() -> None:
    listing = httpx.Response(200, json={"data": [None, {"id": None}, {"id": ""}, {"id": "a", "max_model_len": "x"}]})
    found = identified(listing)
    assert (found.model, found.context_tokens) == ("a", None)


def error(status: int, message: str, **more: object) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message} | more})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error(404, "The model `x` does not exist."), WrongModel),
        (error(404, "model 'x' not found, try pulling it first"), WrongModel),
        (error(404, "gone", code="model_not_found"), WrongModel),
        (error(404, "no such page"), Refused),
        (error(400, "This model's maximum context length is 100 tokens. However"), PromptTooLong),
        (error(400, "too long", type="exceed_context_size_error"), PromptTooLong),
        (error(400, "too long", code="context_length_exceeded"), Refused),
        (error(400, "Requested tokens exceed context_length_exceeded"), PromptTooLong),
        (error(422, "`inputs` tokens + `max_new_tokens` must be <= 4096"), PromptTooLong),
        (error(400, "temperature must be positive"), Refused),
    ],
)
def test_refusals_are_told_apart(answer: httpx.Response, expected: type[KvreleaseError]) -> None:
    with pytest.raises(expected) as caught:
        answered(models("m"), answer)
    assert type(caught.value) is expected


def test_a_server_that_caps_log_probabilities_is_told_with_the_option_that_raises_it() -> None:
    with pytest.raises(Refused, match="greater than max allowed: 5") as caught:
        answered(models("m"), error(400, "Requested sample logprobs of 20, which is greater than max allowed: 5"))
    assert "--max-logprobs 20" in (caught.value.hint or "")


def test_an_unknown_model_is_reported_with_what_is_served() -> None:
    with pytest.raises(WrongModel) as caught:
        answered(models("a", "b"), error(404, "The model `a` does not exist."), model="a")
    assert caught.value.hint == "served: 'a', 'b'"


def test_a_prompt_that_the_server_quotes_is_not_repeated() -> None:
    quoted = json.dumps([{"type": "bad", "input": {"content": "a secret quest"}}])
    for words in (quoted, "wrong: a secret question of users"):
        with pytest.raises(Refused) as caught:
            answered(models("m"), error(400, words))
        assert "secret" not in str(caught.value)


def test_a_model_that_the_request_itself_names_is_told_as_such() -> None:
    async def main(client: EngineClient) -> Observation:
        return await client.complete(msgspec.structs.replace(chat(), body={**chat().body, "model": "support-v1.2"}))

    connector = httpx.MockTransport(
        lambda one: models("m") if one.method == "GET" else error(404, "gone", code="model_not_found")
    )
    with pytest.raises(WrongModel) as caught:
        use("http://h", main, kind=EngineKind.OPENAI, connector=connector)
    assert "served: 'm'; the request itself names it" in (caught.value.hint or "")


def test_an_error_in_an_answer_of_200_repeats_no_prompt() -> None:
    with pytest.raises(Refused) as caught:
        answered(models("m"), httpx.Response(200, json={"error": {"message": "cannot render: a secret quest"}}))
    assert "cannot render: …" in caught.value.message
    too_long = {"error": {"message": "a secret quest, and the maximum context length is 9"}}
    with pytest.raises(PromptTooLong) as long:
        answered(models("m"), httpx.Response(200, json=too_long))
    assert "secret" not in long.value.message


def test_an_odd_finish_reason_is_not_repeated() -> None:
    choices = [{"index": 0, "message": {"content": ""}, "finish_reason": "a secret question"}]
    with pytest.raises(UnexpectedReply, match="finish reason unknown here"):
        answered(models("m"), httpx.Response(200, json={"choices": choices}))


def test_what_the_protocol_does_not_have_is_not_claimed() -> None:
    async def main(client: EngineClient) -> tuple[object, object, EngineIdentity]:
        return await client.tokenize(chat()), await client.counters(), await client.identify()

    connector = httpx.MockTransport(lambda _: models("m"))
    ids, counters, identity = use("http://192.0.2.1", main, kind=EngineKind.OPENAI, connector=connector)
    assert (ids, counters) == (None, None)
    assert (identity.version, identity.process, identity.runtime) == (None, None, {})
    assert "kv_cache_dtype" in identity.runtime_unread


def test_flushing_is_refused_with_a_next_step() -> None:
    async def main(client: EngineClient) -> bool | None:
        return await client.flush()

    with pytest.raises(UsageError) as caught:
        use("http://h", main, kind=EngineKind.OPENAI)
    assert caught.value.hint


def test_a_body_that_names_its_model_is_sent_to_a_server_of_several() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return models("a", "b")
        sent = json.loads(request.content)
        return httpx.Response(200, json={"choices": [{"message": {"content": sent["model"]}}]})

    async def main(client: EngineClient) -> Observation:
        return await client.complete(chat(extra={"model": "b"}))

    found = use("http://h", main, kind=EngineKind.OPENAI, connector=httpx.MockTransport(handle))
    assert found.text == "b"
