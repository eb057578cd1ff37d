"""What a command's options stand for: an open ledger, open engines, a release, a deployment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvrelease.cli.console import say_warning
from kvrelease.config import Config, api_key, load_config, split_header, working_directory
from kvrelease.engines.base import EngineClient, EngineKind
from kvrelease.errors import KvreleaseError, UsageError

if TYPE_CHECKING:
    from kvrelease.binding.deployment import Deployment
    from kvrelease.engines.block_cache import BlockCache
    from kvrelease.ledger.store import Ledger
    from kvrelease.progress import Progress
    from kvrelease.release.fingerprint import Fingerprint
    from kvrelease.release.memo import Memo
    from kvrelease.release.pair import Pair
    from kvrelease.release.source import Source
    from kvrelease.verify.record import Record
    from kvrelease.verify.run import Twins
    from kvrelease.workload.prompt_set import PromptSet


UNDECLARED_WARNING = (
    "the runtime is undeclared: list engine, version, dtype, kv_cache_dtype … under runtime: in kvrelease.yaml, "
    "so that another engine version gets another namespace"
)

# Besides the first: a round robin over two processes shows on the next one.
FURTHER_CONNECTIONS = 2

# A release up to here is also run in process, on a handful of prompts, for `identity` and `power`; larger ones only
# when --reference local asks for it.
IN_PROCESS_LIMIT_BYTES = 4 * 1024**3


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """How engines are reached."""

    urls: tuple[str, ...]
    kind: EngineKind | None
    model: str | None
    timeout_s: float
    key_variable: str | None
    headers: dict[str, str]


def transport_of(
    *,
    config: Config,
    urls: Sequence[str] | None,
    kind: EngineKind | None,
    model: str | None,
    timeout_s: float,
    key_variable: str | None,
    headers: Sequence[str] | None,
) -> Transport:
    """The transport that options and configuration describe; checked before a release is hashed for minutes.

    Raises:
        UsageError: no replica is named, or one twice, or not by a URL; a header is not K=V; no such key variable.
    """
    from kvrelease.engines.address import parse_address  # noqa: PLC0415 - late: httpx

    is_local = kind is EngineKind.LOCAL
    chosen = tuple(urls or ()) or ((config.production.url,) if config.production.url and not is_local else ())
    if urls and not is_local and config.production.url and config.production.url not in urls:
        say_warning(
            f"users reach {config.production.url}, which this run does not ask: that it passes salt and body on "
            "unchanged is not proved. Run verify on that URL alone as well"
        )
    if not chosen and not is_local:
        raise UsageError(
            "no engine is named", hint="add --engine-url http://HOST:PORT, or engine-url to kvrelease.yaml"
        )
    if not is_local:
        bases = [parse_address(url).url for url in chosen]
        twice = next((base for base in bases if bases.count(base) > 1), None)
        if twice:
            raise UsageError(
                f"the replica {twice} is named twice: it would be taken for two caches", hint="name each replica once"
            )
        api_key(key_variable)
    return Transport(
        urls=chosen,
        kind=kind,
        model=model or config.production.model,
        timeout_s=timeout_s,
        key_variable=key_variable,
        headers={**config.production.headers, **parse_headers(headers or ())},
    )


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """`K=V` texts as headers.

    Raises:
        UsageError: no `=` in one; its text is not repeated, it may be a secret.
    """
    return dict(split_header(text, where=f"--header number {number}") for number, text in enumerate(texts, start=1))


def open_ledger(url: str | None, *, no_ledger: bool) -> Ledger:
    """The ledger that options name, else the user's own, else one that forgets."""
    from kvrelease.ledger.store import IN_MEMORY, Ledger, default_ledger_url  # noqa: PLC0415 - late

    return Ledger(IN_MEMORY if no_ledger else url or default_ledger_url())


def open_memo(*, no_memo: bool) -> Memo | None:
    """The user's memo of what was hashed; None where it is not wanted, or the user has no home to keep it in."""
    from kvrelease.release.memo import Memo, default_directory  # noqa: PLC0415 - late

    directory = None if no_memo else default_directory()
    return None if directory is None else Memo(directory)


def read_release(
    what: str | None,
    *,
    option: str,
    jobs: int | None,
    no_memo: bool,
    progress: Progress,
) -> Fingerprint:
    """The fingerprint that an option names.

    Args:
        what: a release, or a saved fingerprint.
        option: that named it.
        jobs: threads to hash with; None for as many as are worthwhile here.
        no_memo: to hash everything.
        progress: called while hashing.

    Raises:
        UsageError: the option was not given.
        InputError: it cannot be read.
    """
    from kvrelease.release.fingerprint import require_current  # noqa: PLC0415 - late
    from kvrelease.release.loading import load_release  # noqa: PLC0415 - late
    from kvrelease.release.saved import require_files_beside  # noqa: PLC0415

    if what is None:
        raise UsageError(
            f"no release is named: {option} says which weights are to be there",
            hint=f"add {option} MODEL_DIRECTORY (or a saved fingerprint)",
        )
    found = load_release(what, jobs=jobs, memo=open_memo(no_memo=no_memo), progress=progress)
    require_current(found)
    require_files_beside(found, what=what)
    return found


