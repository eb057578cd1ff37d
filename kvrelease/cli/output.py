"""Where results go: data on stdout or into a file, in the format asked for."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from kvrelease.absent import next_step
from kvrelease.cli.console import say, say_error
from kvrelease.cli.earlier import drop
from kvrelease.cli.streams import abandon, put
from kvrelease.errors import ExitCode, InputError, UsageError, worst

if TYPE_CHECKING:
    from kvrelease.artifacts import Artifact
    from kvrelease.report.document import Document


class Format(enum.StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


_SUFFIXES = {
    ".json": Format.JSON,
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".txt": Format.TEXT,
    ".text": Format.TEXT,
    ".log": Format.TEXT,
    ".out": Format.TEXT,
}


def choose_format(wanted: Format | None, output: Path | None) -> Format:
    """The format asked for, else the one that the output's suffix tells, else text.

    Raises:
        UsageError: the output cannot be a file there, or its suffix asks for a format that is not written; told before
            work starts, not after.
    """
    if output is not None:
        require_writable(output, option="--output")
    if wanted is None and output is not None and _asks_for_another_format(output.suffix):
        raise UsageError(
            f"--output {output}: the suffix tells the format, and {output.suffix!r} is none that is written",
            hint="end it in .json, .md or .txt, or name the format: --format json",
        )
    return _format_of(wanted, output)


def _asks_for_another_format(suffix: str) -> bool:
    """Whether a suffix is one of a format; no suffix, and what only looks like one (`report-v1.2`), are not."""
    return suffix[1:2].isalpha() and suffix.lower() not in _SUFFIXES


def require_writable(path: Path, *, option: str, follows_links: bool = True) -> None:
    """Checks before the work what would lose its result after it.

    Args:
        path: to be written.
        option: that named it.
        follows_links: as in `artifacts.write_atomically`.

    Raises:
        UsageError: the directory is missing or read-only, or the path is a directory.
    """
    directory = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"{option} {path}: it is a directory", hint="name a file in it")
    if not directory.is_dir():
        raise UsageError(f"{option} {path}: no such directory {directory}", hint=next_step(directory))
    if path.exists() and not path.is_file():
        return  # a device or a pipe, written to and not replaced
    directory = path.resolve().parent if follows_links else directory
    if not os.access(directory, os.W_OK):
        raise UsageError(f"{option} {path}: nothing can be written to {directory}", hint=_elsewhere(option))


def _elsewhere(option: str) -> str:
    """Where else to write; what is published lies beside the weights or nowhere."""
    if option == "--publish":
        return "run it as who may write there, or keep the fingerprint elsewhere: --output FILE in place of --publish"
    return "name another directory"


def deliver(
    artifact: Artifact,
    page: Callable[[], Document],
    *,
    wanted: Format | None,
    output: Path | None,
    code: ExitCode = ExitCode.OK,
) -> ExitCode:
    """Writes one result.

    Args:
        artifact: the result.
        page: makes its document; called for text and Markdown, and for the line that a log gets where a verdict, or a
            result that is not good, goes into a file.
        wanted: `--format`.
        output: `--output`. Where it cannot be written, the result goes to stdout instead: measuring it may have taken
            an hour.
        code: of the result.

    Returns:
        The exit code of the run: the result's own, or the worse one of a result that could not be written.
    """
    from kvrelease.artifacts import kind_of  # noqa: PLC0415 - late, as everything that --help does not need

    text = _rendered(artifact, page, form=_format_of(wanted, output), is_for_people=output is None)
    code, is_written = _put(text, output=output, code=code)
    if output is not None and is_written:
        drop(output, kind=kind_of(type(artifact)))
        _say_in_one_line(page(), output, is_good=code is ExitCode.OK)
    return code


def deliver_text(text: str, *, output: Path | None) -> ExitCode:
    """Writes a result that is no artifact: what a shell or another program reads; likewise."""
    code, _ = _put(text, output=output, code=ExitCode.OK)
    return code


def _put(text: str, *, output: Path | None, code: ExitCode) -> tuple[ExitCode, bool]:
    """Writes a result to its file, else to stdout: the exit code of the run, and whether the file has it."""
    from kvrelease.artifacts import write_atomically  # noqa: PLC0415 - late, as everything that --help does not need

    if output is not None:
        try:
            write_atomically(output, text)
        except InputError as error:
            say_error(error)
            code = worst((code, error.exit_code))
        else:
            return code, True
    try:
        _print(text)
    except InputError as error:
        say_error(error)
        code = worst((code, error.exit_code))
    return code, False


def _say_in_one_line(page: Document, output: Path, *, is_good: bool) -> None:
    """Says why the run ends as it does, for whoever has only its log; nothing of what is no verdict and went well."""
    from kvrelease.printable import printable  # noqa: PLC0415 - late, as above
    from kvrelease.report.document import Verdict  # noqa: PLC0415

    verdict = next((block for block in page.blocks if isinstance(block, Verdict)), None)
    if verdict is None and is_good:
        return
    told = page.title if verdict is None else f"{verdict.word.text}  {verdict.reason}"
    say(printable(f"{told.rstrip('.')}. Written to {output}"))


def save(artifact: Artifact, path: Path, *, follows_links: bool = True) -> ExitCode:
    """Writes a second artifact beside the result; when that fails it is told, and the result is not lost."""
    from kvrelease import artifacts  # noqa: PLC0415 - late, as above

    try:
        artifacts.write(path, artifact, follows_links=follows_links)
    except InputError as error:
        say_error(error)
        return error.exit_code
    return ExitCode.OK


def _format_of(wanted: Format | None, output: Path | None) -> Format:
    if wanted is not None:
        return wanted
    return _SUFFIXES.get(output.suffix.lower(), Format.TEXT) if output is not None else Format.TEXT


def _rendered(artifact: Artifact, page: Callable[[], Document], *, form: Format, is_for_people: bool) -> str:
    match form:
        case Format.JSON:
            from kvrelease.artifacts import to_json  # noqa: PLC0415

            return to_json(artifact)
        case Format.MARKDOWN:
            from kvrelease.report.markdown import render_markdown  # noqa: PLC0415

            return render_markdown(page())
        case Format.TEXT:
            from kvrelease.report.terminal import render_for_terminal, render_text  # noqa: PLC0415

            is_terminal = is_for_people and sys.stdout is not None and sys.stdout.isatty()
            return render_for_terminal(page()) if is_terminal else render_text(page())
        case _:
            assert_never(form)


def _print(text: str) -> None:
    """Writes to stdout. A reader that went away (`| head`) changes nothing about the outcome of the run.

    Raises:
        InputError: stdout cannot take it (a full disk, `>&-`).
    """
    if getattr(sys, "stdout", None) is None:
        raise InputError("writing the result to stdout: it is closed", hint="name a file with --output")
    try:
        put(sys.stdout, text)
    except OSError as error:
        abandon(sys.stdout)
        raise InputError(
            f"writing the result to stdout: {error.strerror or error}", hint="make room, or name a file with --output"
        ) from error
