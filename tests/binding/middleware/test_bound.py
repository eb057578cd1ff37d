"""What reaches an engine behind the middleware, over real sockets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvrelease.binding.middleware import Bound
from kvrelease.binding.middleware.routes import SALTED
from kvrelease.binding.tenant_salt import bound_salt
from tests.binding.middleware.serving import ADAPTER, NAMESPACE, NEXT, Echo, Served, served

CHAT = {"model": "m", "messages": [{"role": "user", "content": 'say "cache_salt": "x" — é 😀'}], "n": 1e400}


@pytest.fixture(scope="module")
def plain() -> Iterator[Served]:
    with served() as server:
        yield server


def salt_of(body: bytes) -> Any:
    return json.loads(body)["cache_salt"]


@pytest.mark.parametrize("route", sorted(SALTED))
def test_every_request_of_a_route_with_a_salt_carries_the_namespace(plain: Served, route: str) -> None:
    answer = plain.send(CHAT, route=route)
    assert json.loads(answer.content) == {**CHAT, "cache_salt": NAMESPACE}
    assert answer.headers["kvrelease-namespace"] == NAMESPACE


def test_the_length_that_the_engine_is_told_is_that_of_the_body_it_gets(plain: Served) -> None:
    answer = plain.send(CHAT)
    assert int(answer.headers["x-received-content-length"]) == len(answer.content)


def test_a_body_in_chunks_is_bound(plain: Served) -> None:
    data = json.dumps(CHAT).encode()
    answer = plain.client.post("/v1/completions", content=iter([data[:10], b"", data[10:40], data[40:]]))
    assert answer.headers["x-received-transfer-encoding"] == "chunked"
    assert json.loads(answer.content) == {**CHAT, "cache_salt": NAMESPACE}


def test_a_body_of_megabytes_is_bound(plain: Served) -> None:
    document = {"prompt": list(range(500_000)), "text": 'word \\ " ' * 100_000}
    assert json.loads(plain.send(document).content) == {**document, "cache_salt": NAMESPACE}


@pytest.mark.parametrize("own", [None, ""])
def test_a_salt_that_is_none_is_the_namespace(plain: Served, own: str | None) -> None:
    assert salt_of(plain.send({**CHAT, "cache_salt": own}).content) == NAMESPACE


def test_tenants_are_kept_apart_and_in_the_namespace(plain: Served) -> None:
    salts = [salt_of(plain.send({"cache_salt": own, **CHAT}).content) for own in ("one", "two", "@/\\\0", "\ud800")]
    assert salts == [bound_salt(NAMESPACE, own) for own in ("one", "two", "@/\\\0", "\ud800")]
    assert len(set(salts)) == 4


@pytest.mark.parametrize("own", [NAMESPACE, bound_salt(NAMESPACE, "tenant")])
def test_a_body_that_is_bound_already_is_left_alone(plain: Served, own: str) -> None:
    body = json.dumps({"cache_salt": own, **CHAT}, indent=3).encode("utf-16")
    assert plain.send(body).content == body


def test_another_releases_namespace_is_a_tenant_of_this_one(plain: Served) -> None:
    """What a client salted by itself before an upgrade never meets anybody else's entries after it."""
    assert salt_of(plain.send({**CHAT, "cache_salt": NEXT}).content) == bound_salt(NAMESPACE, NEXT)


def test_of_two_salts_the_one_that_the_engine_would_take_counts(plain: Served) -> None:
    body = b'{"cache_salt":"first","a":1,"cache_salt":"second"}'
    assert salt_of(plain.send(body).content) == bound_salt(NAMESPACE, "second")
    assert salt_of(plain.send(b'{"cache_salt":"first","cache_salt":null}').content) == NAMESPACE