def read_pair(old: str, new: str, *, jobs: int | None, no_memo: bool, progress: Progress, wants_weights: bool) -> Pair:
    """Both sides of a diff; a saved one may be of other algorithms than today's, because comparing can tell.

    Args:
        old: a release, or a saved fingerprint.
        new: likewise.
        jobs: threads to hash with; None for as many as are worthwhile here.
        no_memo: to hash everything.
        progress: called while hashing.
        wants_weights: whether the weights changed has to be known, even if that costs a download.

    Raises:
        InputError: one cannot be read.
        ServiceError: a store did not answer properly.
    """
    from kvrelease.release.pair import load_pair  # noqa: PLC0415 - late

    memo = open_memo(no_memo=no_memo)
    return load_pair(old, new, memo=memo, jobs=jobs, progress=progress, wants_weights=wants_weights)


def adapter_sources(texts: Sequence[str]) -> dict[str, Source]:
    """`[NAME=]DIR` texts as name → open source of an adapter, in their order.

    Raises:
        UsageError: an empty name or directory, or a name twice.
        NotFound: nothing is there.
    """
    from kvrelease.release.address import open_source  # noqa: PLC0415 - late

    found: dict[str, Source] = {}
    for text in texts:
        name, separator, what = text.partition("=")
        # A path or an address may hold an "=" of its own; a name holds no "/", and does not lie on disk.
        is_named = bool(separator) and "/" not in name and not Path(text).exists()
        if is_named and (not name or not what):
            raise UsageError(
                f"--adapter {text}: not of the form NAME=DIR", hint="for example: --adapter support=./lora"
            )
        source = open_source(what if is_named else text)
        name = name if is_named else source.origin.name
        if name in found:
            raise UsageError(
                f"--adapter names {name!r} twice: one name is served by one adapter", hint="give each its own NAME=DIR"
            )
        found[name] = source
    return found


@asynccontextmanager
async def engines_of(transport: Transport, *, release: str | None) -> AsyncIterator[tuple[EngineClient, ...]]:
    """The replicas, open; closed on the way out."""
    from kvrelease.engines.local import open_local  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        engines: list[EngineClient] = []
        if transport.kind is EngineKind.LOCAL:
            if release is None or not _is_directory(release):
                raise UsageError("--engine local serves --release, which must be a model directory")
            engines.append(await open_local(Path(release), cache=_store(transport.urls)))
            stack.push_async_callback(engines[-1].aclose)
        else:
            for url in transport.urls:
                engine = await _open(url, kind=transport.kind, transport=transport)
                stack.push_async_callback(engine.aclose)
                engines.append(engine)
        for engine in engines:
            await _require_one_process(engine, transport=transport)
        yield tuple(engines)


def _store(places: Sequence[str]) -> BlockCache:
    """The cache of the in-process engine: over a directory of persisted blocks, where one is named, read only."""
    from kvrelease.engines.block_cache import BlockCache  # noqa: PLC0415 - late
    from kvrelease.engines.block_files import open_stored_blocks  # noqa: PLC0415

    directories = [place for place in places if "://" not in place]
    servers = [place for place in places if "://" in place]
    if servers:
        say_warning(f"--engine local runs in this process, and asks no server: {' '.join(servers)} is not used")
    if not directories:
        return BlockCache()
    if len(directories) > 1:
        raise UsageError(
            f"--engine local reads one store, and --engine-url names {len(directories)}: {' '.join(directories)}",
            hint="name one directory of blocks, or none",
        )
    return BlockCache(files=open_stored_blocks(Path(directories[0])), writes_files=False)


async def _open(url: str, *, kind: EngineKind | None, transport: Transport) -> EngineClient:
    from kvrelease.engines.detect import open_engine  # noqa: PLC0415 - late

    return await open_engine(
        url,
        kind=kind,
        model=transport.model,
        headers=transport.headers,
        api_key=api_key(transport.key_variable),
        timeout_s=transport.timeout_s,
    )


async def _require_one_process(engine: EngineClient, *, transport: Transport) -> None:
    """Checks that new connections to a URL reach the same engine process.

    A router keeps one connection on one process, so that the others would never be asked: their caches would pass
    unseen.

    Raises:
        UsageError: they do not.
    """
    from kvrelease.engines.process import is_another_process  # noqa: PLC0415 - late

    if engine.kind is EngineKind.LOCAL:
        return
    first = (await engine.identify()).process
    for _ in range(FURTHER_CONNECTIONS):
        other = await _open(engine.url, kind=engine.kind, transport=transport)
        try:
            now = (await other.identify()).process
        finally:
            await other.aclose()
        if is_another_process(first, now):
            raise UsageError(
                f"several engine processes answer behind {engine.url} ({first} and {now}), each with its own cache",
                hint="name every one of them with its own --engine-url (in Kubernetes: the pods, not the Service)",
            )


