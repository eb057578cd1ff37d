"""Mooncake traces: times, lengths and names of blocks, no text. They serve planning and simulation.

Source:
    https://github.com/kvcache-ai/Mooncake, FAST25-release/traces: `timestamp` in milliseconds since the trace's start,
    `input_length` and `output_length` in tokens, `hash_ids` of the prompt's blocks of 512 tokens, the last of which may
    be shorter.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvrelease.artifacts import JsonObject
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.logs.json_format import JsonFormat
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.logs.request import read_count, read_model
from kvrelease.workload.place import Place, kind_name

TRACE_BLOCK_TOKENS = 512


def mooncake_requests(line: JsonObject, *, place: Place) -> Iterator[LoggedRequest]:
    """The request of a line.

    Raises:
        InputError: a field is missing or of another shape.
    """
    tokens = read_count(line.get("input_length"), place=place, field="input_length")
    if tokens is None:
        raise place.error("the request has no `input_length`")
    yield LoggedRequest(
        place=place,
        at_s=_seconds(line.get("timestamp"), place=place),
        kind=None,
        body=None,
        model=read_model(line.get("model"), place=place),
        salt=None,
        prompt_tokens=tokens,
        block_hashes=_hashes(line.get("hash_ids", []), place=place),
    )


def _seconds(value: object, *, place: Place) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise place.error("`timestamp` is no number of milliseconds")
    return value / 1000


def _hashes(value: object, *, place: Place) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(name) is int for name in value):
        raise place.error(f"`hash_ids` is {kind_name(value)}, expected a list of whole numbers")
    return tuple(value)


FORMAT = JsonFormat(LogFormat.MOONCAKE, lambda line: "input_length" in line, mooncake_requests)
