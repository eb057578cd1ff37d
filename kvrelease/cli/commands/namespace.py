"""`kvrelease namespace`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from typing import Annotated

import typer

from kvrelease.cli import console, session
from kvrelease.cli.options import FormatOption, JobsOption, LedgerOption, NoLedgerOption, NoMemoOption, OutputOption
from kvrelease.cli.output import choose_format, deliver
from kvrelease.config import CONFIG_NAME
from kvrelease.engines.base import EngineKind
from kvrelease.errors import ExitCode, UsageError


def namespace(
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="Model directory, or a saved fingerprint.")],
    *,
    engine: Annotated[
        EngineKind,
        typer.Option("--engine", envvar="KVRELEASE_ENGINE", help="Engine whose caches are to be bound."),
    ],
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="Leave the current name, which was poisoned, and make the next.")
    ] = False,
    jobs: JobsOption = None,
    no_memo: NoMemoOption = False,
    ledger: LedgerOption = None,
    no_ledger: NoLedgerOption = False,
    form: FormatOption = None,
    output: OutputOption = None,
) -> ExitCode:
    """Print the release's namespace, and how to bind an engine's caches to it.

    The namespace is `<kv name>-<runtime>-e<epoch>`: the weights, the declared engine settings, and a number that is
    bumped when a name was poisoned. The same release and runtime always get the same namespace, from the ledger.

    Example: kvrelease namespace ./models/v1.3 --engine vllm
    """
    from kvrelease.binding.namespace import NamespaceReport, RuntimeReport, resolve_namespace
    from kvrelease.binding.runtime import (
        UNDECLARED_WARNING,
        declared_runtime,
        other_engine,
        unknown_field_warnings,
    )
    from kvrelease.binding.settings import binding_settings
    from kvrelease.release.fingerprint import require_kv_name
    from kvrelease.report.namespace import namespace_document

    choose_format(form, output)
    if new_epoch and no_ledger:
        raise UsageError(
            "--new-epoch leaves the current name, which only the ledger knows, and --no-ledger was given",
            hint="leave out --no-ledger",
        )
    runtime = declared_runtime(session.configuration().runtime)
    with console.progress() as progress:
        found = session.read_release(release, option="RELEASE", jobs=jobs, no_memo=no_memo, progress=progress)
    require_kv_name(found)
    with session.open_ledger(ledger, no_ledger=no_ledger) as store:
        record, is_new = resolve_namespace(
            found.release, runtime=runtime, ledger=store, command="namespace", is_new_epoch=new_epoch
        )
    warnings = []
    if runtime.digest is None:
        warnings.append(UNDECLARED_WARNING)
    warnings += unknown_field_warnings(runtime.fields, source=CONFIG_NAME)
    if other := other_engine(runtime, kind=engine):
        warnings.append(
            f"the namespace stands for {other}, the engine under runtime: in kvrelease.yaml, and the settings are for "
            f"{engine}: name the other with --engine, or correct runtime.engine, which makes another namespace"
        )
    if no_ledger:
        warnings.append("without a ledger the epoch is not remembered: a poisoned name would come back")
    for warning in warnings:
        console.say_warning(warning)
    report = NamespaceReport(
        release=found.release,
        namespace=record.namespace,
        kv_name=record.kv_name,
        runtime=RuntimeReport(digest=runtime.digest, name=runtime.name, fields=runtime.fields, unread=runtime.unread),
        epoch=record.epoch,
        is_new=is_new,
        engine=str(engine),
        settings=binding_settings(engine, record.namespace),
        warnings=tuple(warnings),
    )
    return deliver(report, lambda: namespace_document(report), wanted=form, output=output)
