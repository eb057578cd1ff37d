"""What lies in the place of a file that was never fetched: a Git LFS pointer, or the page that told of a failure."""

from __future__ import annotations

from kvrelease.errors import DamagedFile

# As many bytes of a file as are needed to tell.
LEAST_BYTES = 8
_LFS_POINTER = b"version https://git-lfs"
_PAGES = (b"<!doc", b"<html", b"<?xml")


def refuse_pointer(head: bytes | bytearray, *, where: str, what: str = "the file itself") -> None:
    """Refuses a Git LFS pointer, which `git clone` without git-lfs leaves.

    Args:
        head: the first `LEAST_BYTES` of the file, or more.
        where: how messages name it.
        what: that it should be.

    Raises:
        DamagedFile: it is one.
    """
    if len(head) >= LEAST_BYTES and head.startswith(_LFS_POINTER[: len(head)]):
        raise DamagedFile(f"reading {where}: it is a Git LFS pointer, not {what}", hint="git lfs pull, then run again")


def refuse_stand_in_for_weights(head: bytes | bytearray, *, where: str) -> None:
    """Refuses what is no file of weights at all: a pointer, or the page that a download saved.

    Raises:
        DamagedFile: it is one of them.
    """
    refuse_pointer(head, where=where, what="the weights")
    if head.lstrip().lower().startswith(_PAGES):
        raise DamagedFile(
            f"reading {where}: it is an HTML or XML page, not weights; a download saved an error page",
            hint="download it again, with credentials if the model is gated",
        )
