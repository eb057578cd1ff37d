"""Leaving the pair and its store behind, for the other commands to be tried on."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kvrelease.demo.figures import Kept
from kvrelease.demo.pair import DemoPair
from kvrelease.engines.block_cache import BlockCache
from kvrelease.engines.block_files import BlockFiles
from kvrelease.errors import InputError, UsageError

STORE = "store"

# Two releases of 2 MB, and some thousand blocks of 16 KiB.
NEEDED_BYTES = 32_000_000


def require_room(directory: Path) -> None:
    """Checks before the run what would lose its result after it.

    Raises:
        UsageError: something is in the directory already, or it is a file.
        InputError: it cannot be written, or there is no room.
    """
    parent = directory.absolute().parent
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(f"keeping the demo in {directory}: it is not an empty directory", hint="name a new one")
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise UsageError(f"keeping the demo in {directory}: nothing can be written to {parent}")
        free_bytes = shutil.disk_usage(parent).free
    except OSError as error:
        raise _refusal(directory, error) from error
    if free_bytes < NEEDED_BYTES:
        raise InputError(
            f"keeping the demo in {directory}: {free_bytes / 1e6:.0f} MB are free there, {NEEDED_BYTES / 1e6:.0f} MB "
            "are needed",
            hint="make room, or name another directory",
        )


def keep(pair: DemoPair, stores: Sequence[BlockCache], directory: Path) -> Kept:
    """Copies both releases and the blocks of all stores to a directory, whole or not at all.

    Raises:
        InputError: it could not be written; nothing is left there.
    """
    try:
        partial = Path(tempfile.mkdtemp(dir=directory.absolute().parent, prefix=f".{directory.name}."))
        try:
            for release in (pair.old, pair.new):
                shutil.copytree(release, partial / release.name)
            files = BlockFiles(partial / STORE)
            for store in stores:
                store.save(files)
            partial.chmod(0o755)
            partial.replace(directory)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except shutil.Error as error:
        raise InputError(f"keeping the demo in {directory}: {error.args[0][0][2]}", hint="make room") from error
    except OSError as error:
        raise _refusal(directory, error) from error
    return Kept(old=str(directory / pair.old.name), new=str(directory / pair.new.name), store=str(directory / STORE))


def _refusal(directory: Path, error: OSError) -> InputError:
    return InputError(
        f"keeping the demo in {directory}: {error.strerror or error}",
        hint="make room" if error.errno == errno.ENOSPC else "name a directory that you may write to",
    )
