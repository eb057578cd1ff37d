"""Everything that is not data: progress, warnings, errors; all of it on stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvrelease.artifacts import Fault
from kvrelease.cli.streams import abandon, put
from kvrelease.errors import KvreleaseError
from kvrelease.progress import Progress, ProgressEvent

# In a pipe (a CI log) a line of progress at most so often.
PLAIN_INTERVAL_S = 15.0
# Hashing sends an event for each MiB, thousands a second; a bar that is drawn for each would take longer than they do.
BAR_INTERVAL_S = 0.05

_BYTES_PER_MB = 1_000_000


def say_error(error: KvreleaseError) -> None:
    """One paragraph: what was tried, what was found, what to do next."""
    _say("error", error.message, hint=error.hint)


def say_fault(fault: Fault) -> None:
    """What ended one part of a run early."""
    _say("error", fault.shown, hint=fault.hint)


def say_warning(text: str) -> None:
    """Something that the reader has to know, and that does not stop the run."""
    _say("warning", text, hint=None)


def say_note(text: str) -> None:
    """Something that explains the run, and changes nothing about its result."""
    _say("note", text, hint=None)


def _say(word: str, message: str, *, hint: str | None) -> None:
    from kvrelease.printable import printable  # noqa: PLC0415

    text = f"{word}: {printable(message)}"
    if hint:
        text += f"\n  next: {printable(hint)}"
    say(text)


def say(text: str) -> None:
    """Writes lines to stderr; where nobody reads it, the run goes on."""
    try:
        put(sys.stderr, text + "\n")
    except OSError:  # a log on a full disk
        abandon(sys.stderr)


def configure_logging(*, is_verbose: bool) -> None:
    """Sends our own log lines to stderr, all of them with `--verbose`.

    Libraries stay at warnings: at their debug level they write headers (httpcore) and SQL with values.
    """
    ours = logging.getLogger("kvrelease")
    for old in [handler for handler in ours.handlers if isinstance(handler, _Handler)]:
        ours.removeHandler(old)
    ours.addHandler(_Handler())
    ours.setLevel(logging.DEBUG if is_verbose else logging.WARNING)


class _Handler(logging.Handler):
    """Writes one printable line for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        from kvrelease.printable import printable  # noqa: PLC0415

        say(f"{record.levelname.lower()}: {record.name}: {printable(record.getMessage())}")


@contextmanager
def progress() -> Iterator[Progress]:
    """Draws progress: a bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        with _bar() as draw:
            yield draw
    else:
        yield _plain()


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich import progress as rich_progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from kvrelease.printable import printable  # noqa: PLC0415

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.fields[amount]}"),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, rich_progress.TaskID] = {}
        last = 0.0

        def draw(event: ProgressEvent) -> None:
            nonlocal last
            moment = time.monotonic()
            if event.stage not in tasks:
                tasks[event.stage] = bar.add_task(printable(event.description), total=event.total, amount="")
            elif moment - last < BAR_INTERVAL_S and event.done != event.total:
                return
            last = moment
            bar.update(
                tasks[event.stage],
                description=printable(event.description),
                completed=event.done,
                total=event.total,
                amount=_amount(event),
            )

        yield draw


def _plain() -> Progress:
    from kvrelease.printable import printable  # noqa: PLC0415

    last = time.monotonic()

    def draw(event: ProgressEvent) -> None:
        nonlocal last
        moment = time.monotonic()
        if moment - last >= PLAIN_INTERVAL_S:
            last = moment
            say(f"{printable(event.description)}: {_amount(event)}")

    return draw


def _amount(event: ProgressEvent) -> str:
    if event.unit == "bytes":
        total = "" if event.total is None else f"/{event.total / _BYTES_PER_MB:,.0f}"
        return f"{event.done / _BYTES_PER_MB:,.0f}{total} MB"
    total = "" if event.total is None else f"/{event.total}"
    return f"{event.done}{total} {event.unit}"
