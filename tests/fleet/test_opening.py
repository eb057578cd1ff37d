"""Opening several replicas over real sockets; a name's addresses are loopback addresses with one port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from kvrelease.binding.deployment import prepare_all
from kvrelease.binding.unready import Unready, ready_ones, require_one_ready
from kvrelease.config import Production
from kvrelease.engines.base import EngineKind
from kvrelease.errors import Unreachable, UsageError, WrongModel
from kvrelease.fleet.access import Access, access_of
from kvrelease.fleet.listed import ListedReplica
from kvrelease.fleet.opening import FURTHER_CONNECTIONS, Fleet, connections_each, open_fleet
from kvrelease.ledger.store import IN_MEMORY, Ledger
from kvrelease.progress import Progress, silent
from tests.engines.scripted import Break, ScriptedEngine
from tests.fleet.names import NAME, Resolver
from tests.loops import run
from tests.verify.deployments import deployment

T = TypeVar("T")


def reached(
    *urls: str,
    kind: EngineKind | None = EngineKind.VLLM,
    model: str | None = None,
    listed: tuple[ListedReplica, ...] = (),
    production: Production | None = None,
    warned: list[str] | None = None,
    headers: dict[str, str] | None = None,
) -> Access:
    access = access_of(
        production=production or Production(),
        urls=urls,
        listed=listed,
        kind=kind,
        model=model,
        timeout_s=5.0,
        key_variable=None,
        headers=headers or {},
        warn=(warned if warned is not None else []).append,
    )
    return msgspec.structs.replace(access, backoff_s=0.001)


def with_fleet(access: Access, do: Callable[[Fleet], Awaitable[T]], *, progress: Progress = silent) -> T:
    async def main() -> T:
        async with open_fleet(access, release=None, warn=print, progress=progress) as fleet:
            return await do(fleet)

    return run(main())


async def shown(fleet: Fleet) -> list[str]:
    """How each replica is named, its fault in brackets."""
    found = []
    for engine in fleet.engines:
        if isinstance(engine, Unready):
            found.append(f"{engine.shown}: {type(engine.error).__name__}")
        else:
            found.append((await engine.identify()).shown)
    return found


def test_a_name_opens_every_address_and_names_the_dead_one(resolver: Resolver) -> None:
    with ScriptedEngine() as first, ScriptedEngine(host="127.0.0.2", port=first.port) as second:
        resolver.addresses[NAME] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        found = with_fleet(reached(f"dns+http://{NAME}:{first.port}/v1"), shown)
        assert found == [
            f"http://127.0.0.1:{first.port} ({NAME})",
            f"http://127.0.0.2:{first.port} ({NAME})",
            f"http://127.0.0.3:{first.port} ({NAME}): Unreachable",
        ]
        for engine in (first, second):
            assert {seen.headers["host"] for seen in engine.requests} == {f"{NAME}:{first.port}"}


def test_the_settings_of_a_replica_are_asked_for_once_however_many_connections_are_checked() -> None:
    async def nothing(_: Fleet) -> None:
        pass

    with ScriptedEngine() as engine:
        with_fleet(reached(engine.url), nothing)
        asked = [seen.path.partition("?")[0] for seen in engine.requests]
        assert (asked.count("/server_info"), asked.count("/metrics")) == (1, 1 + FURTHER_CONNECTIONS)


class Behind(ScriptedEngine):
    """A balancer: what each reading of the metrics page tells is the start of another process, in turn."""

    def __init__(self, *starts: float) -> None:
        self._starts, self._reads = starts, 0
        super().__init__()

    @property
    def started(self) -> float:
        self._reads += 1
        return self._starts[min(self._reads, len(self._starts)) - 1]

    @started.setter
    def started(self, value: float) -> None:
        pass


@pytest.mark.parametrize("starts", [(1e9, 2e9), (1e9, 1e9, 2e9), (*[1e9] * FURTHER_CONNECTIONS, 2e9)], ids=len)
def test_several_processes_behind_one_url_are_refused_though_each_connection_stays_on_one(
    starts: tuple[float, ...],
) -> None:
    async def reason(fleet: Fleet) -> str:
        (engine,) = fleet.engines
        assert isinstance(engine, Unready)
        return engine.error.message

    with Behind(*starts) as engine:
        assert "several engine processes answer behind" in with_fleet(reached(engine.url), reason)
    with Behind(*[1e9] * (1 + FURTHER_CONNECTIONS), 2e9) as engine:
        assert with_fleet(reached(engine.url), shown) == [engine.url]


def test_an_address_that_is_also_named_by_itself_is_one_replica(resolver: Resolver) -> None:
    with ScriptedEngine() as engine:
        resolver.addresses[NAME] = ["127.0.0.1"]
        access = reached(f"dns+http://{NAME}:{engine.port}", engine.url)
        assert with_fleet(access, shown) == [f"{engine.url} ({NAME})"]


def test_a_name_that_is_not_known_ends_the_run(resolver: Resolver) -> None:
    resolver.addresses[NAME] = []
    with pytest.raises(Unreachable, match=NAME):
        with_fleet(reached(f"dns+http://{NAME}:8000"), shown)


def test_the_changes_of_a_name_are_told_at_the_end(resolver: Resolver) -> None:
    async def main(fleet: Fleet) -> list[tuple[str, bool]]:
        resolver.addresses[NAME] = ["127.0.0.2"]
        return [(change.address.host, change.appeared) for change in await fleet.changes()]

    with ScriptedEngine() as engine:
        resolver.addresses[NAME] = ["127.0.0.1"]
        found = with_fleet(reached(f"dns+http://{NAME}:{engine.port}"), main)
        assert found == [("127.0.0.2", True), ("127.0.0.1", False)]


def test_a_replica_that_cannot_be_prepared_costs_the_others_nothing() -> None:
    async def main(fleet: Fleet) -> tuple[list[str], list[Unready]]:
        with Ledger(IN_MEMORY) as ledger:
            prepared = await prepare_all(fleet.engines, deployment=deployment(), memory=ledger, max_tokens=1)
        ready, unready = ready_ones(prepared)
        return [one.identity.url for one in ready], list(unready)

    with ScriptedEngine() as good, ScriptedEngine(model="other") as other, ScriptedEngine() as broken:
        broken.break_with(Break.CRASHING, path="/tokenize")
        ready, unready = with_fleet(reached(good.url, other.url, broken.url, model="scripted"), main)
        assert ready == [good.url]
        kinds = [(one.url, type(one.error).__name__) for one in unready]
        assert kinds == [(other.url, "WrongModel"), (broken.url, "Refused")]
        assert unready[0].fault.exit_code == 2


def test_where_no_replica_can_be_asked_the_most_serious_reason_is_raised() -> None:
    errors = (Unreachable("nobody"), WrongModel("another"))
    with pytest.raises(WrongModel):
        require_one_ready([Unready(url="http://a", error=error) for error in errors])


def test_headers_of_one_replica_go_to_it_alone() -> None:
    with ScriptedEngine() as first, ScriptedEngine() as second:
        listed = (
            ListedReplica(address=reached(first.url).replicas[0].address, headers={"X-Pod": "1"}),
            ListedReplica(address=reached(second.url).replicas[0].address),
        )
        with_fleet(reached(listed=listed), shown)
        assert {seen.headers.get("x-pod") for seen in first.requests} == {"1"}
        assert {seen.headers.get("x-pod") for seen in second.requests} == {None}


def test_of_headers_of_one_name_the_replicas_own_holds_then_that_of_the_run_then_that_of_production() -> None:
    production = Production(headers={"X-Pod": "users", "X-Team": "users", "X-Tenant": "users"})
    with ScriptedEngine() as engine:
        address = reached(engine.url).replicas[0].address
        listed = (ListedReplica(address=address, headers={"X-Pod": "replica"}),)
        run = {"x-pod": "run", "x-team": "run"}
        with_fleet(reached(listed=listed, production=production, headers=run), shown)
        names = ("x-pod", "x-team", "x-tenant")
        assert {tuple(seen.headers.get(name) for name in names) for seen in engine.requests} == {
            ("replica", "run", "users")
        }


def test_users_who_come_another_way_are_a_warning() -> None:
    warned: list[str] = []
    reached("http://a", production=Production(url="http://users/v1"), warned=warned)
    assert len(warned) == 1
    assert "http://users/v1" in warned[0]
    reached("http://users", production=Production(url="http://users/v1"), warned=warned)
    assert len(warned) == 1


def test_replicas_that_the_in_process_engine_does_not_ask_are_a_warning() -> None:
    warned: list[str] = []
    listed = (ListedReplica(address=reached("http://a").replicas[0].address),)
    assert reached(kind=EngineKind.LOCAL, listed=listed, warned=warned).replicas == ()
    assert ["--replicas" in text for text in warned] == [True]


def test_no_replica_at_all_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no engine is named"):
        reached()


def test_connections_are_what_requests_need_within_the_files_we_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert connections_each(origins=1, concurrency=8) == 12
    assert connections_each(origins=200, concurrency=8) == 4
    assert connections_each(origins=5000, concurrency=8) == 1
