"""`kvrelease diff`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
import enum
from pathlib import Path
from typing import Annotated

import typer

from kvrelease.cli import console, session
from kvrelease.cli.earlier import put_aside
from kvrelease.cli.options import FormatOption, JobsOption, NoMemoOption, OutputOption
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.cli.steps import last_of
from kvrelease.errors import ExitCode, UsageError, worst


class FailOn(enum.StrEnum):
    """What makes `diff` end 1, and 3 when it is not known."""

    KV = "kv"
    WEIGHTS = "weights"
    CONFIG = "config"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    GENERATION = "generation"
    CODE = "code"
    PREPROCESSOR = "preprocessor"
    EXTRA = "extra"
    ADAPTERS = "adapters"
    RUNTIME = "runtime"
    ANY = "any"


def diff(
    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD",
            help="The release before: a model directory or file, an adapter, a saved fingerprint, "
            "hf:org/name@revision, or one in an object store (s3://, gs://).",
        ),
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The one after, likewise.")],
    *,
    fail_on: Annotated[
        list[FailOn] | None,
        typer.Option(
            "--fail-on",
            envvar="KVRELEASE_FAIL_ON",
            help="End 1 when the old KV is invalid (kv), or that part changed (extra: weight files that the model does "
            "not load); 3 when it is not known. Repeat it for each part: the worst answer wins. Default: end 0.",
        ),
    ] = None,
    old_runtime: Annotated[
        Path | None,
        typer.Option(
            "--old-runtime",
            metavar="FILE",
            help="What the old KV was made under: a saved namespace, record, prewarm or verify artifact, or YAML with "
            "runtime:.",
        ),
    ] = None,
    new_runtime: Annotated[
        Path | None,
        typer.Option("--new-runtime", metavar="FILE", help="Likewise, what the new release is served under."),
    ] = None,
    drift: Annotated[
        bool,
        typer.Option(
            "--drift",
            envvar="KVRELEASE_DRIFT",
            help="Measure how far each changed tensor moved too: reads those again, and needs torch.",
        ),
    ] = False,
    jobs: JobsOption = None,
    no_memo: NoMemoOption = False,
    form: FormatOption = None,
    output: OutputOption = None,
) -> ExitCode:
    """Say what changed between two releases, and whether the old KV cache is still valid.

    KV is made by weights and engine: with --old-runtime and --new-runtime the fields that differ are named, and old KV
    is invalid where one does. Without them only the releases are compared, and the page says so; runtime: in
    kvrelease.yaml is for what is served, so name the file for each side.

    Example: kvrelease diff ./models/v1.2 ./models/v1.3 --fail-on kv
    """
    from kvrelease.artifacts import kind_of
    from kvrelease.binding.runtime_file import compare_runtime_files
    from kvrelease.release.diff import diff_verdict, needs_weights
    from kvrelease.release.diff_record import Diff
    from kvrelease.release.diff_steps import run_diff
    from kvrelease.report.diff import diff_document

    choose_format(form, output)
    _require_both(old_runtime, new_runtime)
    put_aside(output, kinds=(kind_of(Diff),))
    runtime = compare_runtime_files(old_runtime, new_runtime, warn=console.say_warning)
    warnings: list[str] = []  # told when no bar is drawn any more
    with console.progress() as progress:
        steps = run_diff(
            old,
            new,
            warn=warnings.append,
            runtime=runtime,
            wants_weights=any(needs_weights(part) for part in fail_on or ()),
            measures_drift=drift,
            memo=session.open_memo(no_memo=no_memo),
            jobs=jobs,
            progress=progress,
        )
        result, ending = last_of(steps)
    for warning in warnings:
        console.say_warning(warning)
    if old == new:
        console.say_note(f"OLD and NEW are the same: {old}")
    asked = [exit_code(verdict=diff_verdict(result, part=part)) for part in fail_on or ()]
    code = worst((*asked, ending))
    return deliver(result, lambda: diff_document(result), wanted=form, output=output, code=code)


def _require_both(old: Path | None, new: Path | None) -> None:
    """Checks that the runtimes of both sides are stated, or of none.

    Raises:
        UsageError: one alone is, which compares nothing.
    """
    if (old is None) != (new is None):
        names = "--old-runtime", "--new-runtime"
        given, wanted = names if new is None else reversed(names)
        raise UsageError(
            f"{given} alone: what the other release's KV is made under has to be stated too, to compare the two",
            hint=f"add {wanted} FILE (where nothing changed, the same file), or leave {given} out",
        )
