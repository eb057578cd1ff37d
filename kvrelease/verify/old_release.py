"""The release before, as `--old-release` names it: another one than the release, and whether their KV differs; pure."""

from __future__ import annotations

from kvrelease.artifacts import ReleaseRef
from kvrelease.errors import UsageError
from kvrelease.release.fingerprint import Fingerprint


def require_another(old: Fingerprint, new: Fingerprint) -> None:
    """Checks that the release before is another one.

    Raises:
        UsageError: both are one, wherever and however it is saved: nothing could differ, so that nothing is compared.
    """
    if old.digests.release == new.digests.release:
        raise UsageError(
            f"--old-release and --release are one release: {old.release.source} and {new.release.source} have the same "
            "digest, so that nothing of one could be told from the other",
            hint="name the release that was served before as --old-release, or leave it out",
        )


def make_the_same_kv(old: ReleaseRef | None, new: ReleaseRef) -> bool:
    """Whether what the old release computed is valid under the new one: both have one kv name."""
    return old is not None and old.kv_name is not None and old.kv_name == new.kv_name
