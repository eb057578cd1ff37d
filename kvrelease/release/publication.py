"""Where the fingerprint that was published of a release lies, and what the release's own place says against it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from kvrelease.errors import NotFound, UnsupportedRelease, UsageError
from kvrelease.release.address import open_saved, open_source
from kvrelease.release.check import PUBLISHED_NAME, ReleaseCheck, check_stated
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.source import HUB_PREFIX
from kvrelease.release.stored import read_stored
from kvrelease.release.weights import WEIGHT_SUFFIXES


def read_publication(release: str, *, against: str | None = None) -> Fingerprint:
    """The saved fingerprint that a release is to be compared with.

    Args:
        release: its address.
        against: address of the saved fingerprint; None for the one that lies beside the release's weights.

    Raises:
        UsageError: no saved fingerprint is named, and the release's place has none of its own.
        MissingExtra: a library for such addresses is not installed.
        NotFound: nothing was published there.
        DamagedFile: it is no fingerprint, or does not agree with itself.
        InputError: it cannot be read.
        ServiceError: the store did not answer properly.
    """
    what = _beside(release) if against is None else against
    if open_saved(what) is None:
        raise UsageError(
            f"{'--check' if against is None else '--against'} {what}: not the address of a saved fingerprint",
            hint="name one with --against FILE.json",
        )
    try:
        return load_release(what)
    except NotFound as error:
        raise NotFound(
            error.message,
            hint=f"kvrelease fingerprint {shlex.quote(release)} --publish where the weights are trusted, or name a "
            "saved fingerprint with --against",
        ) from error


def check_by_stated_hashes(published: Fingerprint, release: str) -> ReleaseCheck | None:
    """The check by what a release's place states of its files, so that no tensor is read; only the Hub states hashes.

    None where it states none of this release, or where they prove nothing: then only reading tells.

    Raises:
        InputError: the release is missing or damaged.
        ServiceError: the Hub did not answer properly.
    """
    if published.stored is None or not release.startswith(HUB_PREFIX):
        return None
    started = time.monotonic()
    try:
        answer = read_stored(open_source(release))
    except UnsupportedRelease:  # a small repository without large files: it states no hashes
        return None
    return check_stated(published, answer, seconds=round(time.monotonic() - started, 3))


def _beside(release: str) -> str:
    """Where a publication of the release would lie."""
    is_folder = Path(release).is_dir() or not release.endswith(WEIGHT_SUFFIXES)
    place = release.rstrip("/") if is_folder else release.rpartition("/")[0]
    return f"{place or '.'}/{PUBLISHED_NAME}"
