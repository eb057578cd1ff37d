from __future__ import annotations

import asyncio

import httpx
import pytest

from kvrelease.engines.address import parse_address
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.engines.detect import detect_kind, open_engine
from kvrelease.engines.http import Transport
from kvrelease.errors import KvreleaseError, Refused, UnexpectedReply, Unreachable, UsageError
from tests.engines.clients import use
from tests.engines.scripted import Break, ScriptedEngine


def detected(url: str, connector: httpx.AsyncBaseTransport | None = None) -> EngineKind:
    async def main() -> EngineKind:
        async with Transport(parse_address(url), timeout_s=5.0, backoff_s=0.001, connector=connector) as transport:
            return await detect_kind(transport)

    return asyncio.run(main())


async def kind_of(client: EngineClient) -> EngineKind:
    return client.kind


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.LLAMACPP, EngineKind.OPENAI, EngineKind.SGLANG])
@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_server_says_what_it_is(kind: EngineKind, suffix: str) -> None:
    with ScriptedEngine(kind) as engine:
        assert detected(engine.url + suffix) is kind


@pytest.mark.parametrize(
    ("path", "answer", "kind"),
    [
        ("/props", httpx.Response(200, json={"build_info": "b1"}), EngineKind.LLAMACPP),
        ("/model_info", httpx.Response(200, json={"model_path": "/m"}), EngineKind.SGLANG),
        ("/get_model_info", httpx.Response(200, json={"model_path": "/m"}), EngineKind.SGLANG),
        ("/metrics", httpx.Response(200, text="# TYPE x gauge\nvllm:num_requests_running 0\n"), EngineKind.VLLM),
        ("/metrics", httpx.Response(200, text="<html>\nvllm:</html>"), EngineKind.OPENAI),
        ("/version", httpx.Response(200, json={"version": "1.0"}), EngineKind.OPENAI),
    ],
)
def test_where_a_gateway_hides_the_owner_routes_decide(path: str, answer: httpx.Response, kind: EngineKind) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": "organization"}]})
        return answer if request.url.path == path else httpx.Response(502)

    assert detected("http://h", httpx.MockTransport(handle)) is kind


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.LLAMACPP, EngineKind.OPENAI, EngineKind.SGLANG])
def test_the_adapter_is_the_servers_or_the_one_that_is_named(kind: EngineKind) -> None:
    with ScriptedEngine(kind) as engine:
        assert use(engine.url, kind_of) is kind
        assert use(engine.url, kind_of, kind=EngineKind.OPENAI) is EngineKind.OPENAI


KINDS = (EngineKind.VLLM, EngineKind.LLAMACPP, EngineKind.SGLANG)


def checked(
    url: str, kind: EngineKind, *, model: str | None = None, connector: httpx.AsyncBaseTransport | None = None
) -> EngineKind:
    """The kind of a client that is opened by name, and checked."""

    async def main() -> EngineKind:
        client = await open_engine(
            url, kind=kind, model=model, timeout_s=5.0, backoff_s=0.001, connector=connector, checks_kind=True
        )
        await client.aclose()
        return client.kind

    return asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_kind_that_the_server_says_it_is_not_is_refused(kind: EngineKind) -> None:
    with ScriptedEngine(kind) as engine:
        assert checked(engine.url, kind) is kind
        for other in KINDS:
            if other is not kind:
                with pytest.raises(UsageError, match=f"as those of {kind}, and --engine names {other}") as caught:
                    checked(engine.url, other)
                assert caught.value.hint == f"leave --engine out, or name {kind}"
        asked = len(engine.requests)
        assert checked(engine.url, EngineKind.OPENAI) is EngineKind.OPENAI
        assert len(engine.requests) == asked, "any of them speaks that protocol"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json={"data": [{"id": "m", "owned_by": "openai"}, {"id": "n", "owned_by": None}, 7]}),
        httpx.Response(200, json={"data": [{"id": "m", "owned_by": "llama-swap"}]}),
        httpx.Response(200, json={"data": []}),
        httpx.Response(200, json={"data": {"id": "m"}}),
        httpx.Response(200, text="<html>welcome</html>"),
        httpx.Response(200, text="{"),
        httpx.Response(401),
        httpx.Response(404),
    ],
)
def test_where_nothing_tells_the_kind_the_user_is_believed(answer: httpx.Response) -> None:
    connector = httpx.MockTransport(lambda _: answer)
    assert checked("http://h", EngineKind.SGLANG, connector=connector) is EngineKind.SGLANG


def listing(*owners: str, routes: dict[str, httpx.Response] | None = None) -> httpx.MockTransport:
    """A server that lists a model for each owner, called a, b, …, and has these routes besides."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            models = [{"id": name, "owned_by": owner} for name, owner in zip("abc", owners, strict=False)]
            return httpx.Response(200, json={"data": models})
        return (routes or {}).get(request.url.path, httpx.Response(404))

    return httpx.MockTransport(handle)


def test_a_router_that_lists_all_models_as_those_of_one_engine_is_no_proof_against_the_engines_own_route() -> None:
    own = {"/model_info": httpx.Response(200, json={"model_path": "/m"})}
    assert checked("http://h", EngineKind.SGLANG, connector=listing("vllm", routes=own)) is EngineKind.SGLANG
    with pytest.raises(UsageError):
        checked("http://h", EngineKind.LLAMACPP, connector=listing("vllm", routes=own))


def test_of_several_models_the_one_that_is_asked_for_tells_the_kind() -> None:
    both = listing("vllm", "sglang")
    assert checked("http://h", EngineKind.SGLANG, connector=both) is EngineKind.SGLANG
    assert checked("http://h", EngineKind.SGLANG, model="b", connector=both) is EngineKind.SGLANG
    with pytest.raises(UsageError, match="as those of vllm"):
        checked("http://h", EngineKind.SGLANG, model="a", connector=both)


def test_the_engine_in_process_has_no_url() -> None:
    with pytest.raises(UsageError):
        use("http://127.0.0.1:1", kind_of, kind=EngineKind.LOCAL)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Break.HTML, UnexpectedReply),
        (Break.LOGIN, UnexpectedReply),
        (Break.UNAUTHORIZED, Refused),
        (Break.NO_ROUTE, Refused),
        (Break.NOT_JSON, UnexpectedReply),
        (Break.NO_CHOICES, UnexpectedReply),
        (Break.DROP, Unreachable),
        (Break.CRASHING, Refused),
    ],
)
def test_what_is_no_engine_is_a_clear_error(how: Break, expected: type[KvreleaseError]) -> None:
    with ScriptedEngine() as engine:
        engine.break_with(how, path="/v1/models")
        with pytest.raises(expected) as caught:
            detected(engine.url)
        assert engine.url in caught.value.message
        assert caught.value.hint or how is Break.CRASHING


def test_nobody_at_the_url_is_unreachable() -> None:
    with ScriptedEngine() as engine:
        url = engine.url
    with pytest.raises(Unreachable):
        use(url, kind_of)


def test_a_named_kind_sends_nothing_before_the_first_call() -> None:
    async def main() -> EngineKind:
        client = await open_engine("http://127.0.0.1:1", kind=EngineKind.VLLM)
        await client.aclose()
        return client.kind

    assert asyncio.run(main()) is EngineKind.VLLM
