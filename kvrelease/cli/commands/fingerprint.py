"""`kvrelease fingerprint`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvrelease.cli import console
from kvrelease.cli.earlier import put_aside
from kvrelease.cli.options import (
    AdapterOption,
    FormatOption,
    JobsOption,
    ModeOption,
    NameOption,
    NoMemoOption,
    OutputOption,
    VersionLabelOption,
)
from kvrelease.cli.outcome import exit_code
from kvrelease.cli.output import Format, choose_format, deliver, require_writable, save
from kvrelease.cli.session import adapter_sources, open_memo
from kvrelease.errors import ExitCode, InputError, UsageError, worst
from kvrelease.release.mode import Mode

if TYPE_CHECKING:
    from kvrelease.release.check import ReleaseCheck

_PUBLISHING = "Publishing"


def fingerprint(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model directory, one .safetensors or .gguf file, either in s3:// or gs://, or hf:ORG/NAME@REVISION.",
        ),
    ],
    *,
    mode: ModeOption = Mode.FULL,
    publish: Annotated[
        bool,
        typer.Option(
            "--publish",
            help="Also write kvrelease.json beside the weights, so that others need not hash them. Always hashes.",
            rich_help_panel=_PUBLISHING,
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare with the kvrelease.json beside the weights: end 0 when it is the release, 1 when it is not, "
            "3 when it is not known. Always hashes. With --mode fast: 0 when no change was seen.",
            rich_help_panel=_PUBLISHING,
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Compare with this saved fingerprint instead (implies --check).",
            rich_help_panel=_PUBLISHING,
        ),
    ] = None,
    name: NameOption = None,
    release_version: VersionLabelOption = None,
    adapter: AdapterOption = None,
    jobs: JobsOption = None,
    no_memo: NoMemoOption = False,
    form: FormatOption = None,
    output: OutputOption = None,
) -> ExitCode:
    """Say what a release is: digests of its weights, and of what its KV cache depends on.

    Every byte of every tensor is hashed. Resharding, renaming and copying change nothing; one flipped bit does. The kv
    name (kv1-…) names the KV that these weights make, and goes into every cache key. With --adapter, each LoRA adapter
    gets a kv name of its own, because base and adapter make its KV together; an adapter alone has none. Adapters are
    always read whole, with --mode fast too.

    Example: kvrelease fingerprint ./models/v1.3 -o v1.3.json
    """
    from kvrelease.artifacts import kind_of
    from kvrelease.release.adapted import with_adapters
    from kvrelease.release.address import require_named
    from kvrelease.release.check import ReleaseCheck, check_release
    from kvrelease.release.loading import load_release
    from kvrelease.release.publication import check_by_stated_hashes, read_publication
    from kvrelease.report.fingerprint import fingerprint_document

    require_named(model)
    chosen = choose_format(form, output)
    if publish or chosen is Format.JSON:
        _require_nameable(model, *(adapter or ()), name=name)
    place = _place_to_publish(model, mode=mode) if publish else None
    is_check = check or against is not None
    if publish and is_check:
        raise UsageError(
            "--publish writes what --check compares with: one run can do one of them", hint="leave out one of the two"
        )
    if is_check:
        put_aside(output, kinds=(kind_of(ReleaseCheck),))
    published = read_publication(model, against=against) if is_check else None
    adapters = adapter_sources(adapter or ())
    memo = open_memo(no_memo=no_memo or publish or is_check)
    if published is not None and mode is Mode.FAST and not adapters:
        stated = check_by_stated_hashes(published, model)
        if stated is not None:
            for warning in stated.warnings:
                console.say_warning(warning)
            return _deliver_check(stated, wanted=form, output=output)
    with console.progress() as progress:
        found = load_release(
            model, mode=mode, memo=memo, jobs=jobs, name=name, version=release_version, progress=progress
        )
        if adapters:
            found = with_adapters(found, adapters, memo=memo, jobs=jobs, progress=progress)
    for warning in found.warnings:
        console.say_warning(warning)
    if memo is not None and (note := memo.note()) is not None:
        console.say_note(note)
    if published is not None:
        return _deliver_check(check_release(published, found), wanted=form, output=output)
    code = deliver(found, lambda: fingerprint_document(found), wanted=form, output=output)
    if place is not None:
        code = worst((code, save(found, place, follows_links=False)))
        if code is ExitCode.OK:
            console.say(f"published: {place}")
    return code


def _require_nameable(*sources: str, name: str | None) -> None:
    """Checks that an artifact can hold the addresses and the name of a release; before gigabytes are hashed.

    Raises:
        InputError: it cannot.
    """
    from kvrelease.printable import is_utf8

    names = [*sources, Path(sources[0]).resolve().name if name is None else name]
    wrong = next((text for text in names if not is_utf8(text)), None)
    if wrong is not None:
        raise InputError(
            f"reading {sources[0]}: an artifact cannot hold the name {wrong!r}, which is not valid UTF-8",
            hint="rename that file or directory",
        )


def _place_to_publish(model: str, *, mode: Mode) -> Path:
    """Where `--publish` writes; checked before gigabytes are hashed.

    Raises:
        UsageError: not a full fingerprint, not of a directory, or nothing can be written there.
    """
    from kvrelease.release.check import PUBLISHED_NAME

    if mode is not Mode.FULL:
        raise UsageError(
            f"--publish with --mode {mode}: others take a published fingerprint for the release itself, and only a "
            "full one is that",
            hint="leave out --mode, or save it elsewhere with --output",
        )
    if not Path(model).is_dir():
        raise UsageError(
            f"--publish {model}: only a model directory on this machine has a place for {PUBLISHED_NAME}",
            hint="save the fingerprint with --output FILE instead",
        )
    place = Path(model) / PUBLISHED_NAME
    # The Hub's cache keeps links to files named after their content: a link is replaced, never what it leads to.
    require_writable(place, option="--publish", follows_links=False)
    return place


def _deliver_check(result: "ReleaseCheck", *, wanted: Format | None, output: Path | None) -> ExitCode:
    from kvrelease.report.check import check_document

    return deliver(
        result,
        lambda: check_document(result),
        wanted=wanted,
        output=output,
        code=exit_code(verdict=result.verdict),
    )
