"""The protocol of a reload: hold, drain, resume elsewhere, or stay closed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from kvrelease.binding.middleware.bound import HOLD_HEADER
from kvrelease.engines import gate
from tests.binding.middleware.serving import ADAPTER, NAMESPACE, NEXT, Echo, Served, served

BODY = {"model": "m", "prompt": "p"}
WAITS = {**BODY, "wait": True}


@pytest.fixture
def server() -> Iterator[Served]:
    with served() as found:
        yield found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=16) as found:
        yield found


def salt(answer: httpx.Response) -> object:
    return json.loads(answer.content.removeprefix(b"first "))["cache_salt"]


def test_what_arrives_while_new_weights_are_loaded_runs_in_their_namespace(
    server: Served, pool: ThreadPoolExecutor
) -> None:
    before = pool.submit(server.send, WAITS)
    server.app.arrived.acquire()
    hold = server.control("hold").json()
    assert (hold["state"], hold["in_flight"]) == ("held", 1)
    meanwhile = [pool.submit(server.send, BODY) for _ in range(3)]
    server.until(waiting=3)
    server.go()
    assert salt(before.result()) == NAMESPACE
    assert server.until(in_flight=0)["waiting"] == 3
    assert len(server.app.seen) == 1
    resumed = server.control("resume", hold=hold["hold"], namespace=NEXT).json()
    assert (resumed["state"], resumed["namespace"]) == ("open", NEXT)
    assert [salt(answer.result()) for answer in meanwhile] == [NEXT] * 3
    assert meanwhile[0].result().headers["kvrelease-namespace"] == NEXT


def test_a_response_that_streams_is_in_flight_to_its_end(server: Served) -> None:
    with server.client.stream("POST", "/v1/completions", content=json.dumps(WAITS)) as answer:
        parts = answer.iter_raw()
        next(parts)
        assert server.state()["in_flight"] == 1
        server.go()
        b"".join(parts)
    server.until(in_flight=0)


def test_another_namespace_is_not_taken_before_the_last_request_is_over(
    server: Served, pool: ThreadPoolExecutor
) -> None:
    running = pool.submit(server.send, WAITS)
    server.app.arrived.acquire()
    hold = server.control("hold").json()["hold"]
    refused = server.control("resume", hold=hold, namespace=NEXT)
    assert refused.status_code == 409
    assert "1 requests" in refused.json()["error"]["message"]
    assert server.state()["state"] == "held"
    # Going back to what was served needs no drain.
    assert server.control("resume", hold=hold, namespace=NAMESPACE).json()["state"] == "open"
    server.go()
    assert salt(running.result()) == NAMESPACE


def test_a_closed_gate_turns_away_who_waits_and_who_comes(server: Served, pool: ThreadPoolExecutor) -> None:
    hold = server.control("hold").json()["hold"]
    waiting = pool.submit(server.send, BODY)
    server.until(waiting=1)
    closed = server.control("close", hold=hold, reason="the weights are neither").json()
    assert closed["state"] == "closed"
    for answer in (waiting.result(), server.send(BODY)):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "the weights are neither" in answer.json()["error"]["message"]
    assert server.app.seen == []
    assert server.control("resume", hold=hold, namespace=NEXT).json()["state"] == "open"
    assert salt(server.send(BODY)) == NEXT


def test_a_hold_that_runs_out_leaves_the_gate_closed_and_never_open(pool: ThreadPoolExecutor) -> None:
    with served(environment={"KVRELEASE_HOLD_SECONDS": "0.2"}) as server:
        hold = server.control("hold").json()["hold"]
        assert pool.submit(server.send, BODY).result().status_code == 503
        assert server.state()["state"] == "closed"
        assert server.send(BODY).status_code == 503
        assert server.app.seen == []
        # Who held may still come back and say what the engine has now.
        assert server.control("resume", hold=hold, namespace=NEXT).json()["state"] == "open"
        # A hold that was ended in time closes nothing later.
        again = server.control("hold").json()["hold"]
        server.control("resume", hold=again, namespace=NEXT)
        last = server.control("hold").json()["hold"]
        server.until(state="closed")
        assert server.control("resume", hold=last, namespace=NEXT).status_code == 200


def test_only_one_holds_and_who_was_given_up_cannot_undo_it(server: Served) -> None:
    first = server.control("hold").json()["hold"]
    assert server.control("hold").status_code == 409
    server.control("close", hold=first, reason="given up").raise_for_status()
    second = server.control("hold").json()["hold"]
    for act in (
        server.control("resume", hold=first, namespace=NEXT),
        server.control("close", hold=first, reason="late"),
    ):
        assert act.status_code == 409
    assert server.state()["state"] == "held"
    assert server.control("resume", hold=second, namespace=NEXT).status_code == 200
    assert server.control("resume", hold=second, namespace=NAMESPACE).status_code == 409


def test_a_client_that_leaves_while_it_waits_never_reaches_the_engine(server: Served) -> None:
    hold = server.control("hold").json()["hold"]
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n" + b'{"a":1}')
        server.until(waiting=1)
    server.until(waiting=0)
    server.control("resume", hold=hold, namespace=NEXT).raise_for_status()
    assert salt(server.send(BODY)) == NEXT
    assert len(server.app.seen) == 1


def test_a_second_hold_that_follows_at_once_lets_nobody_slip_through(server: Served, pool: ThreadPoolExecutor) -> None:
    hold = server.control("hold").json()["hold"]
    waiting = [pool.submit(server.send, BODY) for _ in range(8)]
    server.until(waiting=8)
    server.control("resume", hold=hold, namespace=NEXT)
    hold = server.control("hold").json()["hold"]
    server.until(in_flight=0)
    server.control("resume", hold=hold, namespace=NAMESPACE).raise_for_status()
    salts = [salt(answer.result()) for answer in waiting]
    assert set(salts) <= {NEXT, NAMESPACE}
    seen = [json.loads(body)["cache_salt"] for _, _, body in server.app.seen]
    assert seen == sorted(seen, key=[NEXT, NAMESPACE].index)


def test_what_computes_nothing_is_answered_while_others_wait(server: Served) -> None:
    hold = server.control("hold").json()["hold"]
    assert server.client.get("/health").status_code == 200
    assert server.send({"method": "reload_weights"}, route="/collective_rpc").status_code == 200
    server.control("resume", hold=hold, namespace=NEXT)


def test_a_route_without_a_salt_waits_as_well(pool: ThreadPoolExecutor) -> None:
    with served(environment={"KVRELEASE_UNSALTED_ROUTES": "/v2/embed"}) as server:
        hold = server.control("hold").json()["hold"]
        waiting = pool.submit(server.send, BODY, route="/v2/embed")
        server.until(waiting=1)
        server.control("resume", hold=hold, namespace=NEXT)
        assert waiting.result().status_code == 200
        hold = server.control("hold").json()["hold"]
        server.control("close", hold=hold, reason="over")
        assert server.send(BODY, route="/v2/embed").status_code == 503


def test_adapters_move_with_the_model(server: Served) -> None:
    hold = server.control("hold").json()["hold"]
    moved = server.control("resume", hold=hold, namespace=NEXT, namespaces={"adapter": ADAPTER}).json()
    assert moved["namespaces"] == {"adapter": ADAPTER}
    assert salt(server.send({**BODY, "model": "adapter"})) == ADAPTER


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"namespace": NEXT},
        {"hold": "", "namespace": NEXT},
        {"hold": 5, "namespace": NEXT},
        {"hold": "x", "namespace": "none"},
        {"hold": "x", "namespace": None},
        {"hold": "x", "namespace": NEXT, "namespaces": []},
        {"hold": "x", "namespace": NEXT, "namespaces": {"adapter": ""}},
    ],
)
def test_a_resume_that_says_too_little_changes_nothing(server: Served, fields: dict[str, object]) -> None:
    server.control("hold")
    assert server.control("resume", **fields).status_code == 400
    assert server.state()["state"] == "held"


@pytest.mark.parametrize("token", [None, "Bearer", "Bearer another token of tests", "Basic x", "Bearer \xff"])
def test_nobody_controls_without_the_token(server: Served, token: str | None) -> None:
    headers = {} if token is None else {b"authorization": token.encode("latin-1")}
    for method, name in (("GET", "state"), ("POST", "hold"), ("POST", "nothing")):
        answer = server.client.request(method, f"/kvrelease/{name}", headers=headers)
        assert answer.status_code == 401
    assert server.state()["state"] == "open"
    assert server.app.seen == []


def test_control_endpoints_are_the_applications_where_no_token_was_given() -> None:
    with served(environment={"KVRELEASE_CONTROL_TOKEN": ""}) as server:
        assert server.control("hold").content == b"{}"
        assert server.app.seen == [("POST", "/kvrelease/hold", b"{}")]


def test_one_of_several_api_servers_does_not_hold() -> None:
    """Each has a gate of its own: the others would go on while the weights change."""
    with served(Echo(api_server_count=4)) as server:
        assert server.state()["api_servers"] == 4
        refused = server.control("hold")
        assert refused.status_code == 409
        assert "--api-server-count 1" in refused.json()["error"]["message"]
        assert server.state()["state"] == "open"


def test_whoever_holds_may_ask_the_engine_in_a_key_space_of_its_own(server: Served, pool: ThreadPoolExecutor) -> None:
    hold = server.control("hold").json()["hold"]
    waiting = pool.submit(server.send, BODY)
    server.until(waiting=1)
    mine = server.send({**BODY, "cache_salt": "probe"}, headers={gate.HOLD_HEADER: hold})
    assert str(salt(mine)).startswith(f"{NAMESPACE}.")
    # What nobody knows to be the namespace's weights must not write where its users look.
    assert server.send(BODY, headers={gate.HOLD_HEADER: hold}).status_code == 400
    assert server.state()["waiting"] == 1
    server.control("resume", hold=hold, namespace=NEXT)
    assert salt(waiting.result()) == NEXT


def test_the_name_of_another_hold_opens_nothing(server: Served, pool: ThreadPoolExecutor) -> None:
    hold = server.control("hold").json()["hold"]
    waiting = pool.submit(server.send, {**BODY, "cache_salt": "probe"}, headers={gate.HOLD_HEADER: "0123456789abcdef"})
    server.until(waiting=1)
    assert server.app.seen == []
    server.control("resume", hold=hold, namespace=NAMESPACE)
    assert waiting.result().status_code == 200


def test_both_sides_call_the_holders_header_alike() -> None:
    assert HOLD_HEADER.decode() == gate.HOLD_HEADER
