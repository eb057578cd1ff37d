"""What was hashed before: the contents of files that have not been written to since.

One entry for each weight file lies in the user's cache directory. It holds for a file of the same path, size, device,
inode and times of last change. That is weaker than hashing, and this is how far it goes:

- Those times are the kernel's own on some file systems only (mounts.py): elsewhere nothing is remembered, and an entry
  holds for one boot, one file system and one disk in the drive.
- A write within one tick of the file system's clock after we looked would leave the times as they were (git calls such
  an entry racily clean). So a file is remembered only if it was older than `SETTLED_NS` when we first looked: a later
  write then gets a later time.
- Programs can set the modification time back (`cp -p`, `rsync -a`), but not the time of the inode's change, which
  counts too; only a clock that was set back, or a write to the device beneath the file system, defeats it.
- A file that stays mapped and is written through the mapping may get its new times late.

So whatever decides for others (`--publish`, `--check`) never uses it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from blake3 import blake3

from kvrelease.release.algorithm import FAST_ALGORITHM, FULL_ALGORITHM
from kvrelease.release.hashing import Payload
from kvrelease.release.local_source import LocalFile
from kvrelease.release.mounts import Mounts
from kvrelease.release.weights import WeightFile

logger = logging.getLogger(__name__)

# Five times the coarsest clock in use (FAT: two seconds), so that the clock of a file server may be eight behind ours.
SETTLED_NS = 10 * 1_000_000_000
# Room for a dozen releases of 92,000 tensors, and for thousands of ordinary ones.
MAX_TOTAL_BYTES = 256 * 1024 * 1024
_MAX_ENTRY_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 4096  # what a small file takes on disk
_CHECKSUM_BYTES = 32
_SUFFIX = ".memo"
_DERIVED_SUFFIX = ".derived"
# Below, hashing anew takes a second at most, and nobody need be told why.
NOTED_BYTES = 1024**3


class _Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of one tensor."""

    name: str
    digest: bytes
    sample: bytes
    is_zero: bool


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One file; written as an array, so the order of the fields is the format, and `algorithms` names it."""

    algorithms: tuple[str, str]
    path: bytes
    size_bytes: int
    version: str
    ground: str
    tensors: tuple[_Remembered, ...]


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file lies, and its entry."""

    entry: Path
    path: bytes
    ground: str


_ALGORITHMS = (FULL_ALGORITHM, FAST_ALGORITHM)


