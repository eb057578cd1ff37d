"""`kvrelease prewarm`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from typing import Annotated

import typer

from kvrelease.cli import console, options, session
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.config import DEFAULT_CONCURRENCY, DEFAULT_TIMEOUT_S
from kvrelease.errors import ExitCode


def prewarm(
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
        ),
    ] = 0.9,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            envvar="KVRELEASE_BUDGET",
            metavar="SECONDS",
            min=0.1,
            callback=options.finite,
            help="Send no request of the plan after so long.",
        ),
    ] = None,
    allow_flush: options.AllowFlushOption = False,
    concurrency: options.ConcurrencyOption = DEFAULT_CONCURRENCY,
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

    A hit that this release did not compute stops the run (exit 1): prewarming does not repair a dirty cache. Run it
    again after an interruption: what is resident is not computed twice.

    Example: kvrelease prewarm --release ./models/v1.3 --engine-url http://127.0.0.1:8000 --prompts prompts/support.yaml
    """
    from kvrelease.prewarm.result import PrewarmReport
    from kvrelease.prewarm.run import prewarm as run
    from kvrelease.report.prewarm import prewarm_document

    choose_format(form, output)
    config = session.configuration()
    access = session.access_of(
        config=config,
        urls=engine_url,
        kind=engine,
        model=model,
        timeout_s=timeout,
        key_variable=api_key_env,
        headers=header,
        replicas=replicas,
        concurrency=concurrency,
        data_parallel=data_parallel,
    )

    prompt_set = session.read_prompts(prompts)
    with console.progress() as progress, session.open_ledger(ledger, no_ledger=no_ledger) as store:
        found = session.read_release(release, option="--release", jobs=jobs, no_memo=no_memo, progress=progress)
        deployment = session.deployment_of(
            found, config=config, ledger=store, prompt_set=prompt_set, namespace=namespace, command="prewarm"
        )

        async def warm() -> PrewarmReport:
            async with session.fleet_of(access, release=release) as fleet:
                return await run(
                    fleet.engines,
                    deployment=deployment,
                    ledger=store,
                    concurrency=concurrency,
                    min_hit_rate=min_hit_rate,
                    allows_flush=allow_flush,
                    budget_s=budget,
                    progress=progress,
                )

        report = run_async(warm())
    for fault in report.faults:
        console.say_fault(fault)
    code = exit_code(verdict=report.verdict, faults=report.faults, interrupted=report.interrupted)
    return deliver(report, lambda: prewarm_document(report), wanted=form, output=output, code=code)
