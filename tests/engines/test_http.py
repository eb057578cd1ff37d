from __future__ import annotations

import asyncio
import datetime
import email.utils
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

import httpx
import pytest

from kvrelease.engines import http
from kvrelease.engines.address import parse_address
from kvrelease.engines.base import EngineKind
from kvrelease.engines.http import Transport
from kvrelease.engines.replies import Reply
from kvrelease.errors import InputError, Refused, ServiceTimeout, UnexpectedReply, Unreachable, UsageError
from tests.engines.scripted import Break, ScriptedEngine

T = TypeVar("T")
Answer = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]


def over(answer: Answer, do: Callable[[Transport], Awaitable[T]], *, timeout_s: float = 5.0, max_retries: int = 4) -> T:
    """What `do` gives over a transport whose network is a function."""

    async def main() -> T:
        connector = httpx.MockTransport(answer)
        address = parse_address("http://engine.example:8000/v1")
        async with Transport(
            address, timeout_s=timeout_s, max_retries=max_retries, backoff_s=0.001, connector=connector
        ) as transport:
            return await do(transport)

    return asyncio.run(main())


def over_wire(url: str, do: Callable[[Transport], Awaitable[T]], *, max_reply_bytes: int = 10_000_000) -> T:
    async def main() -> T:
        async with Transport(
            parse_address(url), timeout_s=5.0, backoff_s=0.001, max_reply_bytes=max_reply_bytes
        ) as transport:
            return await do(transport)

    return asyncio.run(main())


async def get(transport: Transport) -> Reply:
    return await transport.get("/x")


async def stream(transport: Transport) -> Reply:
    return await transport.stream("/x", {})


