"""The namespace of a release: made once, written to the ledger, read from there by everybody else."""

from __future__ import annotations

import datetime
import difflib
import re
import shlex

import msgspec

from kvrelease.artifacts import Artifact, ReleaseRef, Verdict
from kvrelease.binding.bound import BoundCheck
from kvrelease.binding.runtime import Runtime
from kvrelease.binding.settings.binding import BindingSettings
from kvrelease.errors import DamagedFile, InputError, UsageError
from kvrelease.ledger.records import Event, NamespaceRecord
from kvrelease.ledger.store import Ledger

# Words that a key space may be, and how like one a text of letters alone is that is taken for a slip of the keyboard: a
# letter less, a letter more, two of seven swapped.
_WORDS = ("none", "release")
_MISSPELT = 0.85

_KV_NAME = re.compile(r"kv1-[a-z2-7]{32}\Z")


class RuntimeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime as reports show it (`Runtime`, with its short name)."""

    digest: str | None
    name: str
    fields: dict[str, str]
    unread: tuple[str, ...]


class NamespaceReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/namespace"):
    """What `kvrelease namespace` says.

    Attributes:
        release: whose namespace it is.
        namespace: the text for every cache key.
        kv_name: what the files alone say.
        runtime: declared or undeclared.
        epoch: 0 for the first.
        is_new: this run made it.
        engine: what is bound (`binding.target`).
        settings: how to bind it.
        verdict: whether the engine that was asked is bound so; None where none was asked.
        reason: of the verdict.
        checked: what it was asked; None likewise.
        warnings: what the reader has to know.
    """

    release: ReleaseRef
    namespace: str
    kv_name: str
    runtime: RuntimeReport
    epoch: int
    is_new: bool
    engine: str
    settings: BindingSettings
    verdict: Verdict | None = None
    reason: str | None = None
    checked: BoundCheck | None = None
    warnings: tuple[str, ...] = ()


def resolve_namespace(
    release: ReleaseRef, *, runtime: Runtime, ledger: Ledger, command: str, is_new_epoch: bool = False
) -> tuple[NamespaceRecord, bool]:
    """The namespace of a release, and whether it was made now.

    Raises:
        InputError: the release has no kv name (its fingerprint is not a full one), or not one of ours.
    """
    if release.kv_name is None:
        raise InputError(
            f"making a namespace for {release.source}: its fingerprint is not a full one, and only a full digest may "
            "name a cache; nor may that of weights without their config.json, or of an adapter without its base",
            hint=f"kvrelease fingerprint {shlex.quote(release.source)}",
        )
    if not _KV_NAME.match(release.kv_name):
        raise DamagedFile(
            f"making a namespace for {release.source}: the kv name in its fingerprint is none",
            hint="fingerprint the release again, from its directory",
        )
    record, is_new = ledger.namespace(
        kv_name=release.kv_name, runtime=runtime.name, made_by=command, is_new_epoch=is_new_epoch
    )
    if is_new:
        ledger.write(
            Event(
                at=datetime.datetime.now(datetime.UTC),
                command="namespace",
                release_name=release.name,
                version=release.version,
                kv_name=release.kv_name,
                namespace=record.namespace,
                reason=f"made by {command}" + (", a new epoch" if is_new_epoch else ""),
            )
        )
    return record, is_new


def salt_of(choice: str, *, namespace: str | None) -> str | None:
    """The salt that a request carries for `production.salt` or `--namespace`: None for no salt.

    Raises:
        InputError: `release` was chosen and the release has no namespace.
        UsageError: an empty text, or a misspelt word: probing another key space than users have would prove nothing.
    """
    match choice:
        case "none":
            return None
        case "release":
            if namespace is None:
                raise InputError(
                    "production.salt is 'release', and no release was named", hint="add --release DIRECTORY"
                )
            return namespace
        case text if text.strip().lower() in ("", "none", "release"):
            raise UsageError(
                f"the key space {text!r} is no salt: production.salt and --namespace take none, release, or a text",
                hint="write none or release in lower case and without blanks",
            )
        case text if text.isalpha() and (close := difflib.get_close_matches(text, _WORDS, n=1, cutoff=_MISSPELT)):
            raise UsageError(
                f"the key space {text!r} is taken for a misspelt {close[0]!r}: as a salt of its own it would be one "
                "that hardly any user sends",
                hint=f"write {close[0]}, or a salt that is less like it",
            )
        case text:
            return text
