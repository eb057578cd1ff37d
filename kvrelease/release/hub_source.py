"""A release on the Hub, `hf:org/name@revision`: pinned to a commit, read from the local cache or by ranges.

A branch or a tag can move, so it is resolved to a commit first; the report names the commit. Nothing is stored.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kvrelease.errors import NotFound, UsageError
from kvrelease.printable import listed
from kvrelease.release.hub_cache import (
    MAIN,
    CachedRepository,
    is_commit,
    missing_in,
    open_snapshot,
    repository_of,
)
from kvrelease.release.hub_client import HubClient
from kvrelease.release.hub_reply import HubEntry
from kvrelease.release.range_reader import RangeReader
from kvrelease.release.read_files import is_read
from kvrelease.release.source import HUB_PREFIX, TEMPLATE_FOLDER, FileIdentity, Origin, Source

_MODEL = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?\Z", re.ASCII)


class HubAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`hf:org/name@revision/file`, revision and file optional.

    Attributes:
        model: `org/name`.
        revision: branch, tag or commit.
        file: the one weight file that is meant; None for what an engine would load.
    """

    model: str
    revision: str
    file: str | None


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the Hub and its cache are.

    Attributes:
        endpoint: base URL.
        cache: folder of `models--…` folders.
        is_offline: the network is not to be used.
        first_wait_s: before a failed request is repeated; doubled each time.
    """

    endpoint: str
    cache: Path
    is_offline: bool
    first_wait_s: float = 1.0


class HubFile(msgspec.Struct, frozen=True, kw_only=True):
    """A `SourceFile` of a commit, which cannot change.

    Attributes:
        client: that serves it.
        commit: that it is of.
        name: in the repository.
        entry: from the commit's list of files; None where it has no such file.
    """

    client: HubClient
    commit: str
    name: str
    entry: HubEntry | None

    @property
    def where(self) -> str:
        """The address, with the commit."""
        return f"{HUB_PREFIX}{self.client.model}@{self.commit}/{self.name}"

    def identity(self) -> FileIdentity:
        """Commit and content id: both name the bytes."""
        entry = self._existing()
        sha256 = None if entry.lfs is None else entry.lfs.oid
        return FileIdentity(size_bytes=entry.size, version=f"{self.commit} {entry.content_id}", sha256=sha256)

    @contextlib.contextmanager
    def open(self) -> Iterator[RangeReader]:
        """The file, to be read by ranges."""
        entry = self._existing()
        yield RangeReader(
            where=self.where,
            identity=self.identity(),
            fetch=lambda offset, end: self.client.range_of(entry, self.commit, offset, end),
        )

    def _existing(self) -> HubEntry:
        if self.entry is None:
            raise NotFound(f"reading {self.where}: the commit has no such file")
        return self.entry


class HubSource:
    """A `Source` over the network: the files of one commit."""

    def __init__(
        self, client: HubClient, *, commit: str, entries: Mapping[str, HubEntry], origin: Origin, file: str | None
    ) -> None:
        self._client = client
        self._commit = commit
        self.entries = entries
        self.origin = origin
        self.single_file = file

    @property
    def where(self) -> str:
        """The address, with the commit."""
        return f"{HUB_PREFIX}{self._client.model}@{self._commit}"

    def names(self) -> tuple[str, ...]:
        """Of the files at the top of the repository, and of the templates."""
        return tuple(sorted(name for name in self.entries if name.rpartition("/")[0] in ("", TEMPLATE_FOLDER)))

    def names_now(self) -> tuple[str, ...]:
        """The same: a commit cannot change."""
        return self.names()

    def names_below(self) -> tuple[str, ...]:
        """Of the files in sub-folders."""
        return tuple(sorted(name for name in self.entries if "/" in name))

    def has(self, name: str) -> bool:
        """Whether the commit has the file."""
        return name in self.entries

    def file(self, name: str) -> HubFile:
        """The file of that name."""
        return HubFile(client=self._client, commit=self._commit, name=name, entry=self.entries.get(name))


def parse_hub_address(address: str, *, single_file_suffixes: tuple[str, ...]) -> HubAddress:
    """The parts of an address.

    Raises:
        UsageError: it is not of the form.
    """
    rest = address.removeprefix(HUB_PREFIX).removeprefix("//")
    file = None
    if rest.endswith(single_file_suffixes):
        rest, _, file = rest.rpartition("/")
    model, at, revision = rest.partition("@")
    if not _MODEL.match(model) or (at and not revision):
        raise UsageError(f"reading {address}: not a model on the Hub", hint="write hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return HubAddress(model=model, revision=revision or MAIN, file=file)


def hub_settings() -> HubSettings:
    """What the environment says. Source: huggingface_hub 2.4.0, constants.py."""
    home = os.environ.get("HF_HOME") or os.path.join(  # noqa: PTH118 - as the library builds it
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return HubSettings(
        endpoint=os.environ.get("HF_ENDPOINT") or "https://huggingface.co",
        cache=Path(os.path.expandvars(cache)).expanduser(),
        is_offline=offline.upper() in ("1", "ON", "YES", "TRUE"),
    )


def open_hub(address: HubAddress, *, settings: HubSettings) -> Source:
    """The release at an address: from the local cache where it has the whole commit, else over the network.

    Raises:
        NotFound: no such model or revision; offline, one that the cache does not have.
        Refused: the model is gated or private.
        ServiceError: the Hub did not answer properly.
    """
    cached = repository_of(address.model, settings.cache)
    if settings.is_offline:
        return _open_offline(address, cached)
    client = HubClient(endpoint=settings.endpoint, model=address.model, first_wait_s=settings.first_wait_s)
    commit = address.revision if is_commit(address.revision) else client.commit_of(address.revision)
    entries = {entry.path: entry for entry in client.tree(commit)}
    needed = {name: entry.size for name, entry in entries.items() if is_read(name)}
    warnings = _about_revision(address, commit)
    if address.file is None and not missing_in(cached.snapshot(commit), needed):
        return open_snapshot(
            cached, commit, path=cached.snapshot(commit), address=_pinned(address, commit), warnings=warnings
        )
    origin = Origin(
        name=address.model.rpartition("/")[2],
        version=commit,
        address=_pinned(address, commit),
        warnings=warnings,
        is_remote=True,
    )
    return HubSource(client, commit=commit, entries=entries, origin=origin, file=address.file)


def _open_offline(address: HubAddress, cached: CachedRepository) -> Source:
    commit = cached.commit_of(address.revision)
    commits = cached.commits()
    if commit is None or commit not in commits:
        known = f"it has the commits {listed(commits)}" if commits else "it has nothing of that model"
        raise NotFound(
            f"reading {HUB_PREFIX}{address.model}@{address.revision} offline: the cache in {cached.folder.parent} does "
            f"not have it; {known}",
            hint=f"unset HF_HUB_OFFLINE, or run `hf download {address.model} --revision {address.revision}` before",
        )
    if address.file is not None:
        raise UsageError(
            f"reading {HUB_PREFIX}{address.model} offline: one file of it is asked for",
            hint=f"give its path: {cached.snapshot(commit) / address.file}",
        )
    warnings = list(_about_revision(address, commit))
    if cached.absent(commit) is None:
        warnings.append(
            "read offline from the local cache, which has no list of the commit's files: whether a tokenizer or "
            "template file is missing cannot be told"
        )
    return open_snapshot(
        cached, commit, path=cached.snapshot(commit), address=_pinned(address, commit), warnings=warnings
    )


def _pinned(address: HubAddress, commit: str) -> str:
    return f"{HUB_PREFIX}{address.model}@{commit}{f'/{address.file}' if address.file is not None else ''}"


def _about_revision(address: HubAddress, commit: str) -> tuple[str, ...]:
    if is_commit(address.revision):
        return ()
    return (
        f"{address.revision!r} can move to another commit at any time; this is {commit}: write "
        f"{_pinned(address, commit)} to mean it later, too",
    )
