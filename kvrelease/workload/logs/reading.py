"""A traffic log as a stream of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from kvrelease.errors import InputError, TrafficLogError
from kvrelease.progress import Progress, silent
from kvrelease.workload.logged import LoggedRequest, PassedOver
from kvrelease.workload.logs.csv_file import azure_requests, csv_requests
from kvrelease.workload.logs.detection import Shape, shape_of
from kvrelease.workload.logs.formats import JSON_FORMATS
from kvrelease.workload.logs.json_array import json_elements
from kvrelease.workload.logs.json_format import Step
from kvrelease.workload.logs.lines import LogFile
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.plain_text import text_documents, text_lines
from kvrelease.workload.logs.records import json_lines, read_records

TEXT_FORMATS: dict[LogFormat, Callable[[LogFile], Iterator[Step]]] = {
    LogFormat.CSV: csv_requests,
    LogFormat.AZURE: azure_requests,
    LogFormat.TEXT: text_lines,
    LogFormat.DOCUMENTS: text_documents,
}


def read_log(
    path: Path,
    *,
    source: str,
    format: LogFormat | None = None,  # noqa: A002 - the option's own name
    on_bad_line: Callable[[InputError], None] | None = None,
    on_passed_over: Callable[[PassedOver], None] = lambda _: None,
    progress: Progress = silent,
    limit_bytes: int | None = None,
) -> Iterator[LoggedRequest]:
    """The requests of a log, in the file's order, with one record in memory.

    Args:
        path: a regular file, plain or gzip.
        source: how messages name it.
        format: what wrote it; None looks at the first record.
        on_bad_line: told of each damaged record, which is then passed over; None ends the reading at the first.
        on_passed_over: told of each record that is no request to warm for.
        progress: told of the bytes read.
        limit_bytes: the most that the text may hold, after decompression; None for no limit.

    Raises:
        NotFound: no such file.
        TrafficLogError: it is empty, of no known format, a record is damaged (file, line and what was found), or all
            that were passed over are.
        InputError: the file cannot be read on: a disk that fails, a gzip stream that is cut off, more than the limit.
    """
    shape = shape_of(path, source=source, form=format)
    has_request, damage = False, None
    with LogFile(path, source=source, progress=progress, limit_bytes=limit_bytes) as file:
        for step in _steps(file, shape):
            if isinstance(step, LoggedRequest):
                has_request = True
                yield step
            elif isinstance(step, PassedOver):
                on_passed_over(step)
            elif on_bad_line is None:
                raise step
            else:
                damage = damage or step
                on_bad_line(step)
    if damage is not None and not has_request:
        raise TrafficLogError(
            f"reading the log {source} as {shape.form}: none of its records can be read; the first: {damage.message}",
            hint=damage.hint or "say what it is with --log-format, when that is not its format",
        )
    if not has_request:
        raise TrafficLogError(
            f"reading the log {source} as {shape.form}: it holds no requests",
            hint="say what it is with --log-format, when that is not its format",
        )


def _steps(file: LogFile, shape: Shape) -> Iterator[Step]:
    for one in JSON_FORMATS:
        if one.form is shape.form:
            return read_records(json_elements(file) if shape.is_array else json_lines(file), file, one)
    return TEXT_FORMATS[shape.form](file)
