"""Opens the engines of one run, and closes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kvrelease.config import api_key
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.block_files import open_stored_blocks
from kvrelease.engines.detect import open_engine
from kvrelease.engines.local import open_local
from kvrelease.engines.process import is_another_process
from kvrelease.errors import UsageError
from kvrelease.fleet.access import Access

# Besides the first: a round robin over two processes shows on the next one.
FURTHER_CONNECTIONS = 2


@asynccontextmanager
async def open_engines(
    access: Access, *, release: str | None, warn: Callable[[str], None]
) -> AsyncIterator[tuple[EngineClient, ...]]:
    """The replicas, open; closed on the way out.

    Args:
        access: where they are.
        release: that the in-process engine serves: a model directory.
        warn: told what the reader has to know and does not stop the run.

    Raises:
        UsageError: the in-process engine has no directory, or several processes answer behind one URL.
        ServiceError: a replica did not answer properly.
    """
    async with AsyncExitStack() as stack:
        engines: list[EngineClient] = []
        if access.kind is EngineKind.LOCAL:
            directory = model_directory(release)
            if directory is None:
                raise UsageError("--engine local serves --release, which must be a model directory")
            engines.append(await open_local(directory, cache=_store(access.urls, warn=warn)))
            stack.push_async_callback(engines[-1].aclose)
        else:
            for url in access.urls:
                engine = await _open(url, kind=access.kind, access=access)
                stack.push_async_callback(engine.aclose)
                engines.append(engine)
        for engine in engines:
            await _require_one_process(engine, access=access)
        yield tuple(engines)


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


async def _open(url: str, *, kind: EngineKind | None, access: Access) -> EngineClient:
    return await open_engine(
        url,
        kind=kind,
        model=access.model,
        headers=access.headers,
        api_key=api_key(access.key_variable),
        timeout_s=access.timeout_s,
    )


async def _require_one_process(engine: EngineClient, *, access: Access) -> None:
    """Checks that new connections to a URL reach the same engine process.

    A router keeps one connection on one process, so that the others would never be asked: their caches would pass
    unseen.

    Raises:
        UsageError: they do not.
    """
    if engine.kind is EngineKind.LOCAL:
        return
    first = (await engine.identify()).process
    for _ in range(FURTHER_CONNECTIONS):
        other = await _open(engine.url, kind=engine.kind, access=access)
        try:
            now = (await other.identify()).process
        finally:
            await other.aclose()
        if is_another_process(first, now):
            raise UsageError(
                f"several engine processes answer behind {engine.url} ({first} and {now}), each with its own cache",
                hint="name every one of them with its own --engine-url (in Kubernetes: the pods, not the Service)",
            )
