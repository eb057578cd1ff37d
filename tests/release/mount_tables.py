"""Tables of mounts as a kernel gives them, with another file system than the one that the tests happen to run on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from kvrelease.release.mounts import Mounts

needs_dated_files = pytest.mark.skipif(
    Mounts().ground_of(Path(tempfile.gettempdir())).version is None,
    reason="the program itself remembers nothing of files that lie here",
)


def mounted_as(kind: str, *, options: str = "rw") -> Mounts:
    """This process's mounts, all of them of one kind."""

    def table() -> str:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
        return "".join(f"{line.partition(' - ')[0]} - {kind} /dev/sda1 {options}\n" for line in lines)

    return Mounts(table=table)


DATED = mounted_as("ext4")
