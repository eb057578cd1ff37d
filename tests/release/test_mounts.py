"""Which file systems date their files by the kernel's clock; with real tables, and in tables of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease.release.mounts import Mounts
from tests.release.mount_tables import mounted_as


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.touch()
    return path


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "bcachefs"])
def test_local_file_systems_that_are_written_through_this_kernel_date_their_files(path: Path, kind: str) -> None:
    ground = mounted_as(kind, options="rw,seclabel").ground_of(path)
    assert ground.kind == kind
    assert ground.version is not None
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in ground.version


@pytest.mark.parametrize(
    "kind",
    [
        "squashfs",
        "erofs",
        "iso9660",
        "overlay",
        "nfs4",
        "cifs",
        "9p",
        "virtiofs",
        "lustre",
        "ceph",
        "vfat",
        "fuse",
    ],
)
def test_times_of_images_servers_overlays_and_user_space_prove_nothing(path: Path, kind: str) -> None:
    """An overlay over a squashfs image has the image's times, and says that it is writable (seen on Linux 6.18)."""
    ground = mounted_as(kind).ground_of(path)
    assert (ground.kind, ground.version) == (kind, None)


def test_a_read_only_file_system_dates_nothing_whatever_its_kind(path: Path) -> None:
    """It may be an image, whose times are those of whoever built it."""
    ground = mounted_as("ext4", options="ro,errors=continue").ground_of(path)
    assert (ground.kind, ground.version) == ("read-only ext4", None)


def test_a_read_only_mount_of_a_writable_file_system_is_dated(path: Path) -> None:
    """A volume in a container: written to elsewhere on this machine, through the same kernel."""
    real = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    lines = [line.partition(" - ")[0].replace(" rw,", " ro,", 1) + " - ext4 /dev/sda1 rw\n" for line in real]
    assert Mounts(table=lambda: "".join(lines)).ground_of(path).version is not None


@pytest.mark.parametrize("table", ["", "nonsense\n", "1 2 3\n", "27 1 8:1 / / rw -\n"])
def test_where_the_table_does_not_tell_nothing_is_known(path: Path, table: str) -> None:
    ground = Mounts(table=lambda: table).ground_of(path)
    assert (ground.kind, ground.version) == ("a file system of unknown kind", None)


def test_without_a_table_nothing_is_known(path: Path) -> None:
    def absent() -> str:
        raise FileNotFoundError

    assert Mounts(table=absent).ground_of(path).version is None
    assert Mounts().ground_of(path / "absent").version is None


def test_the_table_is_read_once_and_a_link_lies_where_it_leads(path: Path, tmp_path: Path) -> None:
    reads: list[None] = []

    def table() -> str:
        reads.append(None)
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")

    mounts = Mounts(table=table)
    (tmp_path / "link").symlink_to("/proc/self/mountinfo")
    grounds = [mounts.ground_of(one) for one in (path, path, tmp_path / "link")]
    assert grounds[0] == grounds[1] == Mounts().ground_of(path)
    assert grounds[2].kind == "proc"
    assert len(reads) == 1
