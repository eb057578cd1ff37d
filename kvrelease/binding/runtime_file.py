"""What a saved file says about the runtime that it was made under: an artifact of ours, or YAML with `runtime:`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvrelease.absent import next_step
from kvrelease.artifacts import MAX_ARTIFACT_BYTES
from kvrelease.binding.runtime import UNDECLARED, declared_runtime, unknown_field_warnings
from kvrelease.config import RUNTIME_EXAMPLE, RUNTIME_FIELDS, parse_config
from kvrelease.errors import DamagedFile, InputError, NotFound, UsageError
from kvrelease.release.runtime_change import RuntimeChange, StatedRuntime, compare_runtimes

# Kinds whose artifacts are made under one runtime.
_KINDS = ("kvrelease/namespace", "kvrelease/record", "kvrelease/prewarm", "kvrelease/verify")
# `<kv name>-<runtime>-e<epoch>` (ledger/records.py).
_NAMESPACE = re.compile(r"kv1-[a-z2-7]{32}-([a-z0-9]+)-e[0-9]+\Z")


class _Fields(msgspec.Struct, frozen=True, kw_only=True):
    """`runtime` of a namespace artifact."""

    fields: dict[str, str]


class _Engine(msgspec.Struct, frozen=True, kw_only=True):
    """`engine` of a record."""

    kind: str
    version: str | None = None


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact of any kind may say of a runtime."""

    kind: str
    namespace: str | None = None
    runtime: _Fields | None = None
    engine: _Engine | str | None = None


def compare_runtime_files(old: Path | None, new: Path | None, *, warn: Callable[[str], None]) -> RuntimeChange:
    """What two files say about whether the runtime changed; not compared where one is not given.

    Args:
        old: as `read_stated_runtime` takes it: what the old KV was made under.
        new: likewise, what the new release is served under.
        warn: called for each field that we do not know.

    Raises:
        KvreleaseError: as `read_stated_runtime` does.
    """
    stated = [None if path is None else read_stated_runtime(path) for path in (old, new)]
    sides = [side for side in stated if side is not None]
    for warning in dict.fromkeys(
        warning for side in sides for warning in unknown_field_warnings(side.fields, source=side.source)
    ):
        warn(warning)
    return compare_runtimes(*stated, known_fields=RUNTIME_FIELDS)


def read_stated_runtime(path: Path) -> StatedRuntime:
    """The runtime that a file states.

    Args:
        path: a namespace, record, prewarm or verify artifact (`.json`), or YAML that declares a `runtime:`.

    Raises:
        NotFound: no such file.
        DamagedFile: not what its name promises.
        InputError: it cannot be read, or is of a kind that says nothing of a runtime.
        UsageError: YAML with a key that no configuration has, or without a runtime.
    """
    try:
        data = _read(path)
    except FileNotFoundError as error:
        raise NotFound(f"reading the runtime in {path}: no such file", hint=next_step(path)) from error
    except IsADirectoryError as error:
        raise InputError(
            f"reading the runtime in {path}: it is a directory",
            hint="give the file in it that states a runtime: a saved artifact (.json), or YAML with runtime:",
        ) from error
    except OSError as error:
        raise InputError(
            f"reading the runtime in {path}: {error.strerror or error}", hint="give a file that you may read"
        ) from error
    if len(data) > MAX_ARTIFACT_BYTES:
        raise DamagedFile(f"reading the runtime in {path}: more than {MAX_ARTIFACT_BYTES} bytes, which no artifact has")
    if path.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(data, path)
    return _from_artifact(data, path)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_ARTIFACT_BYTES + 1)


def _from_yaml(data: bytes, path: Path) -> StatedRuntime:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"reading the runtime in {path}: not UTF-8 (byte {error.start})") from error
    runtime = declared_runtime(parse_config(text, source=str(path)).runtime)
    if not runtime.fields:
        raise UsageError(
            f"reading the runtime in {path}: it declares none",
            hint=f"write it under runtime:, as in {RUNTIME_EXAMPLE}",
        )
    return StatedRuntime(source=str(path), fields=runtime.fields, name=runtime.name)


def _from_artifact(data: bytes, path: Path) -> StatedRuntime:
    try:
        saved = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=_Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(
            f"reading the runtime in {path}: neither YAML (by its name) nor an artifact of kvrelease ({error})",
            hint="give what `kvrelease namespace -o FILE.json` or `record` saved, or a .yaml with runtime:",
        ) from error
    if saved.kind not in _KINDS:
        raise InputError(
            f"reading the runtime in {path}: it is a {saved.kind} artifact, which says nothing of a runtime",
            hint=f"give one of {', '.join(kind.removeprefix('kvrelease/') for kind in _KINDS)}",
        )
    match = _NAMESPACE.match(saved.namespace or "")
    name = None if match is None or match[1] == UNDECLARED else match[1]
    fields = {} if saved.runtime is None else dict(saved.runtime.fields)
    if isinstance(saved.engine, _Engine):
        told = {"engine": saved.engine.kind, "version": saved.engine.version}
        fields = {**{field: value for field, value in told.items() if value is not None}, **fields}
    return StatedRuntime(source=str(path), fields=fields, name=name)
