"""On which file systems a file's times prove that nobody wrote to it.

The time of an inode's change is a proof only where this machine's kernel sets it, from its own clock, at each write.
Images (squashfs, EROFS, ISO) carry the times that their builder chose, so two models made with the same ones are equal
to the nanosecond; a server (NFS, SMB, 9p, virtiofs, Lustre, Ceph) or a process (FUSE) says what it likes, and the
kernel repeats for up to a minute what it heard before; an overlay passes on whatever lies below it, which nobody inside
a container can see. So there is a list of what is trusted, and everything else is not.

Sources: Linux 6.18, Documentation/filesystems/proc.rst (mountinfo, fdinfo) and overlayfs.rst ("Inode properties"),
Documentation/ABI/testing/sysfs-block (diskseq), nfs(5) ("acregmax").
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

# On a local device or in memory, written to through this kernel alone while they are mounted for writing.
_DATED = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"})
_UNKNOWN = "a file system of unknown kind"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """The file system that a file lies on.

    Attributes:
        kind: as messages name it.
        version: changes with the file system, the disk in the drive and the boot; None where times prove nothing.
    """

    kind: str
    version: str | None


def _own_table() -> str:
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")


class Mounts:
    """The mounts of this process, read once."""

    def __init__(self, *, table: Callable[[], str] = _own_table) -> None:
        """The argument reads the table, in the form of `/proc/self/mountinfo`."""
        self._read = table
        self._known: dict[int, Ground] = {}

    def ground_of(self, path: Path) -> Ground:
        """What a file lies on, links followed."""
        try:
            # Some file systems give files a device of their own, which no mount has (subvolumes of btrfs, layers of an
            # overlay), so the mount is asked of an open file; but each such device lies in one file system.
            device = path.stat().st_dev
            if device not in self._known:
                self._known[device] = self._look(path, device)
            return self._known[device]
        except (OSError, ValueError, IndexError):  # no /proc, or none of the form that we know
            return Ground(kind=_UNKNOWN, version=None)

    def _look(self, path: Path, device: int) -> Ground:
        table = self._table  # first: where there is no /proc, there is no O_PATH either
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            fields = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").split()
            file_system = os.fstatvfs(descriptor)
        finally:
            os.close(descriptor)
        mount = fields[fields.index("mnt_id:") + 1]
        line = next((line for line in table.splitlines() if line.startswith(f"{mount} ")), None)
        if line is None:
            return Ground(kind=_UNKNOWN, version=None)
        kind, _, options = line.partition(" - ")[2].split(" ")[:3]
        # These options are the file system's, not those of the mount: what is mounted read-only here, but writable
        # elsewhere (a volume in a container), is written to through this kernel all the same.
        if "rw" not in options.split(","):
            return Ground(kind=f"read-only {kind}", version=None)
        if kind not in _DATED:
            return Ground(kind=kind, version=None)
        return Ground(kind=kind, version=f"{kind} {file_system.f_fsid:x} {self._boot} {_disk(device)}")

    @cached_property
    def _table(self) -> str:
        return self._read()

    @cached_property
    def _boot(self) -> str:
        """The id of this boot: numbers of devices and inodes mean something within one only, and on one machine."""
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _disk(device: int) -> str:
    """A number that another disk, or the same one attached again, does not get in this boot; empty where there is none.

    The number of the device itself is given again: to the next image on the same loop device, for one.
    """
    numbers = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in (f"{numbers}/diskseq", f"{numbers}/../diskseq"):  # a partition's disk has it
        try:
            return Path(place).read_text(encoding="ascii").strip()
        except OSError:
            continue
    return ""
