"""The Hub's cache on this machine: `models--org--name` with its refs, its snapshots, and what it knows of a commit.

A snapshot is a directory of links to blobs, or of plain files where the system has no links; both are read like any
other directory. Source: huggingface_hub 2.4.0, file_download.py (`repo_folder_name`, `try_to_load_from_cache`) and
_tree_cache.py (`trees/<commit>.json`, format 1).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from kvrelease.errors import DamagedFile, NotFound
from kvrelease.printable import listed
from kvrelease.release.local_source import LocalFile, LocalSource
from kvrelease.release.read_files import is_read
from kvrelease.release.small_files import read_bytes, read_text
from kvrelease.release.source import Origin
from kvrelease.release.weights import WEIGHT_SUFFIXES

MAIN = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_REPOSITORY_PREFIX = "models--"
_MAX_REF_BYTES = 1024


class CachedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a commit as the cache's own listing has it."""

    size: int


class _Tree(msgspec.Struct, frozen=True, kw_only=True):
    files: dict[str, CachedFile]


class CachedRepository(msgspec.Struct, frozen=True, kw_only=True):
    """One `models--org--name` folder, which need not exist.

    Attributes:
        folder: of the repository.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Short name of the model."""
        return self.folder.name.removeprefix(_REPOSITORY_PREFIX).rpartition("--")[2]

    def commits(self) -> list[str]:
        """Of which there are snapshots, sorted."""
        snapshots = self.folder / "snapshots"
        return sorted(path.name for path in snapshots.iterdir() if path.is_dir()) if snapshots.is_dir() else []

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch, tag or commit stood for when it was downloaded last; None when unknown."""
        if revision in self.commits():
            return revision
        path = self.folder / "refs" / revision
        if ".." in Path(revision).parts or not path.is_file():
            return None
        commit = read_text(LocalFile(path=path, name=revision), limit_bytes=_MAX_REF_BYTES).strip()
        if not commit or Path(commit).name != commit:
            raise DamagedFile(f"reading {path}: {commit!r} is no commit", hint="download the model again")
        return commit

    def snapshot(self, commit: str) -> Path:
        """Where a commit's files lie."""
        return self.folder / "snapshots" / commit

    def absent(self, commit: str) -> list[str] | None:
        """Files of a commit that a fingerprint reads and the snapshot lacks; None where the cache has no listing."""
        path = self.folder / "trees" / f"{commit}.json"
        if not path.is_file():
            return None
        try:
            tree = msgspec.json.decode(read_bytes(LocalFile(path=path, name=path.name)), type=_Tree)
        except msgspec.MsgspecError as error:
            raise DamagedFile(
                f"reading {path}: not the listing of a commit: {error}", hint="remove it; it is fetched again"
            ) from error
        wanted = [name for name in tree.files if is_read(name) and not name.endswith(WEIGHT_SUFFIXES)]
        return missing_in(self.snapshot(commit), {name: tree.files[name].size for name in wanted})


def is_commit(revision: str) -> bool:
    """Whether a revision can never stand for other files: a full commit id."""
    return _COMMIT.match(revision) is not None


def missing_in(directory: Path, sizes: Mapping[str, int]) -> list[str]:
    """Names that are absent from a directory, or there with another size; sorted."""
    return sorted(name for name, size in sizes.items() if not _has_size(directory / name, size))


def repository_of(model: str, cache: Path) -> CachedRepository:
    """The folder of `org/name` in a cache."""
    return CachedRepository(folder=cache / (_REPOSITORY_PREFIX + model.replace("/", "--")))


def open_in_cache(path: Path) -> LocalSource | None:
    """The snapshot that a path means: a snapshot itself, or a repository's folder; None for any other directory.

    Raises:
        NotFound: a repository's folder without a snapshot, or with several and no `main`.
    """
    resolved = path.resolve()
    if resolved.name.startswith(_REPOSITORY_PREFIX) and (resolved / "snapshots").is_dir():
        return _open_repository(path, CachedRepository(folder=resolved))
    repository = CachedRepository(folder=resolved.parent.parent)
    if resolved.parent.name == "snapshots" and repository.folder.name.startswith(_REPOSITORY_PREFIX):
        return open_snapshot(repository, resolved.name, path=path, address=str(path))
    return None


def open_snapshot(
    repository: CachedRepository, commit: str, *, path: Path, address: str, warnings: Collection[str] = ()
) -> LocalSource:
    """A snapshot as a source, with a warning where it lacks files of its commit.

    Args:
        repository: that it belongs to.
        commit: of the snapshot.
        path: the snapshot's directory, as messages name it.
        address: as the report names it.
        warnings: what is to be said beside.
    """
    absent = repository.absent(commit)
    notes = list(warnings)
    if absent:
        notes.append(
            f"the snapshot lacks {len(absent)} files of its commit: {listed(absent)}; the digests are those of what is "
            "there"
        )
    origin = Origin(name=repository.name, version=commit, address=address, warnings=tuple(notes))
    return LocalSource(path, origin=origin)


def _open_repository(path: Path, repository: CachedRepository) -> LocalSource:
    commits = repository.commits()
    main = repository.commit_of(MAIN)
    if main is None and len(commits) != 1:
        raise NotFound(
            f"reading {path}: it holds {len(commits)} snapshots of a model and no {MAIN!r}"
            + (f": {listed(commits)}" if commits else ""),
            hint=f"give one of them: {path / 'snapshots' / 'COMMIT'}" if commits else "download the model again",
        )
    commit = main or commits[0]
    if commit not in commits:
        raise NotFound(
            f"reading {path}: {MAIN!r} is commit {commit}, of which there is no snapshot",
            hint="the download is incomplete: run it again",
        )
    others = [other for other in commits if other != commit]
    warnings = []
    if others:
        warnings.append(
            f"read the snapshot of {MAIN!r}, commit {commit}; other snapshots lie beside it: {listed(others)}"
        )
    return open_snapshot(repository, commit, path=path / "snapshots" / commit, address=str(path), warnings=warnings)


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False
