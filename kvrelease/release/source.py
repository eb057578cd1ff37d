"""Where the files of a release lie: one shape for a directory, an object store and the Hub.

Readers of formats know this module only; who serves the bytes is the business of the implementations, which
`address.open_source` chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

# The one sub-folder whose files count beside those of the release itself (tokenizer.py); an index may name others.
TEMPLATE_FOLDER = "additional_chat_templates"
# More files than these in sub-folders belong to no release; they are not listed to the end.
MAX_FILES_BELOW = 10_000
_CHUNK_BYTES = 1024 * 1024
# What addresses of models on the Hub begin with.
HUB_PREFIX = "hf:"


class FileIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What changes when somebody writes to a file or puts another in its place.

    Attributes:
        size_bytes: of the file.
        version: opaque, compared whole: device, inode and times of a local file, an entity tag, an object id.
        sha256: of the whole file, hex, where the place states it; None elsewhere.
        changed_ns: when content or inode last changed, ns since the epoch, by the clock of the file system; None where
            there is no such clock, so that only reading the file tells whether it changed.
    """

    size_bytes: int
    version: str
    sha256: str | None = None
    changed_ns: int | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a source says about the release as a whole.

    Attributes:
        name: short name of the release.
        version: that the place itself gives (a commit); None where it gives none.
        address: where it was read: as the user wrote it, a mutable name pinned.
        warnings: what an operator should know about the place.
        is_remote: reading waits for answers more than it computes.
    """

    name: str
    version: str | None
    address: str
    warnings: tuple[str, ...] = ()
    is_remote: bool = False


class Reader(Protocol):
    """An open file, for positional reads by several threads at once."""

    @property
    def identity(self) -> FileIdentity:
        """Of what was opened, which may be another file than lies there by now."""
        ...

    @property
    def chunk_bytes(self) -> int:
        """What one read should ask for at most: a thread's memory, and the bytes that pay for one round trip."""
        ...

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fills the front of `view` with what lies at `offset`; returns the number of bytes, 0 where the file ends.

        Raises:
            InputError: the device failed, or the file changed.
            ServiceError: the store did not answer properly.
        """
        ...

    def read_blocks(self, offsets: Sequence[int], size_bytes: int) -> list[bytes]:
        """What lies at each offset, `size_bytes` of it, or less where the file ends or the place gives less at once.

        One call for many small reads, which are most of the work of reading samples.

        Raises:
            InputError: the device failed, or the file changed.
            ServiceError: the store did not answer properly.
        """
        ...


class SourceFile(Protocol):
    """One file of a release, not opened yet."""

    @property
    def name(self) -> str:
        """Relative to the release, with `/` between folders."""
        ...

    @property
    def where(self) -> str:
        """How messages name it."""
        ...

    def identity(self) -> FileIdentity:
        """Of what lies there now, asked anew each time; links followed.

        Raises:
            NotFound: no such file, or a link that leads nowhere.
            InputError: it cannot be read, or it is a directory, pipe or device.
            ServiceError: the store did not answer properly.
        """
        ...

    def open(self) -> AbstractContextManager[Reader]:
        """The open file, closed on the way out.

        Raises:
            NotFound: no such file, or a link that leads nowhere.
            InputError: it cannot be read, or it is a directory, pipe or device.
            ServiceError: the store did not answer properly.
        """
        ...


class Source(Protocol):
    """The files of one release."""

    @property
    def where(self) -> str:
        """How messages name the place."""
        ...

    @property
    def origin(self) -> Origin:
        """What the place says about the release."""
        ...

    @property
    def single_file(self) -> str | None:
        """The one weight file that was asked for; None for whatever an engine would load."""
        ...

    def names(self) -> Sequence[str]:
        """Names of the files, sorted: of the release itself and of `TEMPLATE_FOLDER`; listed once.

        Links that lead nowhere are among them: reading such a file is an error, never a file less.

        Raises:
            InputError: the place cannot be listed.
            ServiceError: the store did not answer properly.
        """
        ...

    def names_now(self) -> Sequence[str]:
        """The same, listed anew; where the place cannot change, what it listed before.

        Raises:
            InputError: the place cannot be listed any more.
            ServiceError: the store did not answer properly.
        """
        ...

    def names_below(self) -> Sequence[str]:
        """Names of the files in all sub-folders, sorted; of very many only so many that it shows (elsewhere.py).

        Raises:
            InputError: the place cannot be listed.
            ServiceError: the store did not answer properly.
        """
        ...

    def has(self, name: str) -> bool:
        """Whether something readable lies there, in whatever sub-folder; links followed."""
        ...

    def file(self, name: str) -> SourceFile:
        """The file of that name, which need not exist. The caller answers for a name that leaves the release."""
        ...


def read_chunks(reader: Reader) -> Iterator[bytearray]:
    """All bytes of an open file, in order and in pieces of bounded size.

    Raises:
        InputError: the device failed, or the file changed.
        ServiceError: the store did not answer properly.
    """
    offset = 0
    while chunk := read_range(reader, offset, _CHUNK_BYTES):
        yield chunk
        offset += len(chunk)


def read_range(reader: Reader, offset: int, size_bytes: int) -> bytearray:
    """The bytes of a range, fewer where the file ends before.

    Args:
        reader: an open file.
        offset: of the first byte.
        size_bytes: bounded by the caller.

    Raises:
        InputError: the device failed, or the file changed.
        ServiceError: the store did not answer properly.
    """
    data = bytearray(size_bytes)
    filled = 0
    with memoryview(data) as view:
        while filled < size_bytes:
            count = reader.read_into(view[filled:], offset + filled)
            if count == 0:
                break
            filled += count
    del data[filled:]
    return data
