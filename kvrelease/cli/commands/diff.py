"""`kvrelease diff`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
import enum
from typing import Annotated

import typer

from kvrelease.cli import console, session
from kvrelease.cli.options import FormatOption, JobsOption, NoMemoOption, OutputOption
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.errors import ExitCode


class FailOn(enum.StrEnum):
    """What makes `diff` end 1, and 3 when it is not known."""

    KV = "kv"
    WEIGHTS = "weights"
    TOKENIZER = "tokenizer"
    ANY = "any"


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Model directory or file, or a saved fingerprint.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Model directory or file, or a saved fingerprint.")],
    *,
    fail_on: Annotated[
        FailOn | None,
        typer.Option(
            "--fail-on",
            envvar="KVRELEASE_FAIL_ON",
            help="End 1 when the old KV is invalid (kv), or that part changed; 3 when it is not known. Default: end 0.",
        ),
    ] = None,
    jobs: JobsOption = None,
    no_memo: NoMemoOption = False,
    form: FormatOption = None,
    output: OutputOption = None,
) -> ExitCode:
    """Say what changed between two releases, and whether the old KV cache is still valid.

    Example: kvrelease diff ./models/v1.2 ./models/v1.3 --fail-on kv
    """
    from kvrelease.release.diff import diff_fingerprints, diff_verdict
    from kvrelease.report.diff import diff_document

    choose_format(form, output)
    with console.progress() as progress:
        before, after = (
            session.read_release(side, option=option, jobs=jobs, no_memo=no_memo, progress=progress, may_be_older=True)
            for side, option in ((old, "OLD"), (new, "NEW"))
        )
    for side, found in ((old, before), (new, after)):
        for warning in found.warnings:
            console.say_warning(f"{side}: {warning}")
    result = diff_fingerprints(before, after)
    code = ExitCode.OK if fail_on is None else exit_code(verdict=diff_verdict(result, part=str(fail_on)))
    return deliver(result, lambda: diff_document(result), wanted=form, output=output, code=code)
