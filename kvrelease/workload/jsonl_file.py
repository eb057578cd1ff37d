"""Prompt sets as JSONL: one OpenAI body a line, as request logs hold them.

A line is a body with optional `id`, `weight` and `timestamp` (a log's own, left out) beside the body's own keys, or
`{"id", "weight", "prefix", "salt", "body"}`. A body's `cache_salt` or `extra_key` is its tenant's salt, and no part of
the prompt.
"""

from __future__ import annotations

import msgspec

from kvrelease.workload.body import as_object
from kvrelease.workload.entry import Entry, read_id, read_label, read_weight
from kvrelease.workload.json_line import decode_object
from kvrelease.workload.key_space import read_salt, take_salt
from kvrelease.workload.logs.formats import require_format
from kvrelease.workload.logs.openai import BODIES
from kvrelease.workload.place import Place, did_you_mean, quoted

_WRAPPED_KEYS = frozenset({"id", "weight", "prefix", "salt", "body"})
_BESIDE = frozenset({"id", "weight", "timestamp"})  # no field of any body that engines know


def read_jsonl(text: str, *, source: str) -> list[Entry]:
    """The entries of a JSONL text; blank lines are skipped.

    Raises:
        PromptSetError: a line is not a JSON object of either form.
    """
    # Only "\n" ends a line: JSON strings may hold U+2028 and others that `splitlines` would split at.
    lines = enumerate(text.split("\n"), start=1)
    return [_read_line(line, place=Place(source=source, line=number)) for number, line in lines if line.strip()]


def _read_line(line: str, *, place: Place) -> Entry:
    value = decode_object(line, place=place)
    require_format(value, BODIES, place=place)
    prompt_id = read_id(value.get("id"), place=place)
    place = msgspec.structs.replace(place, id=prompt_id)
    if "body" in value:
        unknown = next((key for key in value if key not in _WRAPPED_KEYS), None)
        if unknown is not None:
            raise place.error(
                f"the key {quoted(unknown)} stands beside `body`", hint=did_you_mean(unknown, _WRAPPED_KEYS)
            )
        label = read_label(value.get("prefix"), place=place)
        own = read_salt(value.get("salt"), place=place)
        body = as_object(value["body"], place=place, path="body")
    else:
        if "salt" in value:
            raise place.error(
                "`salt` stands among the fields of the body, where no engine reads it",
                hint="write `cache_salt`, as clients send it, or put the body under `body`",
            )
        label = own = None
        body = as_object({k: v for k, v in value.items() if k not in _BESIDE}, place=place, path="body")
    body, salt = take_salt(body, place=place, beside=own)
    return Entry(
        place=place,
        id=prompt_id,
        weight=read_weight(value.get("weight", 1), place=place),
        body=body,
        prefix=label,
        salt=salt,
    )
