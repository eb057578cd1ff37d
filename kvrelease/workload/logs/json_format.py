"""What a format of JSON records is: how one is recognised, and what makes requests of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import InputError
from kvrelease.workload.logged import LoggedRequest, PassedOver
from kvrelease.workload.logs.log_format import LogFormat
from kvrelease.workload.place import Place

# What a reader makes of a record: a request, why it is none, or the damage found, for `read_log` to raise or to hand
# over.
Step = LoggedRequest | PassedOver | InputError


class JsonReader(Protocol):
    """What makes requests of one JSON object of a log."""

    def __call__(self, line: JsonObject, *, place: Place) -> Iterable[Step]:
        """The requests of a record, in order, what in it is none, and damage that leaves the others whole.

        Raises:
            InputError: the record is damaged.
        """


class JsonFormat(msgspec.Struct, frozen=True):
    """One format; its module offers it, and `formats.py` has them all.

    Attributes:
        form: its name.
        recognises: whether a record is of this format, where none before it in the list has recognised it.
        requests: of a record.
        admits: whether a record that another format recognises is read all the same, in a log of this one.
    """

    form: LogFormat
    recognises: Callable[[JsonObject], bool]
    requests: JsonReader
    admits: Callable[[JsonObject], bool] = lambda _: False
