"""A stamp: the record that binds a store to a namespace, and when one may be written; pure.

The format is docs/stamps.md. Engines do not read it: it is for whoever starts one over the store.
"""

from __future__ import annotations

import enum

import msgspec

from kvrelease.artifacts import Artifact, ReleaseRef, Verdict
from kvrelease.errors import InputError

DIRECTORY_STAMP = ".kvrelease-stamp.json"
"""Name of a directory's stamp, in it; no engine takes it for an entry."""

FILE_SUFFIX = ".kvrelease-stamp.json"
"""What the name of a single file's stamp ends with, beside it."""


class StampedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The one file that a stamp speaks of, such as a slot that llama.cpp saved.

    Attributes:
        name: without its directory.
        size_bytes: of it.
        sha256: of its content, 64 hexadecimal digits.
    """

    name: str
    size_bytes: int
    sha256: str


class Stamp(Artifact, frozen=True, kw_only=True, tag="kvrelease/stamp"):
    """Whose a store is.

    Attributes:
        namespace: of everything in it.
        release: whose namespace that is; None where the namespace alone was named.
        file: the file that it speaks of; None for a directory.
        adopted: why entries that were there before the stamp are the namespace's own; None where there were none.
        replaced: the namespace of the stamp before this one; None where there was none.
    """

    namespace: str
    release: ReleaseRef | None = None
    file: StampedFile | None = None
    adopted: str | None = None
    replaced: str | None = None


class StampAction(enum.StrEnum):
    """What became of a store's stamp."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    CHECKED = "checked"


class StampReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/stores-stamp"):
    """What `kvrelease stores stamp` says.

    Attributes:
        place: the store, as the user wrote it.
        action: what was done.
        stamp: that is there now; None where there is none.
        verdict: whether the store is the namespace's own; None where the stamp was to be written, and is.
        reason: of the verdict.
    """

    place: str
    action: StampAction
    stamp: Stamp | None
    verdict: Verdict | None = None
    reason: str | None = None


class Permission(msgspec.Struct, frozen=True, kw_only=True):
    """What the user allows.

    Attributes:
        adopts: why entries without a stamp, or under another one, are the namespace's own; None to refuse them.
        replaces: whether the stamp of another namespace may give way.
    """

    adopts: str | None = None
    replaces: bool = False


def required_stamp(
    wanted: Stamp, *, found: Stamp | None, has_entries: bool, permission: Permission, place: str
) -> Stamp | None:
    """The stamp to write; None where the one that is there says all of it.

    Entries that nobody vouches for are exactly what a stamp is to keep out, so they are adopted only for a reason that
    somebody gives, which the stamp then carries.

    Args:
        wanted: namespace, release and file.
        found: the stamp that is there.
        has_entries: whether the store holds anything else; of a file it is the content, and counts as none.
        permission: what the user allows.
        place: for messages.

    Raises:
        InputError: it is stamped for another namespace, or has entries without a stamp, and the user allows neither.
    """
    is_other = found is not None and found.namespace != wanted.namespace
    if found is not None and not is_other and found.file == wanted.file:
        return None
    if is_other and not permission.replaces:
        assert found is not None, "is_other says so"
        raise InputError(
            f"stamping {place}: it is stamped for {found.namespace}, and not for {wanted.namespace}",
            hint="use a store of the namespace's own; where its entries were deleted, or are the namespace's after "
            "all, --replace",
        )
    if found is not None and found.file != wanted.file and not permission.replaces:
        raise InputError(
            f"stamping {place}: the file changed after it was stamped for {found.namespace}",
            hint="find out who wrote it; where it is the namespace's own, --replace",
        )
    is_unvouched = has_entries and (found is None or is_other)
    if is_unvouched and permission.adopts is None:
        raise InputError(
            f"stamping {place}: it has entries, and {'no stamp' if found is None else 'the stamp of another namespace'}"
            ", so nobody knows which weights made them",
            hint="use an empty directory; where you know that this release made them all, say how you know: "
            "--adopt-existing REASON",
        )
    return msgspec.structs.replace(
        wanted,
        adopted=permission.adopts if is_unvouched else None,
        replaced=found.namespace if found is not None and is_other else None,
    )


def stamp_verdict(found: Stamp | None, *, namespace: str, file: StampedFile | None) -> tuple[Verdict, str]:
    """Whether a store is a namespace's own, and why; without a stamp that is not known."""
    if found is None:
        return Verdict.INCONCLUSIVE, "it has no stamp: nobody says which weights made its entries"
    if found.namespace != namespace:
        return Verdict.FAIL, f"it is stamped for {found.namespace}, and not for {namespace}"
    if found.file != file:
        return Verdict.FAIL, f"the file is not the one that was stamped for {namespace}: its content changed"
    return Verdict.PASS, f"it is stamped for {namespace}"