def default_directory() -> Path | None:
    """A place for each user below `$XDG_CACHE_HOME` or `~/.cache`; None for a user without a home.

    Users may share a cache directory (a CI runner that is root in one job and not in the next), and nobody believes
    another's entries.
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        return None
    return Path(cache).absolute() / "kvrelease" / "memo" / str(os.geteuid())


class Memo:
    """Entries in one directory. Nothing that is wrong with it is an error: what it cannot tell is hashed."""

    def __init__(
        self,
        directory: Path,
        *,
        max_total_bytes: int = MAX_TOTAL_BYTES,
        settled_ns: int = SETTLED_NS,
        mounts: Mounts | None = None,
    ) -> None:
        self.directory = directory
        self._mounts = Mounts() if mounts is None else mounts
        self._undated: dict[str, tuple[str, int]] = {}  # path -> kind of file system, bytes of tensors
        self._told: set[str] = set()
        self._max_total_bytes = max_total_bytes
        self._settled_ns = settled_ns

    def recall(self, file: WeightFile) -> tuple[Payload, ...] | None:
        """The contents of a file's tensors, in their order; None where they are not known for sure."""
        place = self._place_of(file)
        if place is None or (data := self._read(place.entry)) is None:
            return None
        entry = self._parse(place.entry, data)
        if entry is None:
            return None
        is_of_file = (entry.path, entry.size_bytes, entry.version, entry.ground) == (
            place.path,
            file.identity.size_bytes,
            file.identity.version,
            place.ground,
        )
        names = tuple(tensor.name for tensor in file.tensors)
        if not is_of_file or names != tuple(tensor.name for tensor in entry.tensors):
            return None
        with contextlib.suppress(OSError):
            os.utime(place.entry)  # what was used last is thrown away last
        return tuple(
            Payload(digest=tensor.digest.hex(), sample=tensor.sample.hex(), is_zero=tensor.is_zero)
            for tensor in entry.tensors
        )

    def remember(self, file: WeightFile, payloads: Sequence[Payload], *, seen_ns: int) -> None:
        """Keeps the contents of a file, if it was left alone for long enough before.

        Args:
            file: which was proved unchanged after its bytes were read.
            payloads: of its tensors, in their order.
            seen_ns: our clock before the file was first looked at, ns since the epoch.
        """
        place, changed_ns = self._place_of(file), file.identity.changed_ns
        if place is None or changed_ns is None or changed_ns > seen_ns - self._settled_ns:
            return
        entry = _Entry(
            algorithms=_ALGORITHMS,
            path=place.path,
            size_bytes=file.identity.size_bytes,
            version=file.identity.version,
            ground=place.ground,
            tensors=tuple(
                _Remembered(
                    name=tensor.name,
                    digest=bytes.fromhex(payload.digest),
                    sample=bytes.fromhex(payload.sample),
                    is_zero=payload.is_zero,
                )
                for tensor, payload in zip(file.tensors, payloads, strict=True)
            ),
        )
        body = msgspec.msgpack.encode(entry)
        if len(body) <= _MAX_ENTRY_BYTES:
            self._write(place.entry, blake3(body).digest() + body)

    def note(self) -> str | None:
        """Why much is hashed anew in every run, for the user; None where nothing is, or little."""
        size_bytes = sum(size for _, size in self._undated.values())
        if size_bytes < NOTED_BYTES:
            return None
        kinds = ", ".join(sorted({kind for kind, _ in self._undated.values()}))
        return (
            f"nothing is remembered of the {size_bytes / 1e9:,.1f} GB on {kinds}, where "
            "times do not prove that a file is unchanged: they are hashed in every run; a fingerprint that was saved "
            "with --output can be given instead of the files"
        )

    def recall_derived(self, key: str) -> bytes | None:
        """What was derived before from the content that a key names; None where it is not known.

        Args:
            key: a digest of everything that it was derived from, and the names of how.
        """
        data = self._read(self._derived_path(key))
        if data is None or blake3(data[_CHECKSUM_BYTES:]).digest() != data[:_CHECKSUM_BYTES]:
            return None
        return data[_CHECKSUM_BYTES:]

    def remember_derived(self, key: str, body: bytes) -> None:
        """Keeps what was derived from the content that a key names; it holds wherever that content lies."""
        if len(body) <= _MAX_ENTRY_BYTES:
            self._write(self._derived_path(key), blake3(body).digest() + body)

    def prune(self) -> None:
        """Throws away what was not used for longest, until the rest has room."""
        try:
            with os.scandir(self.directory) as entries:
                found = [(entry.stat(follow_symlinks=False), Path(entry.path)) for entry in entries]
            by_age = sorted((status.st_mtime_ns, max(status.st_size, _BLOCK_BYTES), path) for status, path in found)
            total = sum(size for _, size, _ in by_age)
            for _, size, path in by_age:
                if total <= self._max_total_bytes:
                    break
                path.unlink(missing_ok=True)
                total -= size
        except OSError as error:  # another process throws away at the same time, or there is no such directory
            logger.info("the memo in %s was not tidied: %s", self.directory, error.strerror or error)

    def _place_of(self, file: WeightFile) -> _Place | None:
        """Where a file and its entry lie; None for a file whose changes cannot be told from its times."""
        if not isinstance(file.file, LocalFile):
            return None
        ground = self._mounts.ground_of(file.file.path)
        if ground.version is None or file.identity.changed_ns is None:
            self._undated[file.file.where] = (ground.kind, sum(tensor.size_bytes for tensor in file.tensors))
            return None
        # The real path, which two snapshots of a Hub cache share.
        path = os.path.realpath(os.fsencode(file.file.path))
        entry = self.directory / f"{blake3(path).hexdigest()}{_SUFFIX}"
        return _Place(entry=entry, path=path, ground=ground.version)

    def _ignoring(self, path: Path, why: str) -> None:
        """Tells once why an entry is ignored: there may be one for each of hundreds of shards."""
        level = logging.INFO if why in self._told else logging.WARNING
        self._told.add(why)
        logger.log(level, "ignoring the memo %s: %s", path, why)

    def _derived_path(self, key: str) -> Path:
        return self.directory / f"{blake3(key.encode()).hexdigest()}{_DERIVED_SUFFIX}"

    def _read(self, path: Path) -> bytes | None:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    self._ignoring(path, "somebody else may have written it")
                    return None
                return file.read(_MAX_ENTRY_BYTES + _CHECKSUM_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._ignoring(path, error.strerror or str(error))
            return None

    def _parse(self, path: Path, data: bytes) -> _Entry | None:
        body = data[_CHECKSUM_BYTES:]
        if len(body) <= _MAX_ENTRY_BYTES and blake3(body).digest() == data[:_CHECKSUM_BYTES]:
            with contextlib.suppress(msgspec.MsgspecError):
                entry = msgspec.msgpack.decode(body, type=_Entry)
                return entry if entry.algorithms == _ALGORITHMS else None
        self._ignoring(path, "it is damaged; the file is hashed again")
        return None

    def _write(self, path: Path, data: bytes) -> None:
        """Puts an entry in its place at once; where that is not possible, the next run hashes again."""
        temporary: str | None = None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".", suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
            temporary = None
        except OSError as error:
            logger.info("nothing is remembered in %s: %s", self.directory, error.strerror or error)
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
