"""A release in a directory of this machine, network file systems included.

Ranges are read with preadv, never mapped: a page fault on a network file system is a SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from kvrelease.absent import next_step
from kvrelease.errors import InputError, NotFound
from kvrelease.release.source import MAX_FILES_BELOW, TEMPLATE_FOLDER, FileIdentity, Origin

# Measured on a warm page cache, 512 MiB: 0.18 s at 1 MiB, 0.23 s at 64 KiB (system calls) and at 8 MiB (the buffer no
# longer stays in the CPU's cache between read and hash).
CHUNK_BYTES = 1024 * 1024


class LocalFile(msgspec.Struct, frozen=True, kw_only=True):
    """A `SourceFile` of a file system.

    Attributes:
        path: where it lies.
        name: relative to the release.
    """

    path: Path
    name: str

    @property
    def where(self) -> str:
        """The path."""
        return str(self.path)

    def identity(self) -> FileIdentity:
        """Of the regular file that lies there now, links followed."""
        try:
            status = self.path.stat()
        except OSError as error:
            if is_link(self.path):
                raise NotFound(
                    f"reading {self.where}: it is a link to {str(self.path.readlink())!r}, which does not exist",
                    hint="the download is incomplete: run it again",
                ) from error
            raise translate(error, self.where) from error
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"reading {self.where}: not a regular file")
        return identity_of(status)

    @contextlib.contextmanager
    def open(self) -> Iterator[LocalReader]:
        """The open file."""
        self.identity()  # opening a pipe would wait for its writer
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise translate(error, self.where) from error
        try:
            yield LocalReader(where=self.where, descriptor=descriptor, identity=identity_of(os.fstat(descriptor)))
        finally:
            os.close(descriptor)


class LocalReader(msgspec.Struct, frozen=True, kw_only=True):
    """A `Reader` of an open descriptor, which is not its own."""

    where: str
    descriptor: int
    identity: FileIdentity
    chunk_bytes: int = CHUNK_BYTES

    def read_into(self, view: memoryview, offset: int) -> int:
        """Reads with preadv, which moves no shared position."""
        try:
            return os.preadv(self.descriptor, [view], offset)
        except OSError as error:
            raise InputError(f"reading {self.where} at byte {offset}: {error.strerror or error}") from error

    def read_blocks(self, offsets: Sequence[int], size_bytes: int) -> list[bytes]:
        """Reads with pread."""
        pread, descriptor = os.pread, self.descriptor
        try:
            return [pread(descriptor, size_bytes, offset) for offset in offsets]
        except OSError as error:
            raise InputError(f"reading {self.where}: {error.strerror or error}") from error


class LocalSource:
    """A `Source`: a model directory, or one weight file and what lies beside it."""

    def __init__(self, directory: Path, *, origin: Origin, single_file: str | None = None) -> None:
        self.directory = directory
        self.origin = origin
        self.single_file = single_file

    @property
    def where(self) -> str:
        """The directory, as the user wrote it."""
        return str(self.directory)

    def names(self) -> tuple[str, ...]:
        """Of everything that is no directory."""
        return self._names

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return self.names_now()

    def names_now(self) -> tuple[str, ...]:
        """Of what is there at this moment."""
        names = _entries(self.directory)
        templates = self.directory / TEMPLATE_FOLDER
        if templates.is_dir():
            names += [f"{TEMPLATE_FOLDER}/{name}" for name in _entries(templates)]
        return tuple(sorted(names))

    def names_below(self) -> tuple[str, ...]:
        """Of the files in sub-folders; links are followed, and none twice."""
        found: list[str] = []
        seen = set()
        for folder, folders, files in os.walk(self.directory, followlinks=True, onerror=_refuse):
            try:
                status = Path(folder).stat()
            except OSError as error:
                raise translate(error, folder) from error
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            place = Path(folder).relative_to(self.directory)
            found += [(place / file).as_posix() for file in files if place.parts]
            if len(found) > MAX_FILES_BELOW:
                break
        return tuple(sorted(found))

    def has(self, name: str) -> bool:
        """Whether the path leads to anything."""
        return path_exists(self.directory / name)

    def file(self, name: str) -> LocalFile:
        """The file of that name."""
        return LocalFile(path=self.directory / name, name=name)


def open_directory(directory: Path) -> LocalSource:
    """The model in a directory."""
    origin = Origin(name=directory.resolve().name, version=None, address=str(directory))
    return LocalSource(directory, origin=origin)


def open_single_file(path: Path) -> LocalSource:
    """One weight file, and the configuration and tokenizer that lie beside it."""
    origin = Origin(name=path.stem, version=None, address=str(path))
    return LocalSource(path.parent, origin=origin, single_file=path.name)


def identity_of(status: os.stat_result) -> FileIdentity:
    """The identity in a stat result."""
    version = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}:{status.st_ctime_ns}"
    # Some file systems in user space have no times, or no inodes, and say zero.
    has_clock = min(status.st_ino, status.st_mtime_ns, status.st_ctime_ns) > 0
    changed_ns = max(status.st_mtime_ns, status.st_ctime_ns) if has_clock else None
    return FileIdentity(size_bytes=status.st_size, version=version, changed_ns=changed_ns)


def is_link(path: Path) -> bool:
    """Whether it is a link, which may lead nowhere."""
    try:
        return path.is_symlink()
    except OSError:  # a name that no file system could hold, a directory that may not be searched
        return False


def path_exists(path: Path) -> bool:
    """Whether a path leads to anything; one that no file system could hold does not.

    Raises:
        InputError: that cannot be told, such as in a directory that may not be searched.
    """
    try:
        return path.exists()
    except OSError as error:
        refusal = translate(error, str(path))
        if isinstance(refusal, NotFound):
            return False
        raise refusal from error


def translate(error: OSError, where: str) -> InputError:
    """The operating system's refusal as an error of ours."""
    is_absent = isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ENAMETOOLONG
    reason = f"reading {where}: {error.strerror or error}"
    return NotFound(reason, hint=next_step(Path(where))) if is_absent else InputError(reason)


def _refuse(error: OSError) -> None:
    raise translate(error, str(error.filename)) from error


def _entries(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if not entry.is_dir()]
    except OSError as error:
        raise translate(error, str(directory)) from error
