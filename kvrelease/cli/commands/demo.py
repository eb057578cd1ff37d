"""`kvrelease demo`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from pathlib import Path
from typing import Annotated

import typer

from kvrelease.cli import console
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.options import FormatOption, OutputOption
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.config import DEFAULT_DEMO_REQUESTS, MIN_DEMO_REQUESTS, working_directory
from kvrelease.errors import ExitCode


def demo(
    *,
    requests: Annotated[
        int,
        typer.Option(
            "--requests", metavar="N", min=MIN_DEMO_REQUESTS, max=100_000, help="Requests of the traffic, for each arm."
        ),
    ] = DEFAULT_DEMO_REQUESTS,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the traffic.")] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="DIR",
            help="Leave the two releases, and the store as the traffic left it, in a new directory to try things on.",
        ),
    ] = None,
    form: FormatOption = None,
    output: OutputOption = None,
) -> ExitCode:
    """See the incident, and its remedy: an upgrade over a shared KV store, without and with version-bound keys.

    Two small releases of one model run in this process; no server, GPU or download is needed. Takes about a minute.

    Example: kvrelease demo --keep ./demo
    """
    from kvrelease.demo.pair import shipped_pair
    from kvrelease.demo.run import demo as run_demo
    from kvrelease.engines.local_release import require_extra
    from kvrelease.report.demo import demo_document

    choose_format(form, output)
    require_extra()
    pair = shipped_pair(seen_from=working_directory())
    with console.progress() as progress:
        report = run_async(run_demo(pair, requests=requests, seed=seed, keep_in=keep, progress=progress))
    for fault in report.faults:
        console.say_fault(fault)
    code = exit_code(faults=report.faults)
    return deliver(report, lambda: demo_document(report), wanted=form, output=output, code=code)
