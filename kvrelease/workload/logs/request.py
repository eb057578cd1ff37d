"""From a body that a log holds to a checked request."""

from __future__ import annotations

import datetime
import math

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError
from kvrelease.workload.body import as_object, check_body
from kvrelease.workload.entry import read_id
from kvrelease.workload.key_space import take_salt
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.place import Place, kind_name, quoted

# Epoch times of this century in one unit are no plausible times in the next: 1e11 seconds is the year 5138, and as
# milliseconds it is 1973.
_UNITS_PER_SECOND = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))


def logged_request(
    body: object,
    *,
    place: Place,
    at_s: float | None = None,
    model: str | None = None,
    salt: str | None = None,
    weight: float = 1.0,
    prompt_tokens: int | None = None,
) -> LoggedRequest:
    """The request of one line, its body checked and its salt taken out.

    Args:
        body: what a JSON parser made of the body.
        place: for messages.
        at_s: as in `LoggedRequest`.
        model: what the log calls the model, where the body has none.
        salt: what the log tells of it beside the body.
        weight: as in `LoggedRequest`.
        prompt_tokens: as in `LoggedRequest`.

    Raises:
        InputError: what `as_object`, `take_salt` and `check_body` refuse; the error of its place.
    """
    whole, salt = take_salt(as_object(body, place=place, path="body"), place=place, beside=salt)
    asked = read_model(whole.get("model"), place=place)
    if asked is None and model is not None:
        asked = model
        whole = {"model": model, **{name: value for name, value in whole.items() if name != "model"}}
    return LoggedRequest(
        place=place,
        at_s=at_s,
        kind=check_body(whole, place=place),
        body=whole,
        model=asked,
        salt=salt,
        weight=weight,
        prompt_tokens=prompt_tokens,
    )


def place_of(value: object, *, place: Place) -> Place:
    """The place with the request's own id, where that is fit to be one: a log may call its lines anything."""
    try:
        return msgspec.structs.replace(place, id=read_id(value, place=place))
    except InputError:
        return place


def chat(messages: object, **fields: object) -> JsonObject:
    """A chat body of messages; fields that are None are left out."""
    return {**{name: value for name, value in fields.items() if value is not None}, "messages": messages}


def read_model(value: object, *, place: Place) -> str | None:
    """The name of a model; nothing and empty text are none.

    Raises:
        InputError: not text.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise place.error(f"`model` is {kind_name(value)}, expected text")
    return value


def read_count(value: object, *, place: Place, field: str) -> int | None:
    """A number of tokens; None stays None.

    Raises:
        InputError: not a whole number of zero or more.
    """
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        found = str(value)[:20] if isinstance(value, int | float) else kind_name(value)
        raise place.error(f"`{field}` is {found}, expected a number of tokens")
    return value


def read_time(value: object, *, place: Place, field: str) -> float | None:
    """A time as seconds: a number since 1970 in seconds, milli-, micro- or nanoseconds (told by its size) or RFC 3339.

    Raises:
        InputError: neither.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return _written_time(value, place=place, field=field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.error(f"`{field}` is {kind_name(value)}, expected a time")
    if not -1e20 < value < 1e20:
        raise place.error(f"`{field}` is no time")
    seconds = float(value)
    per_second = next((unit for limit, unit in _UNITS_PER_SECOND if abs(seconds) >= limit), 1.0)
    return seconds / per_second


def _written_time(text: str, *, place: Place, field: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        return read_time(number if math.isfinite(number) else True, place=place, field=field)
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp()
    except (ValueError, OverflowError) as error:
        raise place.error(
            f"`{field}` is {quoted(text)}, expected a time", hint="write RFC 3339, or seconds since 1970"
        ) from error
