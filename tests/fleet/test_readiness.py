"""Waiting for servers over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from kvrelease.binding.unready import Unready
from kvrelease.engines.base import EngineKind
from kvrelease.errors import (
    NoModel,
    PromptTooLong,
    Refused,
    ServiceTimeout,
    UnexpectedReply,
    Unreachable,
    UsageError,
    WrongModel,
)
from kvrelease.fleet.access import Access
from kvrelease.fleet.opening import Fleet
from kvrelease.fleet.readiness import MAX_PAUSE_S, Waiting, may_become_ready, wait_for
from kvrelease.progress import ProgressEvent, silent
from tests.engines.scripted import Break, ScriptedEngine
from tests.fleet.names import NAME, Resolver
from tests.fleet.test_opening import reached, with_fleet
from tests.verify.deployments import warmed


def waiting(*urls: str, wait_s: float = 20.0, kind: EngineKind | None = None, model: str | None = None) -> Access:
    return msgspec.structs.replace(reached(*urls, kind=kind, model=model), wait_s=wait_s)


async def only(fleet: Fleet) -> object:
    (engine,) = fleet.engines
    return engine.error if isinstance(engine, Unready) else engine.url


@contextmanager
def told(engine: ScriptedEngine, access: Access) -> Iterator[list[str]]:
    """The stages of progress while a replica became ready."""
    stages: list[str] = []

    def progress(event: ProgressEvent) -> None:
        stages.append(event.description)

    assert with_fleet(access, only, progress=progress) == engine.url
    yield stages


def test_a_server_that_lists_its_model_and_cannot_generate_yet_is_waited_for() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.LOADING, times=3)
        with told(engine, waiting(engine.url)) as stages:
            assert stages == [f"waiting for replicas: {engine.url}: it answers 503"] * 3
        assert len(engine.generations()) == 4


def test_a_server_that_does_not_list_its_model_yet_is_waited_for() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.LOADING, path="/v1/models", times=2)
        with told(engine, waiting(engine.url)) as stages:
            assert set(stages) == {f"waiting for replicas: {engine.url}: it answers 503"}


def test_a_port_where_nobody_listens_yet_is_waited_for() -> None:
    with ScriptedEngine() as gone:
        port = gone.port
    ready = threading.Event()

    def progress(event: ProgressEvent) -> None:
        assert "nobody answers there yet" in event.description
        ready.set()

    started: list[ScriptedEngine] = []

    def start() -> None:
        ready.wait(10)
        started.append(ScriptedEngine(port=port).__enter__())

    thread = threading.Thread(target=start)
    thread.start()
    try:
        assert with_fleet(waiting(f"http://127.0.0.1:{port}"), only, progress=progress) == f"http://127.0.0.1:{port}"
    finally:
        thread.join()
        started[0].__exit__(None, None, None)


def test_a_name_without_an_address_yet_is_waited_for(resolver: Resolver) -> None:
    resolver.addresses[NAME] = []

    with ScriptedEngine() as engine:

        def progress(_: ProgressEvent) -> None:
            resolver.addresses[NAME] = ["127.0.0.1"]

        assert with_fleet(waiting(f"dns+http://{NAME}:{engine.port}"), only, progress=progress) == engine.url


def test_the_time_that_is_over_says_what_was_found_last() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.LOADING)
        error = with_fleet(waiting(engine.url, wait_s=0.4), only)
    assert isinstance(error, ServiceTimeout)
    assert f"{engine.url} was not ready within 0.4 s" in error.message
    assert "503" in error.message


def test_a_server_that_hangs_meets_the_end_of_the_wait() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.HANG)
        assert isinstance(with_fleet(waiting(engine.url, wait_s=0.2), only), ServiceTimeout)


def test_a_page_in_front_of_the_server_is_waited_for() -> None:
    for path in ("/v1/models", "/v1/c"):
        with ScriptedEngine() as engine:
            engine.break_with(Break.HTML, path=path, times=2)
            with told(engine, waiting(engine.url)) as stages:
                assert len(stages) == 2
                assert all("an HTML page ('Welcome to the gateway')" in stage for stage in stages)


def test_a_placeholder_that_lists_another_model_is_waited_for() -> None:
    with ScriptedEngine(model="placeholder") as engine:
        stages: list[str] = []

        def progress(event: ProgressEvent) -> None:
            stages.append(event.description)
            engine.model = "wanted"

        assert with_fleet(waiting(engine.url, model="wanted"), only, progress=progress) == engine.url
        assert stages == [f"waiting for replicas: {engine.url}: {engine.url} does not serve the model 'wanted'"]


@pytest.mark.parametrize("how", [Break.UNAUTHORIZED, Break.FORBIDDEN])
def test_other_credentials_are_an_error_at_once(how: Break) -> None:
    with ScriptedEngine() as engine:
        engine.break_with(how)
        assert isinstance(with_fleet(waiting(engine.url, kind=EngineKind.VLLM), only), Refused)
        assert len(engine.generations()) == 1


def test_what_is_there_when_the_time_is_over_keeps_its_exit_code() -> None:
    with ScriptedEngine() as engine:
        another = with_fleet(waiting(engine.url, model="other", wait_s=0.3), only)
        engine.break_with(Break.HTML)
        page = with_fleet(waiting(engine.url, kind=EngineKind.VLLM, wait_s=0.3), only)
    assert isinstance(another, WrongModel)
    assert not isinstance(another, NoModel)
    assert "was not ready within 0.3 s" in another.message
    assert "served: " in (another.hint or "")
    assert isinstance(page, ServiceTimeout)
    assert "HTML page" in page.message


def test_of_several_models_none_is_chosen_by_waiting() -> None:
    assert not may_become_ready(UsageError("serves 2 models, and --model names none"))


def test_a_server_without_a_completions_route_is_asked_on_the_other() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.NO_ROUTE, path="/v1/completions")
        assert with_fleet(waiting(engine.url), only) == engine.url
        assert [seen.path for seen in engine.generations()] == ["/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.LLAMACPP])
def test_the_generation_that_is_waited_for_is_no_foreign_hit_later(kind: EngineKind) -> None:
    with ScriptedEngine(kind, release="new", slots=12) as engine:
        with_fleet(waiting(engine.url), only)
        assert len(engine.generations()) == 1
        report = warmed(engine)
        assert report.replicas[0].foreign_tokens == 0
        assert engine.cached_of[1] == 0


def test_what_may_become_ready() -> None:
    not_yet = [Unreachable("x"), ServiceTimeout("x"), NoModel("x"), Refused("x", status=503), Refused("x", status=404)]
    not_yet += [WrongModel("x"), UnexpectedReply("x")]
    never = [UsageError("x"), PromptTooLong("x"), Refused("x", status=401), Refused("x", status=400)]
    assert all(may_become_ready(error) for error in not_yet)
    assert not any(may_become_ready(error) for error in never)


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.SGLANG])
def test_the_token_that_is_waited_for_has_a_key_space_of_its_own(kind: EngineKind) -> None:
    with ScriptedEngine(kind) as engine:
        with_fleet(waiting(engine.url), only)
        (seen,) = engine.generations()
        assert str(seen.body.get("cache_salt") or seen.body.get("extra_key")).startswith("kvrelease-ready-")


def test_the_token_that_is_waited_for_has_no_start_in_common_with_a_text_where_prompts_share_slots() -> None:
    with ScriptedEngine(EngineKind.LLAMACPP) as engine:
        with_fleet(waiting(engine.url), only)
        (seen,) = engine.generations()
        (token,) = seen.body["prompt"]
        assert isinstance(token, int)


def test_the_last_attempt_is_not_made_when_the_pause_before_it_takes_the_time_that_is_left() -> None:
    with ScriptedEngine() as engine:
        engine.break_with(Break.LOADING)
        access = msgspec.structs.replace(waiting(engine.url, wait_s=2.0), backoff_s=2.5)
        told_of: list[ProgressEvent] = []
        assert isinstance(with_fleet(access, only, progress=told_of.append), ServiceTimeout)
        assert (len(engine.generations()), told_of) == (1, [])


def test_pauses_between_attempts_double_up_to_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pass_by(pause_s: float) -> None:
        pauses.append(pause_s)

    async def attempt(_: float) -> None:
        if len(pauses) < 7:
            raise Unreachable("nobody")

    monkeypatch.setattr("kvrelease.fleet.readiness.asyncio.sleep", pass_by)
    asyncio.run(wait_for(attempt, shown="http://a", waiting=Waiting(silent, wait_s=600.0), pause_s=0.25))
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, MAX_PAUSE_S, MAX_PAUSE_S]
