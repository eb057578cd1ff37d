"""Which format a log has, from its first record."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec

from kvrelease.errors import InputError, TrafficLogError
from kvrelease.workload.json_line import decode_object
from kvrelease.workload.logs.csv_file import AZURE_COLUMNS, COLUMNS, TEXT_COLUMNS, header_of
from kvrelease.workload.logs.formats import form_of
from kvrelease.workload.logs.json_array import json_elements
from kvrelease.workload.logs.lines import Line, LogFile
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.plain_text import SEPARATOR
from kvrelease.workload.logs.records import json_lines, place_in, too_long
from kvrelease.workload.place import Place

_TEXT_SUFFIXES = (".txt", ".text")
_HEAD_BYTES = 64 * 1024
_RECORDS_LOOKED_AT = 20


class Shape(msgspec.Struct, frozen=True):
    """How a log is read.

    Attributes:
        form: what wrote it.
        is_array: its records of JSON are the elements of one array, not lines.
    """

    form: LogFormat
    is_array: bool


def shape_of(path: Path, *, source: str, form: LogFormat | None) -> Shape:
    """How to read a log.

    Args:
        path: a regular file.
        source: how messages name it.
        form: the format, where the user says it; None looks at the first record.

    Raises:
        NotFound: no such file.
        TrafficLogError: it is empty, or the first record is of no known format.
        InputError: it cannot be read.
    """
    with LogFile(path, source=source) as file:
        head = file.read(_HEAD_BYTES)
    if not head.strip():
        raise TrafficLogError(
            f"reading the log {source}: it holds no requests",
            hint="name the file that the gateway or the engine writes requests to; docs/logs.md lists the formats",
        )
    is_array = head.lstrip().startswith(b"[")
    if form is not None:
        return Shape(form, is_array)
    if _is_text(path):
        return Shape(LogFormat.DOCUMENTS if SEPARATOR in head else LogFormat.TEXT, is_array=False)
    with LogFile(path, source=source) as file:
        return Shape(_form_of(file, path=path, is_array=is_array), is_array)


def _form_of(file: LogFile, *, path: Path, is_array: bool) -> LogFormat:
    """The format of the first record that has one: the very first may be the damaged one."""
    damage: InputError | None = None
    is_named_csv = ".csv" in path.suffixes[-2:]
    for record in itertools.islice(json_elements(file) if is_array else json_lines(file), _RECORDS_LOOKED_AT):
        place = place_in(file, record.number)
        try:
            form = _form_of_record(record, place=place, is_named_csv=is_named_csv)
        except InputError as error:
            damage = damage or error
        else:
            if form is not None:
                return form
    if damage is not None:
        raise damage
    raise TrafficLogError(
        f"reading the log {file.source}: its first records are of no format that is recognised by its content",
        hint="say what it is with --log-format: " + ", ".join(LogFormat),
    )


def _form_of_record(record: Line, *, place: Place, is_named_csv: bool) -> LogFormat | None:
    if record.is_too_long:
        raise too_long(place)
    if record.data.lstrip().startswith(b"{"):
        return form_of(decode_object(record.data, place=place))
    return _form_of_header(record.data, is_named_csv=is_named_csv) if record.number == 1 else None


def _form_of_header(line: bytes, *, is_named_csv: bool) -> LogFormat | None:
    header = set(header_of(line.decode("utf-8", "replace")))
    if set(AZURE_COLUMNS[:2]) <= header:
        return LogFormat.AZURE
    has_prompts = bool(header & set(TEXT_COLUMNS))
    return LogFormat.CSV if has_prompts and (is_named_csv or header <= set(COLUMNS)) else None


def _is_text(path: Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return bool(suffixes) and (suffixes[-1] if suffixes[-1] != ".gz" else "".join(suffixes[-2:-1])) in _TEXT_SUFFIXES