@asynccontextmanager
async def twins_of(
    transport: Transport,
    *,
    release: str | None,
    old_release: str | None,
    reference: str | None,
    golden: Record | None,
    baseline: Record | None,
) -> AsyncIterator[Twins]:
    """Where second opinions come from, open; closed on the way out.

    Raises:
        MissingExtra: `--reference local` without the `local` extra.
        UsageError: `--reference local` without a release directory.
    """
    from kvrelease.engines.local import LocalEngine, open_local  # noqa: PLC0415 - late
    from kvrelease.verify.run import Twins  # noqa: PLC0415

    is_forced = reference == "local"
    if reference is not None and not is_forced:
        _require_other(reference, () if transport.kind is EngineKind.LOCAL else transport.urls)
    if is_forced and (release is None or not _is_directory(release)):
        raise UsageError("--reference local runs --release in process, which must be a model directory")
    async with AsyncExitStack() as stack:

        async def in_process(what: str | None) -> LocalEngine | None:
            if what is None or not _is_directory(what):
                return None
            if not is_forced and _weight_bytes(what) > IN_PROCESS_LIMIT_BYTES:
                return None
            try:
                engine = await open_local(Path(what))
            except KvreleaseError as error:
                if is_forced:
                    raise
                say_warning(
                    f"{error.message}; identity and power stay unproven ({error.hint or 'nothing else is lost'})"
                )
                return None
            stack.push_async_callback(engine.aclose)
            return engine

        new = await in_process(release)
        old = await in_process(old_release) if new is not None else None
        second: EngineClient | None = new if is_forced else None
        if reference is not None and not is_forced:
            elsewhere = msgspec.structs.replace(transport, urls=(reference,), kind=None)
            (second,) = await stack.enter_async_context(engines_of(elsewhere, release=None))
        yield Twins(golden=golden, baseline=baseline, reference=second, release=new, old_release=old)


def _weight_bytes(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory).glob("*.safetensors"))


def _is_directory(what: str) -> bool:
    return Path(what).is_dir()


def _require_other(reference: str, urls: Sequence[str]) -> None:
    from kvrelease.engines.address import parse_address  # noqa: PLC0415 - late: httpx

    base = parse_address(reference).url
    if base in {parse_address(url).url for url in urls}:
        raise UsageError(
            f"--reference {base} is the replica under test: its cache would vouch for itself",
            hint="name a second, clean server of the same release, or --reference local",
        )


def read_prompts(prompts: str | None) -> PromptSet:
    """The prompt set that `--prompts` names.

    Raises:
        UsageError: none is named.
        InputError: it cannot be read.
    """
    from kvrelease.workload.loading import load_prompt_set  # noqa: PLC0415 - late

    if prompts is None:
        raise UsageError("no prompt set is named", hint="add --prompts prompts/support.yaml, or your own file")
    return load_prompt_set(prompts, directory=working_directory())


def deployment_of(
    fingerprint: Fingerprint,
    *,
    config: Config,
    ledger: Ledger,
    prompt_set: PromptSet,
    namespace: str | None,
    command: str,
) -> Deployment:
    """What is asked of every replica.

    Raises:
        UsageError: the key space is none.
        InputError: the release has no kv name.
    """
    from kvrelease.binding.deployment import Deployment  # noqa: PLC0415 - late
    from kvrelease.binding.namespace import resolve_namespace, salt_of  # noqa: PLC0415
    from kvrelease.binding.runtime import declared_runtime  # noqa: PLC0415
    from kvrelease.release.fingerprint import require_kv_name  # noqa: PLC0415

    runtime = declared_runtime(config.runtime)
    if runtime.digest is None:
        say_warning(UNDECLARED_WARNING)
    require_kv_name(fingerprint)
    record, is_new = resolve_namespace(fingerprint.release, runtime=runtime, ledger=ledger, command=command)
    production = config.production
    salt = salt_of(production.salt if namespace is None else namespace, namespace=record.namespace)
    if is_new and salt == record.namespace:
        say_warning(
            f"the namespace {record.namespace} is new to this ledger: if another ledger knows a later epoch, users "
            "send that one, and this run is about another key space (name the team's ledger with --ledger)"
        )
    return Deployment(
        release=fingerprint.release,
        namespace=record.namespace,
        runtime=runtime,
        production=production,
        salt=salt,
        prompt_set=prompt_set,
    )


def configuration() -> Config:
    """The configuration of the working directory."""
    return load_config(working_directory())
