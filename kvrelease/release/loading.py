"""The fingerprint of whatever a user may call a release: made from its files, or read as it was saved."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from kvrelease import artifacts
from kvrelease.progress import Progress, silent
from kvrelease.release.adapted import fingerprint_adapter_with_text
from kvrelease.release.adapter import is_adapter
from kvrelease.release.address import open_saved, open_source
from kvrelease.release.check import PUBLISHED_NAME
from kvrelease.release.details import TextContent
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.fingerprinting import fingerprint_with_text
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.saved import require_consistent, warnings_beside
from kvrelease.release.side_files import counts_for_kv, is_known_file
from kvrelease.release.small_files import read_bytes


def load_release(
    what: str | Path,
    *,
    mode: Mode = Mode.FULL,
    memo: Memo | None = None,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
) -> Fingerprint:
    """The fingerprint of whatever a user may call a release: that of `load_with_text`.

    Raises:
        InputError: as there.
        UsageError: an address of no known form, or an empty one.
        MissingExtra: a library for such addresses is not installed.
        ServiceError: the store did not answer properly.
    """
    found, _ = load_with_text(what, mode=mode, memo=memo, jobs=jobs, name=name, version=version, progress=progress)
    return found


def load_with_text(
    what: str | Path,
    *,
    mode: Mode = Mode.FULL,
    memo: Memo | None = None,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
) -> tuple[Fingerprint, TextContent | None]:
    """The fingerprint of a release, and the text side that its digests were made of; None where it was saved.

    Args:
        what: a model directory, one `.safetensors` or `.gguf` file, an adapter's directory, or a saved fingerprint
            (`kvrelease.json`); each of them also in an object store (`s3://`, `gs://`); or a model on the Hub
            (`hf:org/name@revision`).
        mode: how much of the tensors is read; an adapter is always read whole, a saved fingerprint stays what it is.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to hash with; None for as many as are worthwhile here.
        name: overrides the release's own.
        version: overrides the release's own.
        progress: called while hashing.

    Raises:
        NotFound: no such path, no weights, absent shards, or no config.json in a directory.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted.
        InputError: a file cannot be read, or changed meanwhile.
        UsageError: an address of no known form, or an empty one.
        MissingExtra: a library for such addresses is not installed.
        ServiceError: the store did not answer properly.
    """
    file = open_saved(what)
    if file is not None:
        data = read_bytes(file, limit_bytes=artifacts.MAX_ARTIFACT_BYTES)
        saved = artifacts.from_json(data, Fingerprint, source=file.where, hint=_next_step(file.name, str(what)))
        require_consistent(saved, where=file.where)
        release = msgspec.structs.replace(
            saved.release, name=name or saved.release.name, version=version or saved.release.version
        )
        warnings = (*saved.warnings, *warnings_beside(saved, what=str(what)))
        return msgspec.structs.replace(saved, release=release, warnings=warnings), None
    source = open_source(what)
    if is_adapter(source):
        return fingerprint_adapter_with_text(
            source, memo=memo, jobs=jobs, name=name, version=version, progress=progress
        )
    return fingerprint_with_text(source, mode=mode, memo=memo, jobs=jobs, name=name, version=version, progress=progress)


def _next_step(name: str, what: str) -> str | None:
    """What to give instead of a file that belongs to a release, and is no fingerprint of one."""
    if name == PUBLISHED_NAME or (counts_for_kv(name) and not is_known_file(name)):
        return None
    return f"{name} is a part of a release: give its directory, {shlex.quote(what.rpartition('/')[0] or '.')}"
