"""Every format of JSON records, and which of them a record has.

Pure.
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.workload.logs import litellm, mooncake, openai, otel, sharegpt
from kvrelease.workload.logs.json_format import JsonFormat
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.place import Place

# The first that recognises a record has it: OpenAI's bodies have the fewest marks of their own, so they come last.
JSON_FORMATS = (otel.FORMAT, sharegpt.FORMAT, openai.BATCH, mooncake.FORMAT, litellm.FORMAT, openai.BODIES)


def form_of(record: JsonObject) -> LogFormat | None:
    """The format that a record is told by; None for none."""
    return next((one.form for one in JSON_FORMATS if one.recognises(record)), None)


def require_format(record: JsonObject, wanted: JsonFormat, *, place: Place) -> None:
    """Checks that a record is not one of another format: it would be passed over, or sent with what is no part of it.

    A record that no format recognises is left to the reader of the one that is wanted.

    Raises:
        InputError: it is; the error of its place.
    """
    found = form_of(record)
    if found not in (None, wanted.form) and not wanted.admits(record):
        raise place.error(
            f"the record is of the format {found}, where {wanted.form} was expected",
            hint="read each format from a file of its own",
        )
