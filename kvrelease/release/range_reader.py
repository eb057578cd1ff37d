"""Positional reads of a file that a store serves by byte ranges: the object stores' and the Hub's `Reader`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from kvrelease.errors import UnexpectedReply
from kvrelease.release.source import FileIdentity, read_range

# One round trip costs tens of milliseconds, so more than a local read; eight such in flight stay near 100 MiB, copies
# inside the client libraries included.
REMOTE_CHUNK_BYTES = 4 * 1024 * 1024
# Headers of safetensors files are read in two steps, and most are smaller than this: one request instead of two.
HEAD_BYTES = 256 * 1024


class RangeReader:
    """A `Reader` over a function that fetches ranges.

    The front of the file is fetched once and kept, because every reader of a format begins there.
    """

    chunk_bytes = REMOTE_CHUNK_BYTES

    def __init__(self, *, where: str, identity: FileIdentity, fetch: Callable[[int, int], bytes]) -> None:
        """Args are the file's name in messages, its identity, and what fetches the bytes from offset to end."""
        self.where = where
        self.identity = identity
        self._fetch = fetch
        self._head: bytes | None = None
        self._head_lock = threading.Lock()

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fills `view` in one request, or none where the front of the file has it all."""
        end = min(offset + len(view), self.identity.size_bytes)
        if offset >= end:
            return 0
        if end <= HEAD_BYTES and end - offset < HEAD_BYTES // 2:
            data = self._front()[offset:end]
        else:
            data = self._checked(offset, end)
        view[: len(data)] = data
        return len(data)

    def read_blocks(self, offsets: Sequence[int], size_bytes: int) -> list[bytes]:
        """One request for each, or none where the front of the file has it."""
        return [bytes(read_range(self, offset, size_bytes)) for offset in offsets]

    def _front(self) -> bytes:
        with self._head_lock:
            if self._head is None:
                self._head = self._checked(0, min(HEAD_BYTES, self.identity.size_bytes))
            return self._head

    def _checked(self, offset: int, end: int) -> bytes:
        data = self._fetch(offset, end)
        if len(data) != end - offset:
            raise UnexpectedReply(
                f"reading {self.where}: asked for bytes {offset} to {end}, {len(data)} of {end - offset} bytes came",
                hint="run again; if it happens again, a proxy in between cuts answers off",
            )
        return data
