"""The runtime digest: which engine settings turned weights into KV bytes.

In this version a runtime is *declared* under `runtime:` in `kvrelease.yaml`; what the engine tells is compared
with the declaration, and what neither tells is listed as unread.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterable, Mapping

import msgspec

from kvrelease.binding.target import BindingTarget, may_be
from kvrelease.config import RUNTIME_FIELDS
from kvrelease.errors import UsageError
from kvrelease.release.canonical import digest_of
from kvrelease.release.runtime_spelling import one_spelling

ALGORITHM = "kvrt0"
UNDECLARED = "undeclared"

UNDECLARED_WARNING = (
    "the runtime is undeclared: list engine, version, dtype, kv_cache_dtype … under runtime: in kvrelease.yaml, "
    "so that another engine version gets another namespace"
)


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime that a namespace stands for.

    Attributes:
        digest: `kvrt0:` and 64 hex characters; None when nobody declared one.
        fields: what was declared.
        unread: fields of `RUNTIME_FIELDS` that were not.
    """

    digest: str | None
    fields: dict[str, str]
    unread: tuple[str, ...]

    @property
    def name(self) -> str:
        """The 8 characters that go into the namespace, or `undeclared`."""
        if self.digest is None:
            return UNDECLARED
        raw = bytes.fromhex(self.digest.partition(":")[2])
        return base64.b32encode(raw[:5]).decode().lower()


def declared_runtime(fields: Mapping[str, str | int | float | bool]) -> Runtime:
    """The runtime that `kvrelease.yaml` declares; undeclared when it declares nothing.

    The digest is BLAKE3-256 over the fields sorted by name, each name and value UTF-8 and length-prefixed (u64, little
    endian); booleans are `true` and `false`, numbers their shortest decimal form.
    """
    texts = {name: _text(value) for name, value in sorted(fields.items())}
    unread = tuple(name for name in RUNTIME_FIELDS if name not in texts)
    if not texts:
        return Runtime(digest=None, fields={}, unread=unread)
    parts = [text.encode() for pair in texts.items() for text in pair]
    return Runtime(digest=f"{ALGORITHM}:{digest_of(ALGORITHM, parts)}", fields=texts, unread=unread)


def _text(value: str | float | bool) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case _:
            return repr(value)


def unknown_field_warnings(fields: Iterable[str], *, source: str) -> tuple[str, ...]:
    """A sentence for each declared field that is not one of `RUNTIME_FIELDS`: a typo declares nothing.

    Args:
        fields: names of those that were declared.
        source: the file that declares them.
    """
    warnings = []
    for name in fields:
        if name not in RUNTIME_FIELDS:
            close = difflib.get_close_matches(name, RUNTIME_FIELDS, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            warnings.append(
                f"{source}: runtime.{name} is no field that kvrelease knows{meant}: it counts as it is written, and is "
                "not checked against the engine"
            )
    return tuple(warnings)


def require_agreement(declared: Runtime, *, told: Mapping[str, str], url: str) -> None:
    """Checks a declaration against what the engine tells of itself.

    Raises:
        UsageError: both name a field and differ in more than spelling: the namespace would stand for a runtime that is
            not there.
    """
    for name, value in declared.fields.items():
        if name in told and one_spelling(name, told[name]) != one_spelling(name, value):
            raise UsageError(
                f"the runtime declared in kvrelease.yaml says {name}={value}, the engine at {url} says {told[name]}",
                hint=f"correct runtime.{name} in kvrelease.yaml, or start the engine as declared",
            )


def other_engine(declared: Runtime, *, target: BindingTarget) -> str | None:
    """The engine that a declaration names, where it can be no part of what is to be bound; None where they agree."""
    name = declared.fields.get("engine")
    return None if name is None or may_be(target, name) else name
