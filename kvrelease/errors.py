"""Everything the outside world can do to us, as a tree, and the exit codes of the program.

    KvreleaseError
    ├── UsageError            2   the command line or the configuration is wrong
    │   ├── MissingExtra          an optional library is not installed
    │   └── WrongModel            the engine does not serve the model that was asked for
    │       └── NoModel           it lists none at all: none is loaded, or not yet
    ├── InputError            4   a file or a release is missing, damaged or unsupported
    │   ├── NotFound              a path or a name leads nowhere
    │   ├── DamagedFile           the bytes are not what the format promises
    │   ├── UnsupportedRelease    well-formed, but nothing we may or can read
    │   ├── PromptSetError        a prompt set is empty or malformed
    │   ├── TrafficLogError       a traffic log is empty, of no known format, or damaged at one place
    │   └── PromptTooLong         a prompt does not fit the engine's context
    └── ServiceError          5   an engine or a store did not answer properly
        ├── Unreachable           no connection
        ├── ServiceTimeout        no answer in time
        ├── Refused               an answer that says no (401, 403, 429, 5xx …)
        └── UnexpectedReply       an answer that is not the protocol (HTML, wrong shape)

A verdict is never an exception: `fail` and `inconclusive` are results, and `cli.app.run` maps them to exit codes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from kvrelease.printable import printable


class ExitCode(enum.IntEnum):
    """What a process of ours ends with; constant, documented in the README."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INPUT = 4
    SERVICE = 5
    INTERNAL = 70
    INTERRUPTED = 130


# Where several hold, the first of these wins.
_PRECEDENCE = (
    ExitCode.INTERNAL,
    ExitCode.INTERRUPTED,
    ExitCode.FAILED,
    ExitCode.USAGE,
    ExitCode.INPUT,
    ExitCode.SERVICE,
    ExitCode.INCONCLUSIVE,
    ExitCode.OK,
)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The one exit code of a run in which several things happened; OK when nothing did."""
    return min(codes, key=_PRECEDENCE.index, default=ExitCode.OK)


class KvreleaseError(Exception):
    """A fault of the outside world, told in one paragraph.

    Attributes:
        message: what was attempted, on what, and what was found; control characters in it are spelt out.
        hint: what to do next; None when there is nothing better than the message.
    """

    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Both quote what is outside: names in a header, a server's answer, a library's own words on either.
        self.message = printable(message)
        self.hint = None if hint is None else printable(hint)
        super().__init__(self.message)

    def about(self, what: str) -> Self:
        """The same error, its message beginning with what it is about."""
        self.message = printable(f"{what}: {self.message}")
        self.args = (self.message,)
        return self


class UsageError(KvreleaseError):
    """The command line or the configuration is wrong."""

    exit_code = ExitCode.USAGE


class MissingExtra(UsageError):
    """An optional library is needed and not installed."""

    def __init__(self, *, extra: str, needed_for: str, module: str, first: str | None = None) -> None:
        line = f"pip install 'kvrelease[{extra}]', or '.[{extra}]' in a checkout"
        super().__init__(
            f"{needed_for} needs the Python module {module!r}, which is not installed",
            hint=line if first is None else f"{line}; {first}",
        )


class WrongModel(UsageError):
    """The engine does not serve the model that was asked for."""


class NoModel(WrongModel):
    """The engine lists no model: none is loaded, or not yet."""


class InputError(KvreleaseError):
    """A file or a release is missing, damaged or unsupported."""

    exit_code = ExitCode.INPUT


class NotFound(InputError):
    """A path or a name leads nowhere."""


class DamagedFile(InputError):
    """The bytes of a file are not what its format promises."""


class UnsupportedRelease(InputError):
    """A release is well-formed, but nothing we may or can read."""


class PromptSetError(InputError):
    """A prompt set is empty or malformed."""


class TrafficLogError(InputError):
    """A traffic log is empty, of no known format, or damaged at one place."""


class PromptTooLong(InputError):
    """A prompt does not fit the engine's context."""


def one_of(group: ExceptionGroup[Exception]) -> Exception:
    """The error to tell of several that ended parallel requests: ours with the worst exit code, else the first."""
    leaves = list(_leaves(group))
    ours = [error for error in leaves if isinstance(error, KvreleaseError)]
    if len(ours) < len(leaves):
        return next(error for error in leaves if not isinstance(error, KvreleaseError))
    return most_serious(ours)


def most_serious(errors: Sequence[KvreleaseError]) -> KvreleaseError:
    """The error to tell of several: the first with the worst exit code."""
    return min(errors, key=lambda error: _PRECEDENCE.index(error.exit_code))


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


class ServiceError(KvreleaseError):
    """An engine or a store did not answer properly.

    Attributes:
        may_have_run: what was asked for may have been done all the same; False where it certainly was not: nobody was
            reached, or it was refused before anything was done.
    """

    exit_code = ExitCode.SERVICE

    def __init__(self, message: str, *, hint: str | None = None, may_have_run: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.may_have_run = may_have_run


class Unreachable(ServiceError):
    """No connection could be made, or it broke."""


class ServiceTimeout(ServiceError):
    """No answer came in time."""


class Refused(ServiceError):
    """The service answered, and the answer says no.

    Attributes:
        status: the HTTP status, or None where the service has none.
        was_throttled: the service asked for fewer requests.
        retry_after_s: the longest wait that it asked for, seconds; None when it asked for none.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None,
        hint: str | None = None,
        was_throttled: bool = False,
        retry_after_s: float | None = None,
        may_have_run: bool = True,
    ) -> None:
        super().__init__(message, hint=hint, may_have_run=may_have_run)
        self.status = status
        self.was_throttled = was_throttled
        self.retry_after_s = retry_after_s


class UnexpectedReply(ServiceError):
    """The service answered something that is not its protocol."""
