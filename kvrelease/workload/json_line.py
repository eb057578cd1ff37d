"""One line of JSONL, decoded."""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError
from kvrelease.workload.place import Place, kind_name


def decode_object(line: str | bytes, *, place: Place) -> JsonObject:
    """The JSON object that a line is.

    Raises:
        InputError: it is not JSON, not UTF-8, or something other than an object; the error of its place.
    """
    try:
        value: object = msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _broken(line, error, place=place) from error
    if not isinstance(value, dict):
        raise place.error(f"the line is {kind_name(value)}, expected a JSON object: one request")
    return value


def _broken(line: str | bytes, error: Exception, *, place: Place) -> InputError:
    # msgspec's own words name the byte and quote nothing of the line.
    detail = str(error)
    if isinstance(error, RecursionError):
        detail = "nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        detail = f"invalid UTF-8 at byte {error.start}"
    hint = "every line is one complete JSON object"
    if line.strip() in ("{", "[", b"{", b"["):
        hint = "the object spans several lines: write each on one line (`jq -c . FILE`)"
    return place.error(f"the line is not valid JSON ({detail})", hint=hint)
