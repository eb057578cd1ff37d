"""Opens the engines of one run, and closes them."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import msgspec

from kvrelease.binding.unready import Unready, require_one_ready
from kvrelease.config import api_key
from kvrelease.engines.address import Address
from kvrelease.engines.base import EngineClient, EngineIdentity, EngineKind, RankPin, shown_replica
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.block_files import open_stored_blocks
from kvrelease.engines.connections import MAX_CONNECTIONS, Connections
from kvrelease.engines.detect import open_engine
from kvrelease.engines.local import open_local
from kvrelease.engines.process import is_another_process
from kvrelease.engines.retry import MAX_RETRIES
from kvrelease.errors import KvreleaseError, UsageError, one_of
from kvrelease.fleet.access import Access, one_of_each
from kvrelease.fleet.listed import ListedReplica, distinct
from kvrelease.fleet.names import AddressChange, addresses_of, changes_since
from kvrelease.fleet.ranks import pins_of
from kvrelease.fleet.readiness import Waiting, generate_one_token, wait_for
from kvrelease.progress import Progress, silent

# Besides the first. A round robin over two processes shows on the next one; one that is picked at random for each
# connection (a Kubernetes Service) is missed in 1 of 256 runs. Each address of a name is one process, as a rule.
FURTHER_CONNECTIONS = 8
FURTHER_CONNECTIONS_OF_A_NAME = 2

# Replicas opened at once: a dead address takes a connect time-out, and 200 of them should not take 200.
OPENING = 128

# Connections of a replica besides those of requests: counters, and the check for other processes.
SPARE_CONNECTIONS = 4
# Files that are open already: the ledger, standard streams, libraries.
_SPARE_FILES = 128


class Fleet:
    """The engines of one run.

    Attributes:
        engines: in the order named; those that could not be opened as `Unready`.
    """

    def __init__(
        self, engines: Sequence[EngineClient | Unready], *, names: dict[Address, tuple[Address, ...]] | None = None
    ) -> None:
        """Holds `engines`, and the addresses that each of `names` had."""
        self.engines = tuple(engines)
        self._names = names or {}

    def require_one(self, *, option: str) -> EngineClient:
        """The only engine.

        Raises:
            UsageError: there are several.
            KvreleaseError: it could not be opened.
        """
        if len(self.engines) != 1:
            raise UsageError(f"{option} names {len(self.engines)} replicas, and one is asked", hint="name one URL")
        (engine,), _ = require_one_ready(self.engines)
        return engine

    async def changes(self) -> tuple[AddressChange, ...]:
        """What became of the names since they were looked up; nothing where none was given.

        Raises:
            ServiceError: a name cannot be looked up any more.
        """
        return await changes_since(self._names)


@asynccontextmanager
async def open_fleet(
    access: Access, *, release: str | None, warn: Callable[[str], None], progress: Progress = silent
) -> AsyncIterator[Fleet]:
    """The replicas, open; closed on the way out.

    Args:
        access: where they are.
        release: that the in-process engine serves: a model directory.
        warn: told what the reader has to know and does not stop the run.
        progress: told what replicas are waited for.

    Raises:
        UsageError: the in-process engine has no directory.
        ServiceError: a name has no address, also after waiting for one.
    """
    async with AsyncExitStack() as stack:
        if access.kind is EngineKind.LOCAL:
            directory = model_directory(release)
            if directory is None:
                raise UsageError("--engine local serves --release, which must be a model directory")
            local = await open_local(directory, cache=_store(access.stores, warn=warn))
            stack.push_async_callback(local.aclose)
            yield Fleet([local])
            return
        waiting = None if access.wait_s is None else Waiting(progress, wait_s=access.wait_s)
        names = {
            one.address: await _addresses(one.address, waiting=waiting, pause_s=access.backoff_s)
            for one in access.replicas
            if one.is_name
        }
        replicas, _ = distinct(_expanded(access.replicas, names))
        opener = _Opener(access, origins=len(replicas), waiting=waiting)
        stack.push_async_callback(opener.aclose)
        async with asyncio.TaskGroup() as group:
            opening = [group.create_task(opener.open(replica)) for replica in replicas]
        yield Fleet([engine for task in opening for engine in task.result()], names=names)


async def _addresses(service: Address, *, waiting: Waiting | None, pause_s: float) -> tuple[Address, ...]:
    """The addresses of a name, waited for where there is time: a headless Service has none before a pod is ready."""
    if waiting is None:
        return await addresses_of(service)
    found: tuple[Address, ...] = ()

    async def attempt(_: float) -> None:
        nonlocal found
        found = await addresses_of(service)

    await wait_for(attempt, shown=service.host, waiting=waiting, pause_s=pause_s)
    return found


def _expanded(replicas: Sequence[ListedReplica], names: dict[Address, tuple[Address, ...]]) -> Sequence[ListedReplica]:
    """Every address of every name in place of the name."""
    return [
        msgspec.structs.replace(replica, address=address, is_name=False)
        for replica in replicas
        for address in (names[replica.address] if replica.is_name else (replica.address,))
    ]


class _Opener:
    """Opens replicas, and closes what it opened."""

    def __init__(self, access: Access, *, origins: int, waiting: Waiting | None) -> None:
        self._access = access
        self._waiting = waiting
        self._key = api_key(access.key_variable)
        self._most = connections_each(origins=origins, concurrency=access.concurrency)
        self._at_once = asyncio.Semaphore(OPENING)
        self._opened: list[EngineClient] = []

    async def open(self, replica: ListedReplica) -> tuple[EngineClient | Unready, ...]:
        """The replica, or each of its ranks, or why it cannot be asked."""
        try:
            if self._waiting is not None:
                await self._wait(replica, waiting=self._waiting)
            async with self._at_once:
                return await self._opened_ones(replica)
        except KvreleaseError as error:
            return (Unready(url=replica.address.url, name=replica.address.name, rank=replica.rank, error=error),)

    async def _wait(self, replica: ListedReplica, *, waiting: Waiting) -> None:
        """Returns when the replica lists the model and has generated a token.

        Raises:
            KvreleaseError: it does not within the time, or never will.
        """

        async def attempt(left_s: float) -> None:
            async with self._at_once:
                engine = await self._client(
                    replica,
                    kind=self._access.kind,
                    timeout_s=min(left_s, self._access.timeout_s),
                    max_retries=0,
                    checks_kind=True,
                )
                async with aclosing(engine):
                    await generate_one_token(engine)

        shown = shown_replica(replica.address.url, name=replica.address.name, rank=replica.rank)
        await wait_for(attempt, shown=shown, waiting=waiting, pause_s=self._access.backoff_s)

    async def _opened_ones(self, replica: ListedReplica) -> tuple[EngineClient, ...]:
        connections = Connections(replica.address, most=self._most)
        whole = await self._client(replica, kind=self._access.kind, connections=connections, checks_kind=True)
        self._opened.append(whole)
        identity = await self._require_one_process(whole, replica=replica)
        pins = pins_of(identity, wanted=self._access.ranks, listed=replica.rank)
        ranks = [await self._client(replica, kind=whole.kind, connections=connections, pin=pin) for pin in pins]
        self._opened += ranks
        return tuple(ranks) or (whole,)

    async def aclose(self) -> None:
        """Closes every engine."""
        for engine in self._opened:
            await engine.aclose()

    async def _client(
        self,
        replica: ListedReplica,
        *,
        kind: EngineKind | None,
        connections: Connections | None = None,
        pin: RankPin | None = None,
        timeout_s: float | None = None,
        max_retries: int = MAX_RETRIES,
        checks_kind: bool = False,
    ) -> EngineClient:
        access = self._access
        return await open_engine(
            replica.address,
            kind=kind,
            model=access.model,
            headers=one_of_each(access.headers, replica.headers),
            api_key=self._key,
            timeout_s=access.timeout_s if timeout_s is None else timeout_s,
            max_retries=max_retries,
            backoff_s=access.backoff_s,
            connections=connections,
            pin=pin,
            checks_kind=checks_kind,
        )

    async def _require_one_process(self, engine: EngineClient, *, replica: ListedReplica) -> EngineIdentity:
        """Who answers at a URL; checks that new connections reach the same engine process.

        A router keeps one connection on one process, so that the others would never be asked: their caches would pass
        unseen.

        Raises:
            UsageError: they do not.
        """
        identity = await engine.identify()
        first = identity.process
        wanted = FURTHER_CONNECTIONS if replica.address.name is None else FURTHER_CONNECTIONS_OF_A_NAME
        try:
            async with asyncio.TaskGroup() as group:
                looks = [group.create_task(self._process_elsewhere(engine, replica=replica)) for _ in range(wanted)]
        except ExceptionGroup as errors:
            raise one_of(errors) from errors
        other = next((now for look in looks if is_another_process(first, now := look.result())), None)
        if other is not None:
            raise UsageError(
                f"several engine processes answer behind {engine.url} ({first} and {other}), each with its own cache",
                hint="name every one of them with its own --engine-url (in Kubernetes: the pods, not the Service; "
                "--engine-url dns+http://NAME:PORT takes all addresses of a headless one)",
            )
        return identity

    async def _process_elsewhere(self, engine: EngineClient, *, replica: ListedReplica) -> str | None:
        """The process that answers on a new connection."""
        other = await self._client(replica, kind=engine.kind)
        try:
            return await other.current_process()
        finally:
            await other.aclose()


def connections_each(*, origins: int, concurrency: int | None) -> int:
    """Connections that the pool of one origin may hold: what its requests need, within the files we may open.

    Args:
        origins: pools there will be.
        concurrency: most requests in flight on one; None where nobody says.
    """
    wanted = MAX_CONNECTIONS if concurrency is None else concurrency + SPARE_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (files - _SPARE_FILES) // max(1, origins)))


def model_directory(what: str | None) -> Path | None:
    """The directory that a release is, which can be run in process; None for anything else."""
    return None if what is None or not Path(what).is_dir() else Path(what)


def _store(places: Sequence[str], *, warn: Callable[[str], None]) -> BlockCache:
    """The cache of the in-process engine: over a directory of persisted blocks, where one is named, read only."""
    directories = [place for place in places if "://" not in place]
    servers = [place for place in places if "://" in place]
    if servers:
        warn(f"--engine local runs in this process, and asks no server: {' '.join(servers)} is not used")
    if not directories:
        return BlockCache()
    if len(directories) > 1:
        raise UsageError(
            f"--engine local reads one store, and --engine-url names {len(directories)}: {' '.join(directories)}",
            hint="name one directory of blocks, or none",
        )
    return BlockCache(files=open_stored_blocks(Path(directories[0])), writes_files=False)
