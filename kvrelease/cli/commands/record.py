"""`kvrelease record`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from typing import Annotated

import typer

from kvrelease.cli import console, options, session
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.config import DEFAULT_TIMEOUT_S
from kvrelease.errors import ExitCode, UsageError


def record(
    *,
    release: options.ReleaseOption = None,
    prompts: options.PromptsOption = None,
    engine_url: options.EngineUrlOption = None,
    engine: options.EngineOption = None,
    model: options.ModelOption = None,
    namespace: options.NamespaceOption = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            envvar="KVRELEASE_MAX_TOKENS",
            metavar="N",
            min=1,
            max=4096,
            help="Greedy tokens of each answer.",
        ),
    ] = 8,
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
    """Observe a release on a prompt set, exactly as users would: a golden record, or a baseline.

    A golden comes from a clean, trusted process of the new release (staging); a baseline from the old release while it
    still serves. Both feed verify. Requests fill the cache as users do.

    Example: kvrelease record --release ./models/v1.2 --engine-url http://127.0.0.1:8000 --prompts prompts/support.yaml
    -o baseline.json
    """
    from kvrelease.report.record import record_document
    from kvrelease.verify.record import Record
    from kvrelease.verify.record import record as run

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
        wait_s=wait,
    )
    if len(access.replicas) > 1:
        raise UsageError("record observes one replica, and several are named", hint="name one --engine-url")

    prompt_set = session.read_prompts(prompts)
    with console.progress() as progress, session.open_ledger(ledger, no_ledger=no_ledger) as store:
        found = session.read_release(release, option="--release", jobs=jobs, no_memo=no_memo, progress=progress)
        deployment = session.deployment_of(
            found, config=config, ledger=store, prompt_set=prompt_set, namespace=namespace, command="record"
        )

        async def observe() -> Record:
            async with session.fleet_of(access, release=release, progress=progress) as fleet:
                engine = fleet.require_one(option="--engine-url")
                return await run(engine, deployment=deployment, ledger=store, max_tokens=max_tokens, progress=progress)

        report = run_async(observe())
    for fault in report.faults:
        console.say_fault(fault)
    code = exit_code(faults=report.faults, interrupted=report.interrupted)
    return deliver(report, lambda: record_document(report), wanted=form, output=output, code=code)
