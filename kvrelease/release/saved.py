"""Whether a saved fingerprint agrees with itself, and with what lies beside it: what was edited names no KV.

Its digests follow from what it says of tensors, configuration and code, so they are made again. That finds damage and
careless edits; whoever makes all of them anew can still say anything, which only hashing the weights disproves.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from kvrelease.errors import DamagedFile, InputError
from kvrelease.printable import listed
from kvrelease.release.address import is_elsewhere
from kvrelease.release.algorithm import EDITION, edition_of, name_of
from kvrelease.release.auto_map import names_code
from kvrelease.release.check import PUBLISHED_NAME
from kvrelease.release.content import Format
from kvrelease.release.digests import (
    adapted_kv_digest,
    adapter_config_digest,
    adapter_digest,
    algorithm_of,
    config_digest,
    kv_digests,
    release_digest,
    weights_digest,
)
from kvrelease.release.families import family_of_rule
from kvrelease.release.file_changes import unread_of
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE, ALL_RULE
from kvrelease.release.mode import Mode
from kvrelease.release.naming import kv_name
from kvrelease.release.release_file import FileRole

# What KV depends on; a chat template may be edited beside a published fingerprint.
_ROLES = frozenset({FileRole.WEIGHTS, FileRole.CONFIG, FileRole.CODE})


def require_consistent(found: Fingerprint, *, where: str) -> None:
    """Checks that a fingerprint's digests are those of the tensors, configuration and code that it names.

    What another edition of the algorithms made, or a rule of a later version, is checked as far as this version knows
    it.

    Args:
        found: as it was read.
        where: it was read.

    Raises:
        DamagedFile: they are not; the error says which.
    """
    if edition_of(found.digests.kv) != EDITION:
        return
    hint = f"fingerprint the release again: kvrelease fingerprint {shlex.quote(found.release.source)}"
    try:
        wrong = dict.fromkeys(name for name, is_right in _claims(found) if not is_right)
    except (ValueError, RecursionError) as error:  # a digest that is not hexadecimal, JSON that is nested too deep
        raise DamagedFile(f"reading {where}: not a fingerprint of ours: {error}", hint=hint) from error
    if wrong:
        raise DamagedFile(
            f"reading {where}: {', '.join(wrong)} do not follow from the tensors, the configuration and the code that "
            "it names: it was edited or damaged",
            hint=hint,
        )


def require_files_beside(found: Fingerprint, *, what: str) -> None:
    """Checks that weights which lie beside a published fingerprint have the sizes that it was made of.

    Others of equal sizes pass: whoever must know compares the contents (`fingerprint DIRECTORY --check`).

    Args:
        found: as it was read.
        what: the address that it was read from; anything but a local `kvrelease.json` passes.

    Raises:
        InputError: a file beside it has another size.
    """
    place = Path(what)
    if place.name != PUBLISHED_NAME or is_elsewhere(what):
        return
    for file in found.files:
        path = place.parent / file.path
        if file.role not in _ROLES or not path.is_file():
            continue
        size_bytes = path.stat().st_size
        if size_bytes != file.bytes:
            raise InputError(
                f"reading {place}: {file.path!r} beside it has {size_bytes} bytes, and the fingerprint was made of one "
                f"with {file.bytes}: the release was replaced after it was published",
                hint=f"kvrelease fingerprint {shlex.quote(str(place.parent))} --check says what changed, --publish "
                "publishes what is there now",
            )


def warnings_beside(found: Fingerprint, *, what: str) -> tuple[str, ...]:
    """What speaks for other weights beside a published fingerprint than those that it was made of; a hint, no proof.

    Args:
        found: as it was read.
        what: the address that it was read from; anything but a local `kvrelease.json` has nothing beside it.
    """
    place = Path(what)
    if place.name != PUBLISHED_NAME or is_elsewhere(what):
        return ()
    check = f"kvrelease fingerprint {shlex.quote(str(place.parent))} --check tells"
    try:
        published_ns = place.stat().st_mtime_ns
        beside = [(file, place.parent / file.path) for file in found.files if file.role in _ROLES]
        known = [(file, path.stat()) for file, path in beside if path.is_file()]
    except OSError:  # what cannot be looked at says nothing
        return ()
    resized = [file.path for file, now in known if now.st_size != file.bytes]
    newer = [file.path for file, now in known if now.st_mtime_ns > published_ns and now.st_size == file.bytes]
    warnings = []
    if resized:
        warnings.append(
            f"{listed(resized)} beside {place.name} has another size than the fingerprint says, which is of what lay "
            f"there before: {check} what changed"
        )
    if newer:
        warnings.append(
            f"{listed(newer)} beside {place.name} was written after it, by a copy or download of both, or by other "
            f"weights put in its place: {check}"
        )
    return tuple(warnings)


def _claims(found: Fingerprint) -> Iterator[tuple[str, bool]]:
    """What a fingerprint claims, by name, and whether it follows from what else it says."""
    digests, algorithm = found.digests, algorithm_of(found.mode)
    yield "tensors", found.tensors == len(found.tensor_digests)
    yield "digests.weights", digests.weights == weights_digest(found.tensor_digests, algorithm=algorithm)
    yield from _claims_of_an_adapter(found) if found.rule.name == ADAPTER_RULE else _claims_of_kv(found)
    names = [name for name in digests.__struct_fields__ if name not in ("release", "kv")]
    parts = {name: getattr(digests, name) for name in names}
    if found.rule.name == ADAPTER_RULE:
        parts["adapter"] = found.adapters[0].content if found.adapters else None
    else:
        parts |= {f"adapter {adapter.name}": adapter.content for adapter in found.adapters}
    yield "digests.release", digests.release == release_digest(parts, algorithm=algorithm)


def _claims_of_kv(found: Fingerprint) -> Iterator[tuple[str, bool]]:
    digests, rule, entries = found.digests, found.rule, found.config
    algorithm = algorithm_of(found.mode)
    names_any_code = found.format is Format.SAFETENSORS and names_code(entries or {})
    code = found.code if found.code is not None or names_any_code else {}
    if code is not None:  # None where it was saved before code was kept
        config = None if entries is None else config_digest(entries, code, rule)
        yield "digests.config", digests.config == config
        if family_of_rule(rule.name) is not None or rule.name == ALL_RULE:
            kv, layers = kv_digests(found.tensor_digests, entries, code, rule, algorithm=algorithm)
            yield "digests.kv", digests.kv == kv
            yield "layers", found.layers == layers
    yield "digests.kv", name_of(digests.kv) == f"{algorithm}/{rule.name}"
    can_be_named = found.mode is Mode.FULL and entries is not None and not unread_of(found)
    own = found.release.kv_name
    yield "kv name", own is None or (can_be_named and own == kv_name(digests.kv))
    for adapter in found.adapters:
        digest = adapted_kv_digest(digests.kv, adapter.content)
        is_named = adapter.kv_name is None or (own is not None and adapter.kv_name == kv_name(digest))
        yield f"adapter {adapter.name!r}", adapter.digest == digest and is_named


def _claims_of_an_adapter(found: Fingerprint) -> Iterator[tuple[str, bool]]:
    entries = found.config or {}
    content = adapter_digest(found.tensor_digests, entries)
    yield "digests.kv", found.digests.kv == content
    yield "digests.config", found.digests.config == adapter_config_digest(entries)
    yield "kv name", found.release.kv_name is None
    for adapter in found.adapters:
        is_named = adapter.kv_name is None
        yield f"adapter {adapter.name!r}", adapter.content == adapter.digest == content and is_named
