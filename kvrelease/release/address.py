"""What a user may call a release, as an open source.

Places beyond this machine's file systems are imported late: they cost time, and their libraries are extras.
"""

# ruff: noqa: PLC0415 - imports of places beyond this machine stay inside the functions
from __future__ import annotations

from pathlib import Path

from kvrelease.absent import next_step
from kvrelease.errors import NotFound, UnsupportedRelease, UsageError
from kvrelease.release.hub_cache import open_in_cache
from kvrelease.release.local_source import LocalFile, is_link, open_directory, open_single_file, path_exists
from kvrelease.release.source import HUB_PREFIX, Source, SourceFile
from kvrelease.release.weights import WEIGHT_SUFFIXES


def open_source(what: str | Path) -> Source:
    """The place that an address names.

    Args:
        what: a model directory or a Hub cache's folder, one `.safetensors` or `.gguf` file, either in an object store
            (`s3://`, `gs://`), or a model on the Hub (`hf:org/name@revision`).

    Raises:
        NotFound: nothing is there; offline, nothing that the cache has.
        UnsupportedRelease: something is there that can be no release.
        UsageError: an address of no known form, an empty one, or one with credentials in it.
        MissingExtra: a library for such addresses is not installed.
        DamagedFile: the Hub's cache contradicts itself.
        InputError: whether anything is there cannot be told.
        ServiceError: the store did not answer properly, or refused.
    """
    require_named(what)
    if str(what).startswith(HUB_PREFIX):
        from kvrelease.release.hub_source import hub_settings, open_hub, parse_hub_address

        address = parse_hub_address(str(what), single_file_suffixes=WEIGHT_SUFFIXES)
        return open_hub(address, settings=hub_settings())
    if "://" in str(what):
        from kvrelease.release.object_store import open_object_store

        return open_object_store(str(what), single_file_suffixes=WEIGHT_SUFFIXES)
    path = Path(what)
    exists = path_exists(path)
    if exists and path.is_dir():
        return open_in_cache(path) or open_directory(path)
    if path.suffix not in WEIGHT_SUFFIXES and exists:
        raise UnsupportedRelease(
            f"reading {path}: neither a model directory nor a .safetensors, .gguf or .json file",
            hint="give the model's directory, or a fingerprint that was saved with --output",
        )
    if not exists and not is_link(path):
        raise NotFound(f"reading {path}: no such file or directory", hint=next_step(path))
    return open_single_file(path)


def is_elsewhere(what: str | Path) -> bool:
    """Whether an address names a place beyond this machine's file systems."""
    return str(what).startswith(HUB_PREFIX) or "://" in str(what)


def require_named(what: str | Path) -> None:
    """Refuses an empty address, which a path library would take for the working directory.

    Raises:
        UsageError: it is empty.
    """
    if not str(what).strip():
        raise UsageError(
            "no release is named: its address is empty",
            hint="write . for the working directory; an unset variable in a pipeline reads as an empty word",
        )


def open_saved(what: str | Path) -> SourceFile | None:
    """The saved fingerprint that an address names; None where it names a release.

    Raises:
        UsageError: an address of no known form.
        MissingExtra: a library for such addresses is not installed.
    """
    require_named(what)
    path = Path(what)
    if path.suffix != ".json" or str(what).startswith(HUB_PREFIX):
        return None
    if "://" in str(what):
        from kvrelease.release.object_store import open_object_store

        source = open_object_store(str(what), single_file_suffixes=(".json",))
        return source.file(path.name)
    return None if path_exists(path) and path.is_dir() else LocalFile(path=path, name=path.name)
