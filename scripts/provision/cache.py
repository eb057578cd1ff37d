"""What makes an install trustworthy: recipe digests, manifests with checksums, stage stamps, one at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import cast

from provision.errors import ProvisionError
from provision.progress import Progress

SCHEMA = "kvrelease-provision/1"
CHUNK_BYTES = 1 << 22


class State(Enum):
    """How one install stands."""

    READY = "ready"
    MISSING = "missing"
    OUTDATED = "outdated"
    DAMAGED = "damaged"


def recipe_digest(ingredients: Mapping[str, bytes | str]) -> str:
    """Digest of everything that decides an install's result; the order of the ingredients does not matter.

    Args:
        ingredients: name to value, such as pins, flags, lock files and the source of the recipe.

    Returns:
        `sha256:` and 64 hexadecimal digits, over length-prefixed names and values sorted by name.
    """
    digest = hashlib.sha256(SCHEMA.encode())
    for name in sorted(ingredients):
        value = ingredients[name]
        for part in (name.encode(), value.encode() if isinstance(value, str) else value):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class RecordedFile:
    """One file as it was when its install finished.

    Attributes:
        path: relative to the cache's root.
        size_bytes: its length.
        sha256: 64 hexadecimal digits; None where only the size is watched (shared libraries of several 100 MB).
    """

    path: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The record of one finished install.

    Attributes:
        name: the install target.
        recipe: the recipe digest that made it.
        seconds: how long the making took; of the last run only when it was resumed.
        files: what a later run checks.
        facts: versions, seeds and measurements, for people.
    """

    name: str
    recipe: str
    seconds: float
    files: tuple[RecordedFile, ...]
    facts: Mapping[str, str]


def record_files(root: Path, paths: Sequence[Path], *, hashed: bool) -> tuple[RecordedFile, ...]:
    """Record sizes, and checksums when `hashed`, of files below the cache's root."""
    with ThreadPoolExecutor() as pool:
        sums: list[str | None] = list(pool.map(file_sha256, paths)) if hashed else [None] * len(paths)
    return tuple(
        RecordedFile(path=str(path.relative_to(root)), size_bytes=path.stat().st_size, sha256=sha256)
        for path, sha256 in zip(paths, sums, strict=True)
    )


def damage(root: Path, files: Sequence[RecordedFile], *, read_contents: bool) -> tuple[str, ...]:
    """Say which recorded files are no longer what they were.

    Args:
        root: the cache's root.
        files: the manifest's records.
        read_contents: also compare checksums; False compares existence and size only.

    Returns:
        One sentence per damaged file; empty when all is well.
    """

    def finding(record: RecordedFile) -> str | None:
        path = root / record.path
        if not path.is_file():
            return f"{record.path} is missing"
        size_bytes = path.stat().st_size
        if size_bytes != record.size_bytes:
            return f"{record.path} has {size_bytes} bytes, recorded were {record.size_bytes}"
        if read_contents and record.sha256 is not None:
            found = file_sha256(path)
            if found != record.sha256:
                return f"{record.path} has SHA-256 {found[:12]}…, recorded was {record.sha256[:12]}…"
        return None

    with ThreadPoolExecutor() as pool:
        return tuple(found for found in pool.map(finding, files) if found is not None)


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old text or the new one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `NAME.json`; being the last step of an install, it is what makes the install count."""
    document = {
        "schema": SCHEMA,
        "name": manifest.name,
        "recipe": manifest.recipe,
        "seconds": round(manifest.seconds, 1),
        "facts": dict(manifest.facts),
        "files": [{"path": f.path, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in manifest.files],
    }
    write_atomically(folder / f"{manifest.name}.json", json.dumps(document, indent=1) + "\n")


def read_manifest(folder: Path, name: str) -> Manifest | None:
    """The manifest of a finished install; None when there is none, or when it cannot be read as one."""
    try:
        document = json.loads((folder / f"{name}.json").read_text())
        if document["schema"] != SCHEMA:
            return None
        return Manifest(
            name=str(document["name"]),
            recipe=str(document["recipe"]),
            seconds=float(document["seconds"]),
            files=tuple(
                RecordedFile(
                    path=str(f["path"]),
                    size_bytes=int(f["size_bytes"]),
                    sha256=None if f["sha256"] is None else str(f["sha256"]),
                )
                for f in document["files"]
            ),
            facts={str(k): str(v) for k, v in cast("dict[object, object]", document["facts"]).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # an unreadable record is no record: the target counts as missing and is made again


def judge(root: Path, manifest: Manifest | None, *, recipe: str, read_contents: bool) -> tuple[State, tuple[str, ...]]:
    """Say how an install stands against the recipe of today, with the reasons."""
    if manifest is None:
        return State.MISSING, ()
    if manifest.recipe != recipe:
        return State.OUTDATED, (f"made by recipe {manifest.recipe[7:19]}, now it is {recipe[7:19]}",)
    findings = damage(root, manifest.files, read_contents=read_contents)
    return (State.DAMAGED, findings) if findings else (State.READY, ())


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """Which stages of an unfinished install are done, bound to the recipe that did them.

    Attributes:
        folder: where the stamps lie.
        recipe: a stamp of any other recipe does not count.
    """

    folder: Path
    recipe: str

    def is_done(self, stage: str) -> bool:
        """Whether `stage` finished under this recipe."""
        try:
            return (self.folder / f"{stage}.done").read_text() == self.recipe
        except OSError:
            return False

    def mark(self, stage: str) -> None:
        """Remember that `stage` finished."""
        write_atomically(self.folder / f"{stage}.done", self.recipe)


@contextmanager
def sole_installer(lock: Path, *, progress: Progress, poll_s: float = 1.0) -> Iterator[None]:
    """Hold the cache's lock, waiting for another installer to finish.

    The kernel drops the lock when its holder dies, so a killed run blocks nobody.

    Raises:
        ProvisionError: the lock file cannot be opened.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a+")
    except OSError as error:
        raise ProvisionError(
            f"Tried to open {lock}: {error.strerror}", hint="Set KVRELEASE_CACHE to a folder that you can write"
        ) from error
    with file:
        said_s = float("-inf")
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said_s >= progress.heartbeat_s:
                    file.seek(0)
                    progress.stage(f"waiting for another install (process {file.read().strip() or 'unknown'})")
                    said_s = time.monotonic()
                time.sleep(poll_s)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
