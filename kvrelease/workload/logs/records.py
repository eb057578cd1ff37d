"""The records of a log of JSON, read one by one, and what each becomes: requests, or the damage that was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvrelease.errors import InputError
from kvrelease.workload.json_line import decode_object
from kvrelease.workload.logs.formats import require_format
from kvrelease.workload.logs.json_format import JsonFormat, Step
from kvrelease.workload.logs.lines import MAX_LINE_BYTES, Line, LogFile
from kvrelease.workload.place import Place, Reading


def place_in(file: LogFile, number: int) -> Place:
    """A line of a log."""
    return Place(source=file.source, reading=Reading.LOG, line=number)


def json_lines(file: LogFile) -> Iterator[Line]:
    """The lines that are not blank."""
    return (line for line in file.lines() if line.is_too_long or line.data.strip())


def read_records(records: Iterable[Line], file: LogFile, one: JsonFormat) -> Iterator[Step]:
    """The requests of records of JSON in one format; a record of another one is damage."""
    for record in records:
        place = place_in(file, record.number)
        try:
            if record.is_too_long:
                raise too_long(place)
            line = decode_object(record.data, place=place)
            require_format(line, one, place=place)
            steps = tuple(one.requests(line, place=place))
        except InputError as error:
            yield error
        else:
            yield from steps


def too_long(place: Place) -> InputError:
    """The damage of a line that is longer than any request."""
    return place.error(
        f"the line has more than {MAX_LINE_BYTES // 1024**2} MiB, which no request has",
        hint="write one request a line; is this a log?",
    )