class Answers:
    """Gives each answer once, then repeats the last; counts the questions."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.count = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_passing_status_is_asked_again(status: int) -> None:
    answers = Answers(httpx.Response(status), httpx.Response(status), httpx.Response(200, json={}))
    found = over(answers, get)
    assert (found.status, found.retries, answers.count) == (200, 2, 3)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 409, 413, 422, 501, 505])
def test_any_other_status_is_final(status: int) -> None:
    answers = Answers(httpx.Response(status))
    assert over(answers, get).status == status
    assert answers.count == 1


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("[Errno 111] Connection refused"),
        httpx.ReadError(""),
        httpx.WriteError(""),
        httpx.RemoteProtocolError("Server disconnected"),
        httpx.ProxyError("503"),
    ],
)
def test_a_connection_that_fails_is_tried_again_and_then_unreachable(error: Exception) -> None:
    answers = Answers(error, httpx.Response(200, json={}))
    assert over(answers, get).retries == 1
    answers = Answers(error)
    with pytest.raises(Unreachable) as caught:
        over(answers, get, max_retries=2)
    assert answers.count == 3
    assert "http://engine.example:8000/x" in caught.value.message
    assert "2 retries" in caught.value.message


def test_an_address_where_nobody_ever_answered_costs_one_connect_time_out() -> None:
    answers = Answers(httpx.ConnectTimeout(""))
    with pytest.raises(Unreachable) as caught:
        over(answers, get)
    assert answers.count == 1
    assert "no connection within 10 s" in caught.value.message


def test_an_address_that_answered_before_is_tried_again_after_a_connect_time_out() -> None:
    async def twice(transport: Transport) -> Reply:
        await get(transport)
        return await get(transport)

    assert (
        over(
            Answers(httpx.Response(200, json={}), httpx.ConnectTimeout(""), httpx.Response(200, json={})), twice
        ).retries
        == 1
    )


def test_an_address_of_a_name_is_asked_for_the_name() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json={})

    async def main(text: str) -> None:
        address = parse_address(text).at("10.0.0.3")
        async with Transport(address, connector=httpx.MockTransport(answer)) as transport:
            await get(transport)

    asyncio.run(main("https://Pods.example:8443/llm"))
    asyncio.run(main("http://pods.example"))
    assert [str(request.url) for request in asked] == ["https://10.0.0.3:8443/llm/x", "http://10.0.0.3/x"]
    assert [request.headers["host"] for request in asked] == ["pods.example:8443", "pods.example"]
    assert [request.extensions["sni_hostname"] for request in asked] == ["pods.example", "pods.example"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), Unreachable),
        (httpx.DecodingError("bad gzip"), UnexpectedReply),
        (httpx.ReadTimeout(""), ServiceTimeout),
        (httpx.UnsupportedProtocol("x"), UnexpectedReply),
    ],
)
def test_what_will_not_change_is_not_tried_again(error: Exception, expected: type[Exception]) -> None:
    answers = Answers(error)
    with pytest.raises(expected):
        over(answers, get)
    assert answers.count == 1


def test_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    answers = Answers(httpx.Response(429, headers={"retry-after": "60"}))
    assert over(answers, get, timeout_s=1.0).status == 429
    assert answers.count == 1


@pytest.mark.parametrize("text", ["0", "0.001", "-5", "soon", "", "nan"])
def test_retry_after_in_any_spelling_is_survived(text: str) -> None:
    answers = Answers(httpx.Response(503, headers={"retry-after": text}), httpx.Response(200, json={}))
    assert over(answers, get).retries == 1


def test_retry_after_as_a_date_is_understood() -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    answers = Answers(httpx.Response(503, headers={"retry-after": email.utils.format_datetime(later)}))
    assert over(answers, get).status == 503
    assert answers.count == 1


def test_what_changes_the_server_is_sent_once() -> None:
    async def change(transport: Transport) -> Reply:
        return await transport.post("/x", {}, is_repeatable=False)

    answers = Answers(httpx.Response(503))
    assert over(answers, change).status == 503
    answers = Answers(httpx.ReadError(""))
    with pytest.raises(Unreachable):
        over(answers, change)
    assert answers.count == 1


def test_a_route_that_need_not_exist_is_asked_once_and_missing_is_none() -> None:
    async def find(transport: Transport) -> object:
        return await transport.find_object("/x")

    for answer in (httpx.Response(503), httpx.Response(404), httpx.Response(200, text="<html>"), httpx.Response(401)):
        answers = Answers(answer)
        assert over(answers, find) is None
        assert answers.count == 1
    assert over(Answers(httpx.Response(200, json={"a": 1})), find) == {"a": 1}


class Hang:
    """Never answers; counts the questions."""

    count = 0

    async def __call__(self, _request: httpx.Request) -> httpx.Response:
        self.count += 1
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")


def test_a_route_that_need_not_exist_and_hangs_is_missing_after_a_short_time_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "OPTIONAL_S", 0.02)

    async def find(transport: Transport) -> list[object]:
        page = await transport.get("/x", is_optional=True)
        return [page.is_ok, await transport.find_object("/x"), await transport.find_object("/y")]

    hang = Hang()
    started = time.monotonic()
    assert over(hang, find, timeout_s=60.0) == [False, None, None]
    assert time.monotonic() - started < 30.0
    assert hang.count == 2


@pytest.mark.parametrize("within_s", [None, 60.0])
def test_a_route_that_need_not_exist_has_no_longer_than_the_users_time(within_s: float | None) -> None:
    async def find(transport: Transport) -> object:
        return await transport.find_object("/x", within_s=within_s)

    started = time.monotonic()
    assert over(Hang(), find, timeout_s=0.02) is None
    assert time.monotonic() - started < http.OPTIONAL_S


def test_a_route_that_hangs_is_told_of_once_and_an_error_where_it_is_needed(caplog: pytest.LogCaptureFixture) -> None:
    async def find(transport: Transport) -> Reply:
        for _ in range(2):
            await transport.find_object("/x?token=t0ken")
        return await transport.get("/x?token=t0ken")

    with pytest.raises(ServiceTimeout):
        over(Hang(), find, timeout_s=0.02)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "GET http://engine.example:8000/x: no answer within 0.02 s; what it would tell is not known, and it is not "
        "asked again"
    )


def test_the_deadline_covers_retries_and_waits() -> None:
    answers = Answers(httpx.ReadError(""))
    with pytest.raises((Unreachable, ServiceTimeout)):
        over(answers, get, timeout_s=0.02, max_retries=1_000_000)


def test_nobody_at_the_port_is_unreachable() -> None:
    with ScriptedEngine() as engine:
        url = engine.url
    with pytest.raises(Unreachable) as caught:
        over_wire(url, get)
    assert "is the server running" in (caught.value.hint or "")


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def models(transport: Transport) -> Reply:
        return await transport.get("/v1/models")

    with ScriptedEngine() as engine:
        assert over_wire(engine.url, models).is_ok


def test_an_answer_larger_than_the_limit_is_given_up() -> None:
    async def post(transport: Transport) -> Reply:
        return await transport.post("/v1/completions", {"prompt": "x"})

    with ScriptedEngine(EngineKind.OPENAI) as engine:
        engine.break_with(Break.HUGE)
        with pytest.raises(UnexpectedReply) as caught:
            over_wire(engine.url, post, max_reply_bytes=100_000)
        assert "larger than 100000 bytes" in caught.value.message


def sse(*lines: str) -> httpx.Response:
    """A stream of these lines; a last one that ends in a comma is cut off there."""
    text = "".join(f"{line}\n\n" for line in lines).removesuffix(",\n\n")
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text)


def test_a_stream_is_read_to_its_end() -> None:
    last = 'data: {"choices": [], "usage": {"prompt_tokens": 3}}'
    found = over(Answers(sse('data: {"choices": [{"finish_reason": "stop"}]}', last, "data: [DONE]")), stream)
    assert [event.payload for event in found.events][-1] == {"choices": [], "usage": {"prompt_tokens": 3}}


@pytest.mark.parametrize(
    "lines", [('data: {"choices": [{"finish_reason": null}]}',), ('data: {"choices": []}', 'data: {"cho,')]
)
def test_a_stream_that_stops_before_its_end_is_tried_again(lines: tuple[str, ...]) -> None:
    whole = sse('data: {"choices": [{"finish_reason": "stop"}]}', "data: [DONE]")
    assert over(Answers(sse(*lines), whole), stream).retries == 1
    with pytest.raises(Unreachable):
        over(Answers(sse(*lines)), stream)


def test_a_stream_whose_end_is_a_finish_reason_is_whole() -> None:
    assert len(over(Answers(sse('data: {"choices": [{"finish_reason": "stop"}]}')), stream).events) == 1


def test_one_json_answer_to_a_streamed_request_is_kept_as_such() -> None:
    found = over(Answers(httpx.Response(200, json={"choices": []})), stream)
    assert (found.events, found.data) == ((), b'{"choices":[]}')


@pytest.mark.parametrize("lines", [("data: [DONE]",), ("data: <html>", 'data: {"choices": []}')])
def test_a_stream_of_something_else_is_an_error(lines: tuple[str, ...]) -> None:
    with pytest.raises(UnexpectedReply):
        over(Answers(sse(*lines)), stream)


def test_redirects_are_not_followed() -> None:
    answers = Answers(httpx.Response(307, headers={"location": "http://elsewhere.example/x"}))

    async def must(transport: Transport) -> object:
        return await transport.get_object("/x")

    with pytest.raises(UnexpectedReply) as caught:
        over(answers, must)
    assert answers.count == 1
    assert "elsewhere.example" in caught.value.message


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_number(timeout_s: float) -> None:
    with pytest.raises(UsageError):
        Transport(parse_address("http://h"), timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"bad name": "x"}, None),
        ({"x": "hunter2\r\nevil: 1"}, None),
        ({"x": "hunter2é"}, None),
        ({}, "hunter2 \n x"),
        ({"Authorization": "hunter2"}, "hunter2"),
    ],
)
def test_what_a_header_cannot_carry_is_refused_and_not_repeated(headers: dict[str, str], key: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        Transport(parse_address("http://h"), headers=headers, api_key=key)
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


def test_a_body_that_is_no_unicode_is_an_input_error() -> None:
    async def post(transport: Transport) -> Reply:
        return await transport.post("/x", {"prompt": "\ud800"})

    with pytest.raises(InputError):
        over(Answers(httpx.Response(200)), post)


@pytest.mark.parametrize("status", [200, 400])
def test_the_title_of_a_page_is_told_without_keys_and_prompts(status: int) -> None:
    title = "Gateway: bad token sk-very-secret for near the vault opens on tul"
    page = f"<!DOCTYPE html><html><head><title>\n {title} </title></head></html>"

    async def main() -> str:
        connector = httpx.MockTransport(Answers(httpx.Response(status, html=page)))
        async with Transport(parse_address("http://h"), api_key="sk-very-secret", connector=connector) as transport:
            with pytest.raises((UnexpectedReply, Refused)) as caught:
                await transport.post_object("/x", {"prompt": "Hush: the vault opens on tulips"})
            return caught.value.message

    message = asyncio.run(main())
    assert "an HTML page ('Gateway: bad token …" in message
    assert not [piece for piece in ("sk-very", "vault", "tul") if piece in message]


def test_a_content_type_that_nobody_knows_is_not_repeated() -> None:
    answers = Answers(httpx.Response(200, text="oops", headers={"content-type": "x/sk-very-secret"}))
    with pytest.raises(UnexpectedReply) as caught:
        over(answers, lambda transport: transport.get_object("/x"))
    assert "another content type" in caught.value.message
    assert "sk-very-secret" not in caught.value.message


def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="kvrelease")

    async def main() -> None:
        connector = httpx.MockTransport(Answers(httpx.Response(500, json={"error": "sk-secret tulips"})))
        async with Transport(
            parse_address("http://h"), api_key="sk-secret", max_retries=1, backoff_s=0.001, connector=connector
        ) as transport:
            await transport.post_object("/x?token=t0ken", {"prompt": "tulips in spring"})

    with pytest.raises(Refused) as caught:
        asyncio.run(main())
    ours = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("kvrelease"))
    assert "retry 1" in ours
    for shown in (ours, str(caught.value)):
        assert not [secret for secret in ("sk-secret", "tulips in", "t0ken") if secret in shown]
