"""`kvrelease verify`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from pathlib import Path
from typing import Annotated

import typer

from kvrelease.cli import console, options, session
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format
from kvrelease.cli.run_results import RunResults
from kvrelease.cli.watch import Lap, alone, require_watch
from kvrelease.cli.watch import watch as watching
from kvrelease.config import DEFAULT_STALE_BELOW, DEFAULT_TIMEOUT_S
from kvrelease.errors import ExitCode, NoModel, ServiceError, UsageError, worst

_EVIDENCE = "Evidence"
_WATCHING = "Watching"
# What still has a meaning when saved observations are judged again.
_OF_JUDGING_AGAIN = ("judge_again", "form", "output")


def verify(
    context: typer.Context,
    *,
    release: options.ReleaseOption = None,
    old_release: options.OldReleaseOption = None,
    prompts: options.PromptsOption = None,
    engine_url: options.EngineUrlOption = None,
    replicas: options.ReplicasOption = None,
    data_parallel: options.DataParallelOption = "auto",
    engine: options.EngineOption = None,
    model: options.ModelOption = None,
    namespace: options.NamespaceOption = None,
    golden: Annotated[
        Path | None,
        typer.Option(
            "--golden",
            envvar="KVRELEASE_GOLDEN",
            metavar="FILE",
            help="Record of the new release from a clean, trusted process.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            envvar="KVRELEASE_BASELINE",
            metavar="FILE",
            help="Record of the old release.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            envvar="KVRELEASE_REFERENCE",
            metavar="URL|local",
            help="Where clean answers come from when the engine cannot bypass its cache.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None,
    allow_flush: Annotated[
        bool,
        typer.Option(
            "--allow-flush",
            help="Permit to empty an engine's own cache, last of all and once: where neither a salt nor a bypass nor "
            "--reference isolates reference legs, and after a proven failure, to tell cache from model.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = False,
    expect_cold: Annotated[
        bool,
        typer.Option(
            "--expect-cold",
            help="Nobody has sent this release a request yet: any hit is then foreign.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = False,
    stale_below: Annotated[
        float,
        typer.Option(
            "--stale-below",
            envvar="KVRELEASE_STALE_BELOW",
            metavar="SHARE",
            min=0.001,
            max=0.9,
            callback=options.finite,
            help="Claim: fewer than this share of requests meet a stale prefix. 0.05 takes 59 probes, 0.25 takes 11.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = DEFAULT_STALE_BELOW,
    require_power: Annotated[
        bool,
        typer.Option(
            "--require-power",
            envvar="KVRELEASE_REQUIRE_POWER",
            help="End inconclusive when it is not known whether staleness would show on these prompts.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = False,
    probes: Annotated[
        int | None,
        typer.Option(
            "--probes",
            envvar="KVRELEASE_PROBES",
            metavar="N",
            min=1,
            help="Most probes. Default: as many as the claim takes.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            envvar="KVRELEASE_SEED",
            metavar="N",
            help="Of the draw of probes.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = 0,
    observations: Annotated[
        Path | None,
        typer.Option(
            "--observations",
            metavar="FILE",
            help="Save what was observed, to be judged again with --from. With --watch a file for each run: "
            "FILE-0001, FILE-0002 before the suffix.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None,
    judge_again: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Judge saved observations; no engine is asked.", rich_help_panel=_EVIDENCE
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            metavar="SECONDS",
            min=0.001,
            callback=options.finite,
            help="Repeat the gate, from one start to the next, with other probes each time. A fail ends it at once "
            "with 1, three runs in a row that end 5 with 5.",
            rich_help_panel=_WATCHING,
        ),
    ] = None,
    watch_for: Annotated[
        float | None,
        typer.Option(
            "--watch-for",
            metavar="SECONDS",
            min=0.0,
            callback=options.finite,
            help="End the watch after that time, with what its last run ended with. Default: until a signal (130).",
            rich_help_panel=_WATCHING,
        ),
    ] = None,
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            "--metrics-file",
            envvar="KVRELEASE_METRICS_FILE",
            metavar="FILE.prom",
            help="After each run, its figures for Prometheus (node exporter's textfile collector). Also without "
            "--watch.",
            rich_help_panel=_WATCHING,
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
    """The release gate: does anything that users get come from another release's KV?

    Probes are sent exactly as production sends them (production: in kvrelease.yaml), then compared with answers that
    provably did not read the cache. Exit 0 pass, 1 fail, 3 not enough evidence.

    Example: kvrelease verify --release ./models/v1.3 --old-release ./models/v1.2 --engine-url http://127.0.0.1:8000
    --prompts prompts/support.yaml

    Example: kvrelease verify --release ./models/v1.3 --engine-url http://canary:8000 --prompts prompts/support.yaml
    --watch 300 --watch-for 3600 --metrics-file /var/lib/node_exporter/kvrelease.prom
    """
    from kvrelease import artifacts
    from kvrelease.verify.evidence import Limits
    from kvrelease.verify.judge import judge
    from kvrelease.verify.record import Record
    from kvrelease.verify.run import Observed, conclude, observe
    from kvrelease.verify.saved import read_evidence
    from kvrelease.verify.twins import open_twins

    if judge_again is not None:
        _require_no_other_option(context, source=judge_again)
    choose_format(form, output)
    require_watch(every_s=watch, for_s=watch_for, expects_cold=expect_cold, allows_flush=allow_flush)
    results = RunResults(
        form=form,
        output=output,
        observations=observations,
        metrics=metrics_file if judge_again is None else None,  # its variable speaks of every run, and this is none
        is_watching=watch is not None,
    )
    results.require_places()
    results.put_earlier_aside()
    if judge_again is not None:
        report = judge(read_evidence(judge_again))
        return results.deliver(report, code=exit_code(verdict=report.verdict))
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
        data_parallel=data_parallel,
    )
    records = [None if path is None else artifacts.read(path, Record) for path in (golden, baseline)]
    prompt_set = session.read_prompts(prompts)
    with console.progress() as progress, session.open_ledger(ledger, no_ledger=no_ledger) as store:
        found = session.read_release(release, option="--release", jobs=jobs, no_memo=no_memo, progress=progress)
        before = session.read_old_release(old_release, new=found, jobs=jobs, no_memo=no_memo, progress=progress)
        deployment = session.deployment_of(
            found, config=config, ledger=store, prompt_set=prompt_set, namespace=namespace, command="verify"
        )

        async def gather(run: int) -> Observed:
            async with (
                session.fleet_of(access, release=release, progress=progress) as fleet,
                open_twins(
                    access,
                    release=release,
                    old_release=old_release,
                    reference=reference,
                    golden=records[0],
                    baseline=records[1],
                    warn=console.say_warning,
                ) as twins,
            ):
                return await observe(
                    fleet.engines,
                    deployment=deployment,
                    ledger=store,
                    limits=Limits(stale_below=stale_below, expects_cold=expect_cold, requires_power=require_power),
                    twins=twins,
                    old_release=before,
                    max_probes=probes,
                    seed=seed + run,
                    allows_flush=allow_flush,
                    before_flush=results.keep_before_flush,
                    changes=fleet.changes,
                    progress=progress,
                )

        def verified(run: int) -> Lap:
            observed = run_async(gather(run))
            saved = results.save_observations(observed.evidence, run=run + 1)
            report, faults = conclude(observed, deployment=deployment, ledger=store)
            for fault in faults:
                console.say_fault(fault)
            code = exit_code(verdict=report.verdict, faults=faults, interrupted=observed.interrupted)
            return Lap(code=worst((code, saved)), report=report, was_interrupted=observed.interrupted)

        def lap(run: int) -> Lap:
            try:
                return verified(run)
            except (ServiceError, NoModel) as error:  # nobody could be asked: while watching, the next run may
                console.say_error(error)
                return Lap(code=error.exit_code)

        def after(found: Lap, run: int) -> Lap:
            return results.after_run(found, deployment=deployment, run=run + 1)

        ended = alone(after(lap(0), 0)) if watch is None else watching(lap, after=after, every_s=watch, for_s=watch_for)
    return results.at_the_end(ended)


def _require_no_other_option(context: typer.Context, *, source: Path) -> None:
    """Checks that nothing on the command line asks for what `--from` does not do.

    Raises:
        UsageError: an option would have no effect.
    """
    ignored = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name is not None and parameter.name not in _OF_JUDGING_AGAIN
        if options.is_typed(context, parameter.name)
    ]
    if ignored:
        raise UsageError(
            f"--from {source} judges what was observed before, by the limits of that run: with it {', '.join(ignored)} "
            f"{'has' if len(ignored) == 1 else 'have'} no effect",
            hint="leave out --from to observe anew, or give it alone (--format and --output keep their meaning)",
        )
