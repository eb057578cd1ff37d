"""`kvrelease fingerprint`."""

# ruff: noqa: PLC0415 - heavy imports stay inside the command
from typing import Annotated

import typer

from kvrelease.cli import console
from kvrelease.cli.options import FormatOption, JobsOption, NameOption, OutputOption, VersionLabelOption
from kvrelease.cli.output import choose_format, deliver
from kvrelease.errors import ExitCode


def fingerprint(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model directory, or one .safetensors or .gguf file.")],
    *,
    name: NameOption = None,
    release_version: VersionLabelOption = None,
    jobs: JobsOption = None,
    form: FormatOption = None,
    output: OutputOption = None,
) -> ExitCode:
    """Say what a release is: digests of its weights, and of what its KV cache depends on.

    Every byte of every tensor is hashed. Resharding, renaming and copying change nothing; one flipped bit does. The kv
    name (kv1-…) names the KV that these weights make, and goes into every cache key.

    Example: kvrelease fingerprint ./models/v1.3 -o v1.3.json
    """
    from kvrelease.release.fingerprint import load_release
    from kvrelease.report.fingerprint import fingerprint_document

    choose_format(form, output)
    with console.progress() as progress:
        found = load_release(model, jobs=jobs, name=name, version=release_version, progress=progress)
    for warning in found.warnings:
        console.say_warning(warning)
    return deliver(found, lambda: fingerprint_document(found), wanted=form, output=output)
