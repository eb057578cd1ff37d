"""One JSON array, however large, as its elements: one of them in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvrelease.workload.logs.lines import MAX_LINE_BYTES, Line, LogFile

_PIECE_BYTES = 256 * 1024
_MARK = re.compile(rb'["\[\]{},]')
# Possessive, so that a string of any length leaves nothing to come back to.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def json_elements(file: LogFile) -> Iterator[Line]:
    """The elements of the array that a file is, undecoded, each with the line that it begins on.

    What is no JSON is found when an element is decoded; what follows the array, or is missing at its end, comes as an
    element that cannot be decoded.

    Raises:
        InputError: the file cannot be read on.
    """
    splitter = _Splitter()
    while piece := file.read(max(_PIECE_BYTES, splitter.pending_bytes)):
        yield from splitter.feed(piece)
    yield from splitter.finish()


class _Splitter:
    """Cuts at the commas of the outermost array."""

    def __init__(self) -> None:
        self._buffer = b""
        self._start = 0  # where the current element begins in it
        self._scanned = 0  # up to where it was looked at
        self._depth = 0
        self._line = 1  # of the element's first byte
        self._dropped = False  # the element is too long, and what came of it was let go

    @property
    def pending_bytes(self) -> int:
        """Reading as much again keeps the work linear, although an open string is scanned anew."""
        return len(self._buffer)

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The elements that end in the next piece of the file."""
        self._buffer += piece
        while mark := _MARK.search(self._buffer, self._scanned):
            at, byte = mark.start(), mark.group()
            if byte == b'"':
                string = _STRING.match(self._buffer, at)
                if string is None:
                    self._scanned = at
                    break
                self._scanned = string.end()
                continue
            self._scanned = at + 1
            if byte in b"[{":
                self._depth += 1
                if self._depth == 1:
                    self._begin(at + 1)
            elif byte in b"]}":
                self._depth -= 1
                if self._depth == 0:
                    yield from self._element(at, is_last=True)
            elif self._depth == 1:
                yield from self._element(at)
        else:
            self._scanned = len(self._buffer)
        self._forget()

    def finish(self) -> Iterator[Line]:
        """What is left: nothing, when the array was closed and nothing follows it."""
        rest = self._buffer[self._start :]
        line = self._line_of(rest)
        if rest.strip() or self._dropped:
            yield Line(line, rest.strip(), is_too_long=self._dropped)
        if self._depth == 1:
            yield Line(line, b"")  # no bracket closes the array: whatever stood behind is missing

    def _element(self, end: int, *, is_last: bool = False) -> Iterator[Line]:
        data = self._buffer[self._start : end]
        stripped = data.strip()
        if stripped or self._dropped or not is_last:
            too_long = self._dropped or len(stripped) > MAX_LINE_BYTES
            yield Line(self._line_of(data), b"" if too_long else stripped, is_too_long=too_long)
        self._begin(end + 1)

    def _line_of(self, data: bytes) -> int:
        return self._line + data[: len(data) - len(data.lstrip())].count(b"\n")

    def _begin(self, position: int) -> None:
        self._line += self._buffer.count(b"\n", self._start, position)
        self._start = position
        self._dropped = False

    def _forget(self) -> None:
        """Drops what is over, and of an element that is too long all but what tells where it ends."""
        self._buffer = self._buffer[self._start :]
        self._scanned -= self._start
        self._start = 0
        if len(self._buffer) <= MAX_LINE_BYTES:
            return
        # The scan stopped at the quote of an open string: it stays, with a backslash that has yet to escape something.
        keep = b""
        if self._scanned < len(self._buffer):
            trailing = len(self._buffer) - len(self._buffer.rstrip(b"\\"))
            keep = b'"\\' if trailing % 2 else b'"'
        self._line += self._buffer.count(b"\n")
        self._buffer, self._scanned, self._dropped = keep, 0, True
