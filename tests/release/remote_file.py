"""A file that is served by ranges, for tests of what is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kvrelease.release.range_reader import RangeReader
from kvrelease.release.source import FileIdentity


class Remote:
    """A `SourceFile` that is served by ranges, and remembers which were asked for."""

    name = "model.safetensors"
    where = "far/model.safetensors"

    def __init__(self, data: bytes, *, served: int | None = None) -> None:
        self.data = data
        self.served = data[:served]
        self.asked: list[tuple[int, int]] = []

    def identity(self) -> FileIdentity:
        return FileIdentity(size_bytes=len(self.data), version="1")

    @contextlib.contextmanager
    def open(self) -> Iterator[RangeReader]:
        yield RangeReader(where=self.where, identity=self.identity(), fetch=self.fetch)

    def fetch(self, offset: int, end: int) -> bytes:
        self.asked.append((offset, end))
        return self.served[offset:end]
