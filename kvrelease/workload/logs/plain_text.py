"""Plain text: a prompt a line, or documents that a form feed separates. Each is one user message.

`---` separates nothing: Markdown has it inside documents.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvrelease.errors import InputError
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.json_format import Step
from kvrelease.workload.logs.lines import MAX_LINE_BYTES, LogFile
from kvrelease.workload.logs.records import place_in, too_long
from kvrelease.workload.logs.request import chat, logged_request
from kvrelease.workload.place import Place

SEPARATOR = b"\f"
_PIECE_BYTES = 256 * 1024


def text_lines(file: LogFile) -> Iterator[Step]:
    """A request for each line that is not blank."""
    for line in file.lines():
        if line.is_too_long or line.data.strip():
            yield _step(line.data, place=place_in(file, line.number), is_too_long=line.is_too_long)


def text_documents(file: LogFile) -> Iterator[Step]:
    """A request for each document that is not blank; line ends around it are not part of it."""
    pending, line, dropped = b"", 1, False
    while True:
        piece = file.read(_PIECE_BYTES)
        *whole, pending_next = (pending + piece).split(SEPARATOR) if piece else (pending, b"")
        for document in whole:
            yield from _document(document, file=file, line=line, is_too_long=dropped)
            line += document.count(b"\n")
            dropped = False
        pending = pending_next
        if not piece:
            return
        if len(pending) > MAX_LINE_BYTES:
            line += pending.count(b"\n")
            pending, dropped = b"", True


def _document(document: bytes, *, file: LogFile, line: int, is_too_long: bool) -> Iterator[Step]:
    if is_too_long or document.strip():
        first = line + document[: len(document) - len(document.lstrip())].count(b"\n")
        yield _step(document.strip(b"\r\n"), place=place_in(file, first), is_too_long=is_too_long)


def _step(data: bytes, *, place: Place, is_too_long: bool) -> Step:
    if is_too_long:
        return too_long(place)
    try:
        return _request(data, place=place)
    except InputError as error:
        return error


def _request(data: bytes, *, place: Place) -> LoggedRequest:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise place.error(
            f"invalid UTF-8 ({error.reason}) at byte {error.start}", hint="save the file as UTF-8"
        ) from error
    return logged_request(chat([{"role": "user", "content": text}]), place=place)
