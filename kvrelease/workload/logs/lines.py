"""A log's file, opened and read line by line: one line in memory, gzip undone, lengths bounded."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvrelease.absent import next_step
from kvrelease.errors import DamagedFile, InputError, NotFound, TrafficLogError
from kvrelease.progress import Progress, ProgressEvent, silent

# A request with several pictures inline is about 20 MB; what is longer is no line of a log.
MAX_LINE_BYTES = 32 * 1024 * 1024
PROGRESS_BYTES = 8 * 1024 * 1024  # between two events
_BUFFER_BYTES = 1024 * 1024
_GZIP = b"\x1f\x8b"
# First bytes of what people hand over by mistake, and what undoes it.
_OTHERS = (
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "zstd -d"),
    (b"BZh", "bzip2-compressed", "bunzip2"),
    (b"\xfd7zXZ\x00", "xz-compressed", "unxz"),
    (b"PK\x03\x04", "a ZIP archive", "unzip"),
    (b"PAR1", "a Parquet file", "export it as JSONL"),
    (b"\xff\xfe", "UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16", "save it as UTF-8"),
)


class Line(msgspec.Struct, frozen=True):
    """One line, without its end.

    Attributes:
        number: 1-based.
        data: its bytes; empty when it was too long.
        is_too_long: it has more than `MAX_LINE_BYTES`, and was passed over.
    """

    number: int
    data: bytes
    is_too_long: bool = False


class LogFile:
    """A log that is being read; a context manager."""

    def __init__(self, path: Path, *, source: str, progress: Progress = silent, limit_bytes: int | None = None) -> None:
        """Opens the file.

        Args:
            path: of the file, plain or gzip.
            source: how messages name it.
            progress: told of the bytes read of the file as it lies there.
            limit_bytes: the most that its text may hold; None for no limit.

        Raises:
            NotFound: no such file.
            InputError: it cannot be read, or is of a kind that is not read here.
        """
        self.source = source
        self._progress = progress
        self._told = 0
        self._limit_bytes = limit_bytes
        self._read_bytes = 0
        try:
            self._file = path.open("rb")
        except FileNotFoundError as error:
            raise NotFound(f"reading the log {source}: no such file", hint=next_step(path.absolute())) from error
        except IsADirectoryError as error:
            raise InputError(f"reading the log {source}: it is a directory", hint="name one file in it") from error
        except (OSError, ValueError) as error:
            raise InputError(f"reading the log {source}: {_words(error)}") from error
        self._stream: BinaryIO = self._file
        try:
            self._total: int | None = path.stat().st_size
            head = self._file.peek(8)
            _refuse_others(head, source=source)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise InputError(f"reading the log {source}: {_words(error)}") from error
            raise
        if head.startswith(_GZIP):
            self._stream = io.BufferedReader(gzip.GzipFile(fileobj=self._file), _BUFFER_BYTES)
        self._starts = True

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes of the text, without a leading byte order mark; empty at its end.

        Raises:
            InputError: the disk fails, or the gzip stream is damaged or cut off.
        """
        return self._checked(self._stream.read, size)

    def lines(self) -> Iterator[Line]:
        r"""The lines, blank ones too; only "\n" ends one, and "\r" before it belongs to the end.

        Raises:
            InputError: as `read`.
        """
        number = 0
        while True:
            data = self._checked(self._stream.readline, MAX_LINE_BYTES + 1)
            if not data:
                break
            number += 1
            if data.endswith(b"\n") or len(data) <= MAX_LINE_BYTES:
                yield Line(number, data.removesuffix(b"\n").removesuffix(b"\r"))
                continue
            while data and not data.endswith(b"\n"):
                data = self._checked(self._stream.readline, _BUFFER_BYTES)
            yield Line(number, b"", is_too_long=True)

    def _checked(self, reads: Callable[[int], bytes], size: int) -> bytes:
        try:
            data = reads(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedFile(
                f"reading the log {self.source}: the gzip stream is damaged or cut off ({_words(error)})",
                hint="copy the file again; `gzip -t FILE` tells whether it is whole",
            ) from error
        except OSError as error:
            raise InputError(f"reading the log {self.source}: {_words(error)}") from error
        self._read_bytes += len(data)
        if self._limit_bytes is not None and self._read_bytes > self._limit_bytes:
            raise TrafficLogError(
                f"reading the log {self.source}: it holds more than {self._limit_bytes // 1024**2} MiB of text",
                hint=f"choose a representative part: kvrelease prompts select {self.source} -o set.jsonl",
            )
        if self._starts:
            self._starts = False
            data = data.removeprefix(b"\xef\xbb\xbf")
        self._tell(ends=not data)
        return data

    def _tell(self, *, ends: bool) -> None:
        done = self._file.tell()
        if done - self._told >= PROGRESS_BYTES or (ends and done != self._told):
            self._told = done
            self._progress(ProgressEvent(stage="reading the log", done=done, total=self._total, unit="bytes"))


def _refuse_others(head: bytes, *, source: str) -> None:
    for start, what, undo in _OTHERS:
        if head.startswith(start):
            raise TrafficLogError(f"reading the log {source}: it is {what}", hint=f"undo that first: {undo}")


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
