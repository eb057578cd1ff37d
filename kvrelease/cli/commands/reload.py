"""`kvrelease reload`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from pathlib import Path
from typing import Annotated

import typer

from kvrelease.cli import console, options, session
from kvrelease.cli.interrupt import run_async
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.config import DEFAULT_TIMEOUT_S
from kvrelease.errors import ExitCode, UsageError

_HOLD = "Hold"
_EVIDENCE = "Evidence"
# A model of 140 GB from a disk of 1 GB/s takes 140 s, from a network file system some times that.
_RELOAD_S = 600.0
# What an answer of a few thousand tokens takes; half of what the middleware holds at most unless told otherwise.
_DRAIN_S = 30.0


def reload(
    *,
    release: options.ReleaseOption = None,
    weights_path: Annotated[
        str | None,
        typer.Option(
            "--weights-path",
            envvar="KVRELEASE_WEIGHTS_PATH",
            metavar="PATH",
            help="Where the engine's machine sees the new weights. Default: the release's directory.",
            rich_help_panel="Release",
        ),
    ] = None,
    prompts: options.PromptsOption = None,
    golden: Annotated[
        Path | None,
        typer.Option(
            "--golden",
            envvar="KVRELEASE_GOLDEN",
            metavar="FILE",
            help="Record of the new release from a clean, trusted process; a few of its prompts (--prompts) are asked "
            "before anybody is let in.",
            rich_help_panel=_EVIDENCE,
        ),
    ] = None,
    engine_url: options.EngineUrlOption = None,
    replicas: options.ReplicasOption = None,
    engine: options.EngineOption = None,
    model: options.ModelOption = None,
    control_token_env: Annotated[
        str,
        typer.Option(
            "--control-token-env",
            envvar="KVRELEASE_CONTROL_TOKEN_ENV",
            metavar="NAME",
            help="Environment variable that holds the middleware's control token.",
            rich_help_panel="Engine",
        ),
    ] = "KVRELEASE_CONTROL_TOKEN",  # noqa: S107 - the name of a variable
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            envvar="KVRELEASE_DRAIN_TIMEOUT",
            metavar="SECONDS",
            min=0.1,
            callback=options.finite,
            help="How long requests in flight may take; then the old release goes on.",
            rich_help_panel=_HOLD,
        ),
    ] = _DRAIN_S,
    hold_timeout: Annotated[
        float | None,
        typer.Option(
            "--hold-timeout",
            envvar="KVRELEASE_HOLD_TIMEOUT",
            metavar="SECONDS",
            min=0.1,
            callback=options.finite,
            help="Who has waited so long is turned away with 503 and Retry-After, while the reload goes on. Default: "
            "the middleware's own limit (KVRELEASE_HOLD_SECONDS), which is never exceeded.",
            rich_help_panel=_HOLD,
        ),
    ] = None,
    reload_timeout: Annotated[
        float,
        typer.Option(
            "--reload-timeout",
            envvar="KVRELEASE_RELOAD_TIMEOUT",
            metavar="SECONDS",
            min=0.1,
            callback=options.finite,
            help="Deadline of the call that loads the weights; after it the gate stays closed.",
            rich_help_panel=_HOLD,
        ),
    ] = _RELOAD_S,
    allow_flush: options.AllowFlushOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask every replica whether anything speaks against it; change nothing.")
    ] = False,
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
    """Swap an engine's weights in place, safely: hold, drain, reload, ask the weights, new namespace, resume.

    Needs vLLM in development mode behind kvrelease's middleware with a control token (docs/middleware.md). Requests
    wait meanwhile. Whatever goes wrong before the weights are touched leaves the old release serving; whatever goes
    wrong after that leaves the gate closed. Replicas are taken one after the other. --release is the new one.

    Example: kvrelease reload --release ./models/v1.3 --golden golden.json --prompts prompts/support.yaml --engine-url
    http://127.0.0.1:8000
    """
    from kvrelease import artifacts
    from kvrelease.binding.deployment import declared_namespace
    from kvrelease.binding.reloading.result import Reloading, ReloadReport
    from kvrelease.binding.reloading.run import reload as run
    from kvrelease.config import control_token
    from kvrelease.engines.base import EngineIdentity
    from kvrelease.engines.gate import OPEN, GateState
    from kvrelease.report.reload import reload_document
    from kvrelease.verify.record import Record
    from kvrelease.verify.run import require_same
    from kvrelease.verify.swap_probes import SwapProbes

    choose_format(form, output)
    if golden is not None and prompts is None:
        raise UsageError(
            "--golden holds answers, and not the questions", hint="add --prompts, the set that it was recorded with"
        )
    token = control_token(control_token_env)
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
    )
    record = None if golden is None else artifacts.read(golden, Record)
    prompt_set = None if prompts is None else session.read_prompts(prompts)
    opened = session.look_at_ledger if dry_run else session.open_ledger
    with console.progress() as progress, opened(ledger, no_ledger=no_ledger) as store:
        found = session.read_release(release, option="--release", jobs=jobs, no_memo=no_memo, progress=progress)
        if found.adapters:
            raise UsageError(
                f"{found.release.name} has adapters, whose KV depends on the model too: they are not reloaded in place",
                hint="restart the engine with the new release and its adapters",
            )
        path = weights_path or session.absolute_directory(release)
        if path is None:
            raise UsageError(
                f"--release {release} is no directory that an engine could load",
                hint="say with --weights-path where the engine's machine sees the weights",
            )
        deployment = None
        if prompt_set is None:
            runtime, space, _ = declared_namespace(
                found, config=config, ledger=store, command="reload", warn=console.say_warning
            )
            namespace = space.namespace
        else:
            deployment = session.deployment_of(
                found, config=config, ledger=store, prompt_set=prompt_set, namespace="none", command="reload"
            )
            runtime, namespace = deployment.runtime, deployment.namespace
            require_same(record, option="--golden", deployment=deployment, same_release=True)

        def witness(identity: EngineIdentity, gate: GateState) -> SwapProbes | None:
            if deployment is None:
                return None
            is_other = gate.state == OPEN and gate.namespace != namespace
            return SwapProbes(deployment, identity=identity, golden=record, is_other_release=is_other)

        async def swap() -> ReloadReport:
            async with session.fleet_of(access, release=release, progress=progress) as fleet:
                return await run(
                    fleet.engines,
                    reloading=Reloading(
                        release=found.release,
                        namespace=namespace,
                        runtime=runtime,
                        weights_path=path,
                        drain_timeout_s=drain_timeout,
                        hold_timeout_s=hold_timeout,
                        reload_timeout_s=reload_timeout,
                        allows_flush=allow_flush,
                    ),
                    token=token,
                    witness=witness,
                    ledger=store,
                    is_dry=dry_run,
                    progress=progress,
                )

        report = run_async(swap())
    for fault in report.faults:
        console.say_fault(fault)
    code = exit_code(verdict=report.verdict, faults=report.faults, interrupted=report.interrupted)
    return deliver(report, lambda: reload_document(report), wanted=form, output=output, code=code)