def test_a_body_that_is_no_json_reaches_the_engines_parser_and_fails_there(plain: Served) -> None:
    answer = plain.send(b'{"model": "m",}')
    with pytest.raises(ValueError, match="double quotes"):
        json.loads(answer.content)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"[]", {}, 400),
        (b"", {}, 400),
        (b'{"cache_salt": 5}', {}, 400),
        (gzip.compress(b'{"a": 1}', mtime=0), {"content-encoding": "gzip"}, 415),
        (gzip.compress(b'{"a": 1}', mtime=0), {}, 400),
        (b"--x\r\n", {"content-type": "multipart/form-data; boundary=x"}, 400),
    ],
)
def test_what_cannot_be_bound_is_refused_and_never_reaches_the_engine(
    plain: Served, body: bytes, headers: dict[str, str], status: int
) -> None:
    before = len(plain.app.seen)
    answer = plain.send(body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert len(plain.app.seen) == before


@pytest.mark.parametrize(
    "route", ["/v1/audio/transcriptions", "/v2/embed", "/cohere/v2/chat", "/v1/something/new", "/generate", "/"]
)
def test_a_route_that_takes_no_salt_or_is_unknown_is_refused(plain: Served, route: str) -> None:
    before = len(plain.app.seen)
    answer = plain.send(CHAT, route=route)
    assert answer.status_code == 501
    assert "KVRELEASE_UNSALTED_ROUTES" in answer.json()["error"]["message"]
    assert len(plain.app.seen) == before


@pytest.mark.parametrize(
    "route", ["/tokenize", "/v1/load_lora_adapter", "/v1/responses/resp_1/cancel", "/collective_rpc"]
)
def test_a_route_that_computes_nothing_is_untouched(plain: Served, route: str) -> None:
    body = b' {"model": "m"}\n'
    answer = plain.send(body, route=route)
    assert answer.content == body
    assert "kvrelease-namespace" not in answer.headers


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_is_untouched(plain: Served, method: str) -> None:
    answer = plain.client.request(method, "/v1/chat/completions")
    assert answer.status_code == 200
    assert plain.app.seen[-1] == (method, "/v1/chat/completions", b"")


def test_two_requests_in_one_segment_are_each_bound(plain: Served) -> None:
    with socket.create_connection(("127.0.0.1", plain.port), timeout=10) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s"
        one, two = b'{"a":1}', b'{"a":2}'
        connection.sendall(head % (7, b"", one) + head % (7, b"Connection: close\r\n", two))
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.count(f'"cache_salt":"{NAMESPACE}"'.encode()) == 2


def test_a_response_streams_as_it_is_made() -> None:
    with served() as server, server.client.stream("POST", "/v1/completions", content=b'{"wait": true}') as answer:
        parts = answer.iter_raw()
        assert answer.headers["kvrelease-namespace"] == NAMESPACE
        assert next(parts) == b"first "
        server.go()
        assert salt_of(b"".join(parts)) == NAMESPACE


def test_a_client_that_leaves_is_seen_by_the_engine() -> None:
    with served() as server:
        with server.client.stream("POST", "/v1/completions", content=b'{"wait": true}') as answer:
            next(answer.iter_raw())
        server.until(in_flight=0)
        assert server.app.left == 1


def test_an_adapter_has_its_own_namespace_and_an_unknown_name_the_default() -> None:
    with served(environment={"KVRELEASE_NAMESPACES": json.dumps({"adapter": ADAPTER})}) as server:
        for model, namespace in (("adapter", ADAPTER), ("m", NAMESPACE), ("nobody", NAMESPACE), (None, NAMESPACE)):
            answer = server.send({**CHAT, "model": model, "cache_salt": "own"})
            assert salt_of(answer.content) == bound_salt(namespace, "own")
            assert answer.headers["kvrelease-namespace"] == namespace
        header = {"X-Amzn-SageMaker-Adapter-Identifier": "adapter"}
        assert salt_of(server.send(CHAT, route="/invocations", headers=header).content) == ADAPTER
        assert salt_of(server.send(CHAT, headers=header).content) == NAMESPACE


def test_a_route_is_let_through_unsalted_only_where_it_takes_no_salt() -> None:
    listed = {"KVRELEASE_UNSALTED_ROUTES": "/v1/audio/transcriptions, /v1/completions/"}
    with served(environment=listed) as server:
        answer = server.send(b"RIFF", route="/v1/audio/transcriptions")
        assert answer.content == b"RIFF"
        assert answer.headers["kvrelease-namespace"] == "none"
        assert salt_of(server.send(CHAT, route="/v1/completions").content) == NAMESPACE


def test_a_body_above_the_limit_is_refused_whether_or_not_its_length_is_told() -> None:
    with served(environment={"KVRELEASE_BODY_BYTES": "100"}) as server:
        assert server.send({"a": "b" * 100}).status_code == 413
        assert server.send({"a": "b" * 80}).status_code == 200
        chunks = iter([b'{"a":"', b"b" * 60, b"b" * 60, b'"}'])
        assert server.client.post("/v1/completions", content=chunks).status_code == 413
        assert len(server.app.seen) == 1


def test_bodies_that_wait_take_no_more_than_the_buffers() -> None:
    with (
        served(environment={"KVRELEASE_BUFFER_BYTES": "250"}) as server,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        hold = server.control("hold").json()["hold"]
        first = pool.submit(server.send, {"a": "b" * 150})
        server.until(waiting=1)
        assert server.send({"a": "b" * 150}).status_code == 503
        server.control("resume", hold=hold, namespace=NAMESPACE).raise_for_status()
        assert first.result().status_code == 200
        assert server.send({"a": "b" * 150}).status_code == 200


@pytest.mark.parametrize("environment", [{"KVRELEASE_NAMESPACE": ""}, {"KVRELEASE_NAMESPACES": "{"}])
def test_a_server_without_a_namespace_does_not_start(environment: dict[str, str]) -> None:
    with served(environment=environment) as server:
        assert server.exit_code not in (None, 0)
        assert not server.app.started


def test_a_server_that_knows_no_lifespan_refuses_everything_without_a_namespace() -> None:
    transport = httpx.ASGITransport(app=Bound(Echo(), {}))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.get("/health")

    answer = asyncio.run(ask())
    assert answer.status_code == 503
    assert "KVRELEASE_NAMESPACE" in answer.json()["error"]["message"]
