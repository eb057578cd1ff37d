"""Stamps on disk: read and written within one open directory, whose links are never followed.

A directory is opened once, and everything is done relative to it, so that nobody who swaps a name meanwhile leads the
stamp elsewhere. A new stamp is linked into place, which fails where one appeared meanwhile: of two that stamp one store
for two namespaces, one is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvrelease import artifacts
from kvrelease.absent import next_step
from kvrelease.errors import DamagedFile, InputError, NotFound, UsageError
from kvrelease.stores.stamp import (
    DIRECTORY_STAMP,
    FILE_SUFFIX,
    Permission,
    Stamp,
    StampedFile,
    required_stamp,
)

_MAX_BYTES = 1 << 20  # a stamp takes about 600 bytes
_CHUNK_BYTES = 1 << 20
_TEMPORARY = f"{DIRECTORY_STAMP}.tmp-"
_OF_VOLUMES = "lost+found"  # in the root of every ext4 volume
_ATTEMPTS = 3  # of two that stamp one store at once, the second finds the first one's stamp
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class StampPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the stamp of a store lies.

    Attributes:
        shown: the store, as the user wrote it.
        directory: that holds the stamp.
        name: of the stamp in it.
        file: name of the one file that is stamped; None for the directory.
    """

    shown: str
    directory: Path
    name: str
    file: str | None


def stamp_place(what: str) -> StampPlace:
    """The place of a store's stamp: in a directory, beside a file.

    Raises:
        UsageError: it is no place on a file system.
        NotFound: nothing is there.
    """
    if "://" in what:
        scheme = what.partition("://")[0]
        raise UsageError(
            f"stamping {scheme}://…: directories and files are stamped, other stores are not yet",
            hint="give each namespace a prefix of its own there (kvrelease namespace RELEASE --engine KIND)",
        )
    path = Path(what)
    if path.is_dir():
        return StampPlace(shown=what, directory=path, name=DIRECTORY_STAMP, file=None)
    if not path.is_symlink() and path.is_file():
        return StampPlace(shown=what, directory=path.parent, name=path.name + FILE_SUFFIX, file=path.name)
    if path.is_symlink() or path.exists():
        raise InputError(
            f"stamping {what}: it is neither a directory nor a file", hint="name what it leads to, if it is a link"
        )
    raise NotFound(f"stamping {what}: nothing is there", hint=f"mkdir -p {shlex.quote(what)}, or {next_step(path)}")


def read_stamp(place: StampPlace) -> tuple[Stamp | None, StampedFile | None]:
    """The stamp of a store, None where it has none, and of a file what it holds now.

    Raises:
        DamagedFile: the stamp is no stamp, or a link.
        InputError: it cannot be read.
    """
    with _opened(place) as directory:
        return _stamp_in(directory, place), _file_in(directory, place)


def write_stamp(place: StampPlace, wanted: Stamp, *, permission: Permission) -> tuple[Stamp, bool]:
    """Stamps a store: the stamp that is there now, and whether it was written now.

    Raises:
        InputError: it may not be stamped (`required_stamp`), or cannot be written to.
    """
    with _opened(place) as directory:
        wanted = msgspec.structs.replace(wanted, file=_file_in(directory, place))
        for _ in range(_ATTEMPTS):
            found = _stamp_in(directory, place)
            new = required_stamp(
                wanted,
                found=found,
                has_entries=place.file is None and _has_entries(directory, place),
                permission=permission,
                place=place.shown,
            )
            if new is None:
                assert found is not None, "only a stamp that is there needs no other"
                return found, False
            if _put(directory, place, new, replaces=found is not None):
                return new, True
    raise InputError(
        f"stamping {place.shown}: another process goes on stamping it", hint="let one process stamp a store"
    )


@contextlib.contextmanager
def _opened(place: StampPlace) -> Iterator[int]:
    try:
        directory = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"opening {place.directory}: {error.strerror or error}") from error
    try:
        yield directory
    finally:
        os.close(directory)


def _opened_file(directory: int, name: str, *, shown: str) -> int | None:
    """A regular file of a directory, open; None where there is none.

    Raises:
        DamagedFile: it is a link, a directory or a device.
        InputError: it cannot be opened.
    """
    try:
        # A pipe that nobody writes to would be waited for.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedFile(f"reading {name} of {shown}: it is a link, and may lead anywhere") from error
        raise InputError(f"reading {name} of {shown}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DamagedFile(f"reading {name} of {shown}: it is no file")
    return handle


def _stamp_in(directory: int, place: StampPlace) -> Stamp | None:
    handle = _opened_file(directory, place.name, shown=place.shown)
    if handle is None:
        return None
    with os.fdopen(handle, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise DamagedFile(f"reading the stamp of {place.shown}: more than {_MAX_BYTES} bytes, which no stamp has")
    return artifacts.from_json(
        data, Stamp, source=f"the stamp of {place.shown}", hint="look who wrote it; without a stamp nothing is promised"
    )


def _file_in(directory: int, place: StampPlace) -> StampedFile | None:
    """What the stamped file holds now; None for a directory."""
    if place.file is None:
        return None
    handle = _opened_file(directory, place.file, shown=place.shown)
    if handle is None:
        raise NotFound(f"reading {place.shown}: it is gone")
    digest, size = hashlib.sha256(), 0
    with os.fdopen(handle, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return StampedFile(name=place.file, size_bytes=size, sha256=digest.hexdigest())


def _has_entries(directory: int, place: StampPlace) -> bool:
    """Whether a directory holds anything but its stamp, what an interrupted stamping left, and a volume's own."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise InputError(f"listing {place.shown}: {error.strerror or error}") from error
    return any(name not in (place.name, _OF_VOLUMES) and not name.startswith(_TEMPORARY) for name in names)


def _put(directory: int, place: StampPlace, stamp: Stamp, *, replaces: bool) -> bool:
    """Puts a stamp in its place, whole or not at all; False where one appeared meanwhile.

    Raises:
        InputError: the directory cannot be written to.
    """
    data = artifacts.to_json(stamp).encode()
    temporary = f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=directory), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            os.replace(temporary, place.name, src_dir_fd=directory, dst_dir_fd=directory)
        elif not _linked(directory, temporary, place.name):
            return False
        with contextlib.suppress(OSError):  # the stamp is there; some file systems cannot sync a directory
            os.fsync(directory)
    except OSError as error:
        raise InputError(
            f"stamping {place.shown}: {error.strerror or error}; it is left as it was",
            hint="stamp it as a user who may write there, on a volume that is not mounted read-only",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
    return True


def _linked(directory: int, temporary: str, name: str) -> bool:
    """Gives a file its name, unless that is taken."""
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links (FUSE, some network mounts): the name is taken first, and then replaced.
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory))
        except FileExistsError:
            return False
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    return True
