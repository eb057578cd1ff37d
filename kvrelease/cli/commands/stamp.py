"""`kvrelease stores stamp`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from typing import TYPE_CHECKING, Annotated

import typer

from kvrelease.cli import console, options, session
from kvrelease.cli.earlier import put_aside
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import choose_format, deliver
from kvrelease.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kvrelease.artifacts import ReleaseRef


def stamp(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Directory of a store, or one file (a saved slot).")],
    *,
    release: Annotated[
        str | None,
        typer.Option("--release", metavar="WHAT", help="Whose store it is: model directory or saved fingerprint."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAMESPACE", help="Its namespace, where that is known already.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: 0 it is stamped so, 1 for another namespace, 3 not at all.")
    ] = False,
    adopt_existing: Annotated[
        str | None,
        typer.Option(
            "--adopt-existing",
            metavar="REASON",
            help="The store has entries, and no stamp of the namespace, and this release made them all: how you know "
            "that. The stamp carries it.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let the stamp of another namespace, or of a file that changed, give way.")
    ] = False,
    jobs: options.JobsOption = None,
    no_memo: options.NoMemoOption = False,
    ledger: options.LedgerOption = None,
    no_ledger: options.NoLedgerOption = False,
    form: options.FormatOption = None,
    output: options.OutputOption = None,
) -> ExitCode:
    """Bind a store to a namespace: a small file in it says whose entries it holds.

    A store that is stamped for another namespace is left alone, and so is one that has entries and no stamp: nobody
    knows which weights made them.

    Example: kvrelease stores stamp /var/lib/kvrelease/vllm/NAMESPACE --release ./models/v1.3

    Example: kvrelease stores stamp ./slots/support.bin --release ./models/v1.3 --check
    """
    from kvrelease.artifacts import kind_of
    from kvrelease.report.stamp import stamp_document
    from kvrelease.stores.stamp import Permission, Stamp, StampAction, StampReport, stamp_verdict
    from kvrelease.stores.stamp_files import read_stamp, stamp_place, write_stamp

    choose_format(form, output)
    if adopt_existing is not None and not adopt_existing.strip():
        raise UsageError("--adopt-existing is empty: say how you know", hint="give the reason in a few words")
    if check and (replace or adopt_existing is not None):
        raise UsageError("--check writes nothing", hint="leave out --replace and --adopt-existing, or --check")
    if check:
        put_aside(output, kinds=(kind_of(StampReport),))
    place = stamp_place(store)
    text, named = _namespace(
        release, namespace=namespace, jobs=jobs, no_memo=no_memo, ledger=ledger, no_ledger=no_ledger
    )
    if check:
        found, file = read_stamp(place)
        verdict, reason = stamp_verdict(found, namespace=text, file=file)
        report = StampReport(place=store, action=StampAction.CHECKED, stamp=found, verdict=verdict, reason=reason)
        code = exit_code(verdict=verdict)
    else:
        permission = Permission(adopts=adopt_existing, replaces=replace)
        made, is_new = write_stamp(place, Stamp(namespace=text, release=named), permission=permission)
        action = StampAction.WRITTEN if is_new else StampAction.UNCHANGED
        report, code = StampReport(place=store, action=action, stamp=made), ExitCode.OK
    return deliver(report, lambda: stamp_document(report), wanted=form, output=output, code=code)


def _namespace(
    release: str | None, *, namespace: str | None, jobs: int | None, no_memo: bool, ledger: str | None, no_ledger: bool
) -> "tuple[str, ReleaseRef | None]":
    """The namespace that the options name, and whose it is.

    Raises:
        UsageError: none or both of the options are given, or the namespace is none.
        InputError: the release has no kv name.
    """
    from kvrelease.binding.namespace import resolve_namespace
    from kvrelease.binding.runtime import declared_runtime
    from kvrelease.ledger.records import is_namespace_text
    from kvrelease.release.fingerprint import require_kv_name

    if (release is None) == (namespace is None):
        given = "neither" if release is None else "both"
        raise UsageError(
            f"a stamp speaks of one namespace, and {given} of --release and --namespace is given",
            hint="give --release MODEL, or --namespace as kvrelease namespace prints it",
        )
    if namespace is not None:
        if not is_namespace_text(namespace):
            raise UsageError(
                f"--namespace {namespace}: it is no namespace of a release",
                hint="kvrelease namespace RELEASE --engine KIND prints it",
            )
        return namespace, None
    runtime = declared_runtime(session.configuration().runtime)
    with console.progress() as progress:
        found = session.read_release(release, option="--release", jobs=jobs, no_memo=no_memo, progress=progress)
    require_kv_name(found)
    with session.open_ledger(ledger, no_ledger=no_ledger) as store:
        record, _ = resolve_namespace(found.release, runtime=runtime, ledger=store, command="stores stamp")
    return record.namespace, found.release
