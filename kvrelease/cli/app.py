"""The program: commands, configuration, and the one place where an outcome becomes an exit code."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import TYPE_CHECKING

from kvrelease import __version__
from kvrelease.cli.streams import abandon, put
from kvrelease.errors import ExitCode, KvreleaseError, UsageError

if TYPE_CHECKING:
    import typer


def run(argv: list[str]) -> int:
    """The exit code of one invocation; every outcome of every command passes through here.

    Args:
        argv: arguments without the program's name.
    """
    if argv == ["--version"]:  # asked by every CI step; without the command tree it takes a fifth of the time
        put(sys.stdout, f"kvrelease {__version__}\n")
        return ExitCode.OK
    try:
        return _run(argv)
    except KeyboardInterrupt:  # pods are stopped while the first modules are being read, too
        if getattr(sys, "stderr", None) is not None:
            put(sys.stderr, "interrupted\n")
        return ExitCode.INTERRUPTED


def _run(argv: list[str]) -> int:
    import typer  # noqa: PLC0415 - late, see above

    from kvrelease.cli.console import say, say_error  # noqa: PLC0415

    try:
        return _invoke(argv)
    except typer.BadParameter as error:
        say_error(_of_bad_parameter(error, argv))
        return ExitCode.USAGE
    except typer.TyperException as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        if text.startswith("Usage:"):  # no command was given: the message is the help
            say(text)
        else:
            say_error(UsageError(text, hint=_help_command(argv)))
        return ExitCode.USAGE
    except KvreleaseError as error:
        say_error(error)
        return error.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception:  # noqa: BLE001 - the one catch-all: our bug, told as such
        import traceback  # noqa: PLC0415

        say(traceback.format_exc() + f"this is a bug of kvrelease {__version__}; please report it with the traceback")
        return ExitCode.INTERNAL


def main() -> None:
    """The `kvrelease` command."""
    from kvrelease.cli.interrupt import (  # noqa: PLC0415 - `run` alone changes no process
        ignore_termination,
        treat_termination_as_interrupt,
    )

    treat_termination_as_interrupt()
    try:
        code = _ended()
    except KeyboardInterrupt:  # before the run, or after it, while a stream waits for its reader
        code = int(ExitCode.INTERRUPTED)
    ignore_termination()  # what is left is to end
    if threading.active_count() > 1:  # workers that nobody waits for: torch aborts when the interpreter ends under it
        os._exit(code)
    sys.exit(code)


def _ended() -> int:
    """The exit code of the invocation that the process was started for, its streams written out."""
    if getattr(sys, "stderr", None) is None:  # started with 2>&-
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - lives as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # JSON is UTF-8 whatever the locale; a name that is not is spelt out
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            if getattr(stream, "flush", None) is not None:
                stream.flush()
        except OSError:  # nobody reads any more; the outcome of the run stands
            abandon(stream)
    return code


def _invoke(argv: list[str]) -> int:
    import typer  # noqa: PLC0415

    from kvrelease.cli.program import command_tree, default_map  # noqa: PLC0415
    from kvrelease.config import load_config, option_defaults, working_directory  # noqa: PLC0415

    is_help = bool({"--help", "--version"} & set(argv))
    defaults = {} if is_help else option_defaults(load_config(working_directory()))
    try:
        # Not `application(argv)`: it ends the process with 1 when a pipe breaks, which would read as "gate failed".
        with command_tree().make_context("kvrelease", argv, default_map=default_map(defaults)) as context:
            outcome = context.command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        if not is_help:
            raise
        abandon(sys.stdout)  # `--help | head`
        return ExitCode.OK
    return outcome if isinstance(outcome, int) else ExitCode.OK


def _of_bad_parameter(error: typer.BadParameter, argv: list[str]) -> UsageError:
    """The error of ours for a value that is none, or for one that is missing."""
    import typer  # noqa: PLC0415 - late, as above

    from kvrelease.cli.bad_value import of_bad_value  # noqa: PLC0415

    if type(error) is not typer.BadParameter:
        return UsageError(error.format_message(), hint=_help_command(argv))
    return of_bad_value(error, help_command=_help_command(argv))


def _help_command(argv: list[str]) -> str:
    from kvrelease.cli.program import command_names, group_names  # noqa: PLC0415

    words = [word for word in argv if not word.startswith("-")][:2]  # options of the program itself may come first
    if words[:1] == ["prompts"]:
        words = words[: 1 + (words[-1] in group_names("prompts"))]
    else:
        words = [word for word in words[:1] if word in command_names()]
    return " ".join(("kvrelease", *words, "--help"))
