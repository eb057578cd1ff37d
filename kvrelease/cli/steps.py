"""The last whole answer of a computation that goes on from answer to answer, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from kvrelease.cli.console import say_error, say_warning
from kvrelease.errors import ExitCode, ServiceError

T = TypeVar("T")


def last_of(answers: Iterator[T]) -> tuple[T, ExitCode]:
    """The last answer that was reached, and how reaching for it ended.

    Raises:
        KeyboardInterrupt: before there was any.
        KvreleaseError: likewise; or a fault that takes earlier answers with it (not one of a service).
    """
    answer = next(answers)
    try:
        for answer in answers:  # noqa: B007 - the last one counts
            pass
    except KeyboardInterrupt:
        say_warning("interrupted: the result is written without what was left to do")
        return answer, ExitCode.INTERRUPTED
    except ServiceError as error:
        say_error(error)
        return answer, error.exit_code
    return answer, ExitCode.OK
