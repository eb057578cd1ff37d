"""CSV with a header: prompts, or the Azure traces, which have no text.

Source:
    RFC 4180; https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and …2024.md (columns
    TIMESTAMP, ContextTokens, GeneratedTokens).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError
from kvrelease.workload.entry import read_weight
from kvrelease.workload.key_space import read_salt
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.json_format import Step
from kvrelease.workload.logs.lines import MAX_LINE_BYTES, LogFile
from kvrelease.workload.logs.records import place_in, too_long
from kvrelease.workload.logs.request import chat, logged_request, place_of, read_count, read_model, read_time
from kvrelease.workload.place import Place, did_you_mean, quoted

TEXT_COLUMNS = ("prompt", "messages", "user")
COLUMNS = (*TEXT_COLUMNS, "system", "weight", "model", "salt", "id", "timestamp")
AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")

_Row = dict[str, str]


def csv_requests(file: LogFile) -> Iterator[Step]:
    """The requests of a table of prompts.

    Raises:
        InputError: the header names no column with a prompt.
    """
    return _steps(file, _prompt_row, needs=_needs_text)


def azure_requests(file: LogFile) -> Iterator[Step]:
    """The requests of an Azure trace: times and lengths.

    Raises:
        InputError: the header is not that of such a trace.
    """
    return _steps(file, _azure_row, needs=_needs_azure)


def header_of(line: str) -> tuple[str, ...]:
    """The names of the columns, in lower case; empty for a line that is no CSV."""
    try:
        return tuple(name.strip().lower() for name in next(csv.reader([line], strict=True), []))
    except csv.Error:
        return ()


def _steps(
    file: LogFile, read_row: Callable[[_Row, Place], LoggedRequest], *, needs: Callable[[tuple[str, ...], Place], None]
) -> Iterator[Step]:
    csv.field_size_limit(MAX_LINE_BYTES)  # what keeps a quote that is never closed from taking all memory
    overlong: list[int] = []
    rows = csv.reader(_text_lines(file, overlong), strict=True)
    header: tuple[str, ...] | None = None
    while True:
        before = rows.line_num
        try:
            cells = next(rows, None)
        except csv.Error as error:
            yield place_in(file, before + 1).error(f"the row is no valid CSV ({error})")
            continue
        if cells is None:
            break
        place = place_in(file, before + 1)
        if header is None:
            header = tuple(name.strip().lower() for name in cells)
            needs(header, place)
        elif overlong:
            yield too_long(place_in(file, overlong.pop()))
            overlong.clear()
        elif any(cell.strip() for cell in cells):
            try:
                yield read_row(_row(header, cells, place=place), place)
            except InputError as error:
                yield error


def _text_lines(file: LogFile, overlong: list[int]) -> Iterator[str]:
    for line in file.lines():
        if line.is_too_long:
            overlong.append(line.number)
        # What is not UTF-8 becomes lone surrogates, which every body and name refuses, at its own row.
        yield line.data.decode("utf-8", "surrogateescape") + "\n"


def _row(header: tuple[str, ...], cells: list[str], *, place: Place) -> _Row:
    if len(cells) != len(header):
        raise place.error(
            f"the row has {len(cells)} cells, the header {len(header)}", hint="put text with commas in double quotes"
        )
    return dict(zip(header, cells, strict=True))


def _needs_text(header: tuple[str, ...], place: Place) -> None:
    if not set(TEXT_COLUMNS) & set(header):
        raise place.error(
            f"the header has no column {', '.join(TEXT_COLUMNS[:-1])} or {TEXT_COLUMNS[-1]}; it begins with "
            f"{quoted(', '.join(header))}",
            hint=did_you_mean(header[0] if header else None, TEXT_COLUMNS),
        )
    twice = next((name for name in COLUMNS if header.count(name) > 1), None)
    if twice is not None:
        raise place.error(f"the header has the column {twice!r} twice")


def _needs_azure(header: tuple[str, ...], place: Place) -> None:
    if not set(AZURE_COLUMNS[:2]) <= set(header):
        raise place.error("the header is not TIMESTAMP,ContextTokens,GeneratedTokens")


def _prompt_row(row: _Row, place: Place) -> LoggedRequest:
    place = place_of(row.get("id") or None, place=place)
    ways = [name for name in TEXT_COLUMNS if row.get(name, "").strip()]
    if len(ways) != 1:
        found = f"its prompt in {len(ways)} columns: {', '.join(ways)}" if ways else "no prompt"
        raise place.error(f"the row has {found}", hint="fill exactly one of prompt, messages, user")
    model = read_model(row.get("model"), place=place)
    system = row.get("system", "")
    body: JsonObject
    match ways[0]:
        case "prompt" if not system:
            body = {"prompt": row["prompt"]}
        case "user":
            opening: list[object] = [{"role": "system", "content": system}] if system else []
            body = chat([*opening, {"role": "user", "content": row["user"]}])
        case "messages" if not system:
            body = chat(_json(row["messages"], place=place))
        case way:
            raise place.error(f"the row has `system` beside `{way}`", hint="`system` goes with `user`")
    return logged_request(
        body,
        place=place,
        at_s=read_time(row.get("timestamp") or None, place=place, field="timestamp"),
        model=model,
        salt=read_salt(row.get("salt"), place=place),
        weight=read_weight(_number(row["weight"]) if row.get("weight") else 1, place=place),
    )


def _azure_row(row: _Row, place: Place) -> LoggedRequest:
    count = _number(row["contexttokens"])
    return LoggedRequest(
        place=place,
        at_s=read_time(row["timestamp"] or None, place=place, field="TIMESTAMP"),
        kind=None,
        body=None,
        model=None,
        salt=None,
        prompt_tokens=read_count(count, place=place, field="ContextTokens"),
    )


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell  # the reader of the field says what is wrong with it


def _json(cell: str, *, place: Place) -> object:
    try:
        value: object = msgspec.json.decode(cell)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise place.error("`messages` is no valid JSON", hint="write the list as JSON, in double quotes") from error
    return value
