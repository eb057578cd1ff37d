"""A walk through the front of a GGUF file, in which no count is believed before the file proved long enough for it.

The format says nowhere how long its header is, so the walk goes through a window that moves: memory does not depend on
what the file claims.
"""

from __future__ import annotations

import struct
from typing import Protocol

from kvrelease.errors import DamagedFile, UnsupportedRelease
from kvrelease.release.source import Reader, read_range

# The largest real headers (262,144 tokens, merges, and a tokenizer.json inside) have some 50 MB. The limit is that of
# safetensors headers; walking this much of the most expensive kind, empty strings, takes a second.
MAX_HEADER_BYTES = 100_000_000
WINDOW_BYTES = 1024 * 1024

_STRING_LENGTH = struct.Struct("<Q")


class Sink(Protocol):
    """Takes the bytes that were passed over."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Takes the next of them."""


class HeaderCursor:
    """A place in the header, which only moves forward.

    Attributes:
        item: what is being read, for messages: `key 'general.name'`.
    """

    def __init__(self, reader: Reader, *, where: str) -> None:
        """A cursor at the first byte.

        Args:
            reader: the open file.
            where: how messages name it.
        """
        self.item = "its header"
        self._reader = reader
        self._size_bytes = reader.identity.size_bytes
        self._where = where
        # Bytes and not a view of them: struct reads from bytes twice as fast.
        self._window = b""
        self._at = 0  # in the window
        self._window_end = 0  # in the file

    @property
    def position(self) -> int:
        """Bytes passed so far."""
        return self._window_end - len(self._window) + self._at

    @property
    def remaining_bytes(self) -> int:
        """From here to the end of the file."""
        return self._size_bytes - self.position

    def damaged(self, what: str, *, hint: str | None = None) -> DamagedFile:
        """An error about the item that is being read."""
        return DamagedFile(f"reading {self._where}: {self.item} {what}", hint=hint)

    def unsupported(self, what: str) -> UnsupportedRelease:
        """An error about an item that is well-formed and beyond our limits."""
        return UnsupportedRelease(f"reading {self._where}: {self.item} {what}")

    def require(self, count: int, size_bytes: int, *, what: str) -> None:
        """Refuses a count of things for which the file is too short.

        Args:
            count: as the file claims.
            size_bytes: the least that one of them takes.
            what: the things, in the plural.

        Raises:
            DamagedFile: the file cannot hold so many.
        """
        if count * size_bytes > self.remaining_bytes:
            raise self.damaged(
                f"announces {count} {what}, and the file has only {self.remaining_bytes} more bytes",
                hint="copy or download it again",
            )

    def read(self, fields: struct.Struct, sink: Sink | None = None) -> tuple[int, ...]:
        """The next few integers."""
        return fields.unpack(self.take(fields.size, sink))

    def take(self, count: int, sink: Sink | None = None) -> bytes:
        """The next `count` bytes, which are few.

        Raises:
            DamagedFile: the file ends before.
            UnsupportedRelease: the header is over its limit.
        """
        if self._at + count > len(self._window):
            self._refill(count)
        taken = self._window[self._at : self._at + count]
        if sink is not None:
            sink.update(taken)
        self._at += count
        return taken

    def string(self, *, max_bytes: int) -> bytes:
        """The next string, which is short.

        Raises:
            DamagedFile: the file ends before, or the string is longer than `max_bytes`.
        """
        (length,) = self.read(_STRING_LENGTH)
        if length > max_bytes:
            raise self.damaged(f"has a name of {length} bytes; the longest allowed has {max_bytes}")
        return self.take(length)

    def skim(self, count: int, sink: Sink) -> None:
        """Passes over `count` bytes, however many.

        Raises:
            DamagedFile: the file ends before.
        """
        self.require(count, 1, what="bytes")
        while count:
            if self._at == len(self._window):
                self._refill(1)
            passed = memoryview(self._window)[self._at : self._at + count]
            sink.update(passed)
            self._at += len(passed)
            count -= len(passed)

    def skim_strings(self, count: int, sink: Sink) -> None:
        """Passes over `count` strings: a vocabulary is some hundred thousand, so this is the loop that must be quick.

        Raises:
            DamagedFile: the file ends before.
        """
        self.require(count, _STRING_LENGTH.size, what="strings")
        length_at = _STRING_LENGTH.unpack_from
        while count:
            window, place = self._window, self._at
            window_bytes = len(window)
            last = window_bytes - _STRING_LENGTH.size
            for left in range(count, 0, -1):  # noqa: B007 - how many are left, behind the loop
                if place > last:
                    break
                (length,) = length_at(window, place)
                end: int = place + 8 + length
                if end > window_bytes:
                    break
                place = end
            else:
                left = 0
            sink.update(memoryview(window)[self._at : place])
            self._at, count = place, left
            if count:  # one that the window does not hold whole
                (length,) = self.read(_STRING_LENGTH, sink)
                self.skim(length, sink)
                count -= 1

    def _refill(self, count: int) -> None:
        """Moves the window on, so that at least `count` bytes are in it."""
        kept = self._window[self._at :]
        if count > self.remaining_bytes:
            raise self.damaged(
                f"is cut off: the file ends at byte {self._size_bytes}", hint="copy or download it again"
            )
        if self.position + count > MAX_HEADER_BYTES:
            raise self.unsupported(f"is beyond the first {MAX_HEADER_BYTES} bytes, the limit for a header")
        position, self._window = self._window_end, b""
        fresh = min(max(count - len(kept), WINDOW_BYTES), self._size_bytes - position)
        read = read_range(self._reader, position, fresh)
        if len(read) < fresh:
            raise self.damaged("is cut off: the file became shorter meanwhile")
        self._window, self._at, self._window_end = kept + read, 0, position + fresh
