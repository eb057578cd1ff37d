"""`kvrelease prewarm`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvrelease.cli import console, options, session
from kvrelease.cli.earlier import put_aside
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver, require_writable
from kvrelease.config import DEFAULT_MIN_HIT_RATE, DEFAULT_TIMEOUT_S
from kvrelease.errors import ExitCode, InputError, UsageError

if TYPE_CHECKING:
    from kvrelease.binding.deployment import Deployment
    from kvrelease.prewarm.journal import Journal

_PROOF = "Proof"
_COST = "Cost"


def prewarm(
    context: typer.Context,
    *,
    release: options.ReleaseOption = None,
    prompts: options.PromptsOption = None,
    engine_url: options.EngineUrlOption = None,
    replicas: options.ReplicasOption = None,
    data_parallel: options.DataParallelOption = "auto",
    engine: options.EngineOption = None,
    model: options.ModelOption = None,
    namespace: options.NamespaceOption = None,
    min_hit_rate: Annotated[
        float,
        typer.Option(
            "--min-hit-rate",
            envvar="KVRELEASE_MIN_HIT_RATE",
            metavar="SHARE",
            min=0.0,
            max=1.0,
            callback=options.finite,
            help="Cacheable tokens that must hit when asked again.",
            rich_help_panel=_PROOF,
        ),
    ] = DEFAULT_MIN_HIT_RATE,
    max_ttft_ms: Annotated[
        float | None,
        typer.Option(
            "--max-ttft-ms",
            envvar="KVRELEASE_MAX_TTFT_MS",
            metavar="MS",
            min=0.0,
            callback=options.finite,
            help="The longest p95 of time to first token when asked again.",
            rich_help_panel=_PROOF,
        ),
    ] = None,
    max_error_rate: Annotated[
        float,
        typer.Option(
            "--max-error-rate",
            envvar="KVRELEASE_MAX_ERROR_RATE",
            metavar="SHARE",
            min=0.0,
            max=1.0,
            callback=options.finite,
            help="Requests that may stay without a proper answer, after retries, as a share of the plan's; one more "
            "ends that replica's run.",
            rich_help_panel=_PROOF,
        ),
    ] = 0.0,
    passes: Annotated[
        int,
        typer.Option(
            "--passes",
            envvar="KVRELEASE_PASSES",
            metavar="N",
            min=1,
            max=10,
            help="Times that a sample is asked again; the last one counts. 2 where draft heads (Eagle, MTP) make the "
            "first repeat miss.",
            rich_help_panel=_PROOF,
        ),
    ] = 1,
    accept_ttft: Annotated[
        bool,
        typer.Option(
            "--accept-ttft",
            help="Where the server tells cached tokens nowhere, let times to the first token decide; foreign hits "
            "are then not known.",
            rich_help_panel=_PROOF,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan and its cost for each replica and key space; send nothing of it.",
            rich_help_panel=_COST,
        ),
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            envvar="KVRELEASE_RATE",
            metavar="TOKENS/S",
            min=0.001,
            callback=options.finite,
            help="Prompt tokens that a replica computes in a second, for the seconds of --dry-run.",
            rich_help_panel=_COST,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            envvar="KVRELEASE_BUDGET",
            metavar="SECONDS",
            min=0.1,
            callback=options.finite,
            help="Send no request of the plan after so long.",
            rich_help_panel=_COST,
        ),
    ] = None,
    budget_tokens: Annotated[
        int | None,
        typer.Option(
            "--budget-tokens",
            envvar="KVRELEASE_BUDGET_TOKENS",
            metavar="N",
            min=1,
            help="Send no request of the plan that would make a replica compute more tokens.",
            rich_help_panel=_COST,
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            envvar="KVRELEASE_JOURNAL",
            metavar="FILE",
            help="Where a run that is killed leaves what it sent, for the next one. Default: beside the ledger.",
            rich_help_panel=_COST,
        ),
    ] = None,
    no_journal: Annotated[
        bool,
        typer.Option(
            "--no-journal",
            envvar="KVRELEASE_NO_JOURNAL",
            help="Write no journal, and read none.",
            rich_help_panel=_COST,
        ),
    ] = False,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            "--block-tokens",
            envvar="KVRELEASE_BLOCK_TOKENS",
            metavar="N",
            min=1,
            max=65_536,
            help="The block size of engines that do not tell theirs (/metrics closed); it is told as stated, never as "
            "measured.",
            rich_help_panel="Engine",
        ),
    ] = None,
    allow_flush: options.AllowFlushOption = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            envvar="KVRELEASE_CONCURRENCY",
            metavar="N",
            min=1,
            max=1024,
            help="Most requests in flight on one replica; fewer while the server asks for it or its queue grows. "
            "Default: up to 32, as many as make it faster.",
            rich_help_panel="Engine",
        ),
    ] = None,
    wait: options.WaitOption = None,
    timeout: options.TimeoutOption = DEFAULT_TIMEOUT_S,
    api_key_env: options.ApiKeyEnvOption = None,
    header: options.HeaderOption = None,
    ledger: options.LedgerOption = None,
    no_ledger: options.NoLedgerOption = False,
    jobs: options.JobsOption = None,
    no_memo: options.NoMemoOption = False,
    form: options.FormatOption = None,
    output: options.OutputOption = None,
) -> ExitCode:
    """Fill the new release's prefix cache from a prompt set, on every replica, and prove it is resident.

    A hit that this release did not compute stops the run (exit 1): prewarming does not repair a dirty cache. A replica
    that cannot be asked is named, and the others are warmed (exit 5). Run it again after an interruption, even a kill:
    what is resident is not computed twice.

    Example: kvrelease prewarm --release ./models/v1.3 --engine-url http://127.0.0.1:8000 --prompts prompts/support.yaml
    """
    from kvrelease.artifacts import kind_of
    from kvrelease.prewarm.result import Limits, PrewarmPlan, PrewarmReport
    from kvrelease.prewarm.run import plan_only
    from kvrelease.prewarm.run import prewarm as run
    from kvrelease.report.prewarm import plan_document, prewarm_document

    choose_format(form, output)
    if not dry_run and options.is_typed(context, "rate"):
        raise UsageError(
            "--rate says what a replica computes, for the seconds of --dry-run; it limits nothing",
            hint="add --dry-run, or limit what is sent with --concurrency",
        )
    if journal is not None and no_journal:
        raise UsageError("--journal and --no-journal exclude each other")
    if journal is not None:
        require_writable(journal, option="--journal")
    put_aside(output, kinds=[kind_of(kind) for kind in (PrewarmReport, PrewarmPlan)])
    config = session.configuration()
    access = session.access_of(
        config=config,
        urls=engine_url,
        kind=engine,
        model=model,
        timeout_s=timeout,
        key_variable=api_key_env,
        headers=header,
        wait_s=wait,
        replicas=replicas,
        concurrency=concurrency,
        data_parallel=data_parallel,
    )

    prompt_set = session.read_prompts(prompts)
    opened = session.look_at_ledger if dry_run else session.open_ledger
    with console.progress() as progress, opened(ledger, no_ledger=no_ledger) as store:
        found = session.read_release(release, option="--release", jobs=jobs, no_memo=no_memo, progress=progress)
        deployment = session.deployment_of(
            found, config=config, ledger=store, prompt_set=prompt_set, namespace=namespace, command="prewarm"
        )
        is_journaled = journal is not None or not (no_journal or no_ledger)
        with _journal(journal, deployment=deployment, is_wanted=is_journaled, is_looked_at=dry_run) as log:

            async def warm() -> PrewarmReport:
                async with session.fleet_of(access, release=release, progress=progress) as fleet:
                    return await run(
                        fleet.engines,
                        deployment=deployment,
                        ledger=store,
                        concurrency=concurrency,
                        limits=Limits(
                            min_hit_rate=min_hit_rate,
                            max_ttft_ms=max_ttft_ms,
                            max_error_rate=max_error_rate,
                            accepts_ttft=accept_ttft,
                        ),
                        allows_flush=allow_flush,
                        budget_s=budget,
                        budget_tokens=budget_tokens,
                        block_tokens=block_tokens,
                        passes=passes,
                        journal=log,
                        changes=fleet.changes,
                        progress=progress,
                    )

            async def plan() -> PrewarmPlan:
                async with session.fleet_of(access, release=release, progress=progress) as fleet:
                    return await plan_only(
                        fleet.engines,
                        deployment=deployment,
                        ledger=store,
                        concurrency=concurrency,
                        block_tokens=block_tokens,
                        journal=log,
                        rate=rate,
                    )

            if dry_run:
                planned = run_async(plan())
                for fault in planned.faults:
                    console.say_fault(fault)
                code = exit_code(faults=planned.faults)
                return deliver(planned, lambda: plan_document(planned), wanted=form, output=output, code=code)
            report = run_async(warm())
    for fault in report.faults:
        console.say_fault(fault)
    code = exit_code(verdict=report.verdict, faults=report.faults, interrupted=report.interrupted)
    return deliver(report, lambda: prewarm_document(report), wanted=form, output=output, code=code)


def _journal(
    path: Path | None, *, deployment: Deployment, is_wanted: bool, is_looked_at: bool
) -> AbstractContextManager[Journal | None]:
    """The journal of a run; none where none is wanted, or where the user's own place for it cannot be written.

    One that is looked at is made by nobody, and held no longer than it takes to read it.

    Raises:
        InputError: the one that was named cannot be used, or another run holds it and this one would send as well.
    """
    from kvrelease.ledger.store import state_directory
    from kvrelease.prewarm.journal import Journal, JournalHeld
    from kvrelease.prewarm.run import journal_key

    if not is_wanted:
        return nullcontext()
    key = journal_key(deployment)
    place = path or state_directory() / key.file_name
    if is_looked_at and not place.exists():
        return nullcontext()
    try:
        found = Journal(place, key=key)
        if not is_looked_at:
            return found
        with found:
            return nullcontext(found)
    except InputError as error:
        if path is not None or (not is_looked_at and isinstance(error, JournalHeld)):
            raise
        if is_looked_at:
            return nullcontext()
        console.say_warning(f"{error.message}; a run that is killed cannot be resumed ({error.hint})")
        return nullcontext()
