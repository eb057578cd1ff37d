"""`kvrelease prompts`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from typing import Annotated

import typer

from kvrelease.cli.commands.select import select
from kvrelease.cli.options import FormatOption, OutputOption
from kvrelease.cli.output import choose_format, deliver
from kvrelease.errors import ExitCode

application = typer.Typer(name="prompts", help="Work with prompt sets.", no_args_is_help=True, rich_markup_mode=None)


application.command()(select)


@application.callback()
def _group() -> None:
    """Work with prompt sets."""


@application.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSONL; prompts/support.yaml is shipped.")],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
) -> ExitCode:
    """Validate a prompt set, and say what it holds: shared prefixes, traffic weights, doubtful prompts.

    Example: kvrelease prompts check prompts/support.yaml
    """
    from kvrelease.config import working_directory
    from kvrelease.report.prompts import prompts_document
    from kvrelease.workload.check import check_prompt_set
    from kvrelease.workload.loading import load_prompt_set

    choose_format(form, output)
    report = check_prompt_set(load_prompt_set(file, directory=working_directory()))
    return deliver(report, lambda: prompts_document(report), wanted=form, output=output)
