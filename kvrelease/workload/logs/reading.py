"""A traffic log as a stream of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kvrelease.errors import InputError, TrafficLogError
from kvrelease.progress import Progress, silent
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.lines import LogFile
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.openai import batch_requests, openai_requests
from kvrelease.workload.logs.records import JsonReader, Step, json_lines, read_records

_JSON_READERS: dict[LogFormat, JsonReader] = {
    LogFormat.OPENAI: openai_requests,
    LogFormat.BATCH: batch_requests,
}


def read_log(
    path: Path,
    *,
    source: str,
    format: LogFormat | None = None,  # noqa: A002 - the option's own name
    on_bad_line: Callable[[InputError], None] | None = None,
    progress: Progress = silent,
) -> Iterator[LoggedRequest]:
    """The requests of a log, in the file's order, with one record in memory.

    Args:
        path: a regular file, plain or gzip.
        source: how messages name it.
        format: what wrote it; None looks at the first record.
        on_bad_line: told of each damaged record, which is then passed over; None ends the reading at the first.
        progress: told of the bytes read.

    Raises:
        NotFound: no such file.
        TrafficLogError: it is empty, of no known format, or a record is damaged (file, line and what was found).
        InputError: the file cannot be read on: a disk that fails, a gzip stream that is cut off.
    """
    form = format if format is not None else LogFormat.OPENAI
    is_empty = True
    with LogFile(path, source=source, progress=progress) as file:
        for step in _steps(file, form):
            is_empty = False
            if isinstance(step, LoggedRequest):
                yield step
            elif on_bad_line is None:
                raise step
            else:
                on_bad_line(step)
    if is_empty:
        raise TrafficLogError(f"reading the log {source}: it holds no requests")


def _steps(file: LogFile, form: LogFormat) -> Iterator[Step]:
    return read_records(json_lines(file), file, _JSON_READERS[form])
