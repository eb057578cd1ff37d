"""`kvrelease diff`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
import enum
from pathlib import Path
from typing import Annotated

import typer

from kvrelease.cli import console, session
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
    ADAPTERS = "adapters"
    RUNTIME = "runtime"
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
    is invalid where one does. Without them only the releases are compared, and the page says so.

    Example: kvrelease diff ./models/v1.2 ./models/v1.3 --fail-on kv
    """
    from kvrelease.binding.runtime import KNOWN_FIELDS, unknown_field_warnings
    from kvrelease.binding.runtime_file import read_stated_runtime
    from kvrelease.release.diff import diff_verdict
    from kvrelease.release.diff_steps import diff_steps
    from kvrelease.release.drift import weights_for_drift
    from kvrelease.release.runtime_change import compare_runtimes
    from kvrelease.report.diff import diff_document

    choose_format(form, output)
    if (old_runtime is None) != (new_runtime is None):
        names = "--old-runtime", "--new-runtime"
        given, wanted = names if new_runtime is None else reversed(names)
        raise UsageError(
            f"{given} alone: what the other release's KV is made under has to be stated too, to compare the two",
            hint=f"add {wanted} FILE (where nothing changed, the same file), or leave {given} out",
        )
    stated = [None if path is None else read_stated_runtime(path) for path in (old_runtime, new_runtime)]
    runtime = compare_runtimes(*stated, known_fields=KNOWN_FIELDS)
    sides = [side for side in stated if side is not None]
    for warning in dict.fromkeys(
        warning for side in sides for warning in unknown_field_warnings(side.fields, source=side.source)
    ):
        console.say_warning(warning)
    with console.progress() as progress:
        weights = weights_for_drift(old, new) if drift else None
        pair = session.read_pair(
            old,
            new,
            jobs=jobs,
            no_memo=no_memo,
            progress=progress,
            wants_weights=drift or fail_on in (FailOn.WEIGHTS, FailOn.ANY),
        )
        steps = diff_steps(pair, places=(old, new), runtime=runtime, weights=weights, jobs=jobs, progress=progress)
        result, ending = last_of(steps)
    for warning in dict.fromkeys((*pair.old.warnings, *pair.new.warnings)):
        told_by = dict.fromkeys(side for side, found in ((old, pair.old), (new, pair.new)) if warning in found.warnings)
        console.say_warning(f"{' and '.join(told_by)}: {warning}")
    verdict = None if fail_on is None else diff_verdict(result, part=str(fail_on))
    code = worst((exit_code(verdict=verdict), ending))
    return deliver(result, lambda: diff_document(result), wanted=form, output=output, code=code)
