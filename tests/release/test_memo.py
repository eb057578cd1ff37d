"""The memo: remembered exactly while nobody can have written to the file, and never in the way."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import save_file

from kvrelease.release.adapter import read_adapter
from kvrelease.release.content import read_content
from kvrelease.release.fingerprinting import fingerprint_with_text
from kvrelease.release.hashing import Payload, hash_tensors
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import LocalFile, LocalSource, open_directory
from kvrelease.release.memo import SETTLED_NS, Memo, default_directory
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.steady import SteadySource
from kvrelease.release.weights import WeightFile
from tests.release.adapters import write_adapter
from tests.release.builders import local_file, write_release
from tests.release.mount_tables import DATED, mounted_as


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.arange(4000, dtype=np.int16), "b": np.zeros(9, np.uint8)}, path)
    return path


@pytest.fixture
def memo(tmp_path: Path) -> Memo:
    return Memo(tmp_path / "memo", mounts=DATED)


def read(path: Path) -> WeightFile:
    return read_safetensors(local_file(path))


def changed_ns(file: WeightFile) -> int:
    assert file.identity.changed_ns is not None
    return file.identity.changed_ns


def remember(memo: Memo, path: Path) -> tuple[Payload, ...]:
    """As a run long after the file was written."""
    file = read(path)
    payloads = hash_tensors([file], jobs=1)
    memo.remember(file, payloads, seen_ns=changed_ns(file) + SETTLED_NS)
    return payloads


def test_an_old_file_is_remembered_whole(memo: Memo, path: Path) -> None:
    payloads = remember(memo, path)
    assert [payload.is_zero for payload in payloads] == [False, True]
    assert memo.recall(read(path)) == payloads


def test_a_file_written_to_shortly_before_is_not_remembered(memo: Memo, path: Path) -> None:
    """The next write could fall into the same tick of the file system's clock, and would not show."""
    file = read(path)
    memo.remember(file, hash_tensors([file], jobs=1), seen_ns=changed_ns(file) + SETTLED_NS - 1)
    assert memo.recall(file) is None


def test_the_time_of_the_inode_counts_beside_that_of_the_content(memo: Memo, path: Path) -> None:
    """`cp -p` and `rsync -a` make a file old that was written just now."""
    os.utime(path, ns=(10**9, 10**9))
    file = read(path)
    assert changed_ns(file) == path.stat().st_ctime_ns
    memo.remember(file, hash_tensors([file], jobs=1), seen_ns=path.stat().st_ctime_ns)
    assert memo.recall(file) is None


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")


def rewrite_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_a_copy(path: Path) -> None:
    copy = shutil.copy2(path, path.with_suffix(".copy"))
    rewrite_and_set_the_time_back(Path(copy))
    Path(copy).replace(path)


def append(path: Path) -> None:
    save_file({"a": np.arange(4000, dtype=np.int16), "c": np.zeros(9, np.int16)}, path)


@pytest.mark.parametrize("change", [rewrite, rewrite_and_set_the_time_back, replace_by_a_copy, append])
def test_a_changed_file_is_hashed_again(memo: Memo, path: Path, change: object) -> None:
    assert callable(change)
    remember(memo, path)
    before = path.stat()
    change(path)
    assert (path.stat().st_ctime_ns, path.stat().st_ino) != (before.st_ctime_ns, before.st_ino)
    assert memo.recall(read(path)) is None


def test_another_path_to_the_same_bytes_is_another_file_unless_it_is_a_link(memo: Memo, path: Path) -> None:
    payloads = remember(memo, path)
    link = path.with_name("link.safetensors")
    link.symlink_to(path.name)
    assert memo.recall(read(link)) == payloads
    os.link(path, path.with_name("hard.safetensors"))
    assert memo.recall(read(path.with_name("hard.safetensors"))) is None


def test_a_file_whose_place_has_no_clock_is_not_remembered(memo: Memo, path: Path) -> None:
    file = read(path)
    payloads = hash_tensors([file], jobs=1)
    identity = msgspec.structs.replace(file.identity, changed_ns=None)
    memo.remember(msgspec.structs.replace(file, identity=identity), payloads, seen_ns=2**62)
    assert not memo.directory.exists()
    remember(memo, path)
    assert memo.recall(msgspec.structs.replace(file, identity=identity)) is None


def undated(memo: Memo, kind: str = "overlay", *, options: str = "rw") -> Memo:
    """The same memo on another machine."""
    return Memo(memo.directory, mounts=mounted_as(kind, options=options))


@pytest.mark.parametrize(("kind", "options"), [("squashfs", "ro"), ("ext4", "ro"), ("overlay", "rw"), ("nfs4", "rw")])
def test_where_times_are_an_images_or_a_servers_word_nothing_is_remembered(
    memo: Memo, path: Path, kind: str, options: str
) -> None:
    """Two models in images that were made with the same times are equal to the nanosecond, inodes included."""
    remember(undated(memo, kind, options=options), path)
    assert not memo.directory.exists()
    remember(memo, path)
    assert undated(memo, kind, options=options).recall(read(path)) is None


def test_an_entry_holds_for_one_file_system_and_boot(memo: Memo, path: Path) -> None:
    """Numbers of devices and inodes, and so all of a file's identity, can be those of another disk tomorrow."""
    remember(memo, path)
    assert Memo(memo.directory, mounts=mounted_as("xfs")).recall(read(path)) is None
    assert Memo(memo.directory, mounts=mounted_as("ext4")).recall(read(path)) is not None
    body = msgspec.msgpack.decode(entry_of(memo).read_bytes()[32:])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    body[4] = body[4].replace(boot, "0" * len(boot))
    packed = msgspec.msgpack.encode(body)
    entry_of(memo).write_bytes(blake3(packed).digest() + packed)
    assert memo.recall(read(path)) is None


def test_that_nothing_can_be_remembered_is_said_once_where_it_costs_time(memo: Memo, path: Path) -> None:
    file = read(path)
    large = msgspec.structs.replace(
        file, tensors=tuple(msgspec.structs.replace(tensor, size_bytes=2**30) for tensor in file.tensors)
    )
    there = undated(memo)
    there.recall(file)
    assert there.note() is None
    for _ in range(3):
        there.recall(large)
    note = there.note()
    assert note is not None
    assert note.startswith("nothing is remembered of the 2.1 GB on overlay, where times do not prove")
    memo.recall(large)
    assert memo.note() is None


def test_what_is_wrong_with_many_entries_is_told_once(
    tmp_path: Path, memo: Memo, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(5)]
    for one in paths:
        save_file({"a": np.zeros(8, np.uint8)}, one)
        remember(memo, one)
    for entry in memo.directory.iterdir():
        entry.chmod(0o666)
    with caplog.at_level(logging.INFO, logger="kvrelease.release.memo"):
        assert [memo.recall(read(one)) for one in paths] == [None] * 5
    assert [record.levelname for record in caplog.records] == ["WARNING"] + ["INFO"] * 4


def test_users_of_one_cache_directory_keep_entries_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one directory, each would ignore and overwrite the other's entries, with a warning for every shard."""
    root = default_directory()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 7)
    assert root is not None
    assert default_directory() == root.with_name(str(os.getuid() + 7)) != root


def entry_of(memo: Memo) -> Path:
    (entry,) = memo.directory.iterdir()
    return entry


@pytest.mark.parametrize("place", [0, 31, 32, 100, -1])
def test_a_damaged_entry_is_ignored_with_a_warning_and_written_anew(
    memo: Memo, path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    payloads = remember(memo, path)
    entry = entry_of(memo)
    data = bytearray(entry.read_bytes())
    data[place] ^= 1
    entry.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert memo.recall(read(path)) is None
    assert "damaged" in caplog.text
    remember(memo, path)
    assert memo.recall(read(path)) == payloads


@pytest.mark.parametrize("data", [b"", b"x" * 40, blake3(b"").digest(), blake3(b"\xc1").digest() + b"\xc1"])
def test_whatever_lies_in_an_entrys_place_is_no_error(memo: Memo, path: Path, data: bytes) -> None:
    remember(memo, path)
    entry_of(memo).write_bytes(data)
    assert memo.recall(read(path)) is None


def test_another_algorithms_entry_is_none_of_ours(memo: Memo, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remember(memo, path)
    entry = entry_of(memo)
    body = msgspec.msgpack.decode(entry.read_bytes()[32:])
    body[0] = ["kvfp9-full", "kvfp9-fast"]
    packed = msgspec.msgpack.encode(body)
    entry.write_bytes(blake3(packed).digest() + packed)
    with caplog.at_level(logging.WARNING):
        assert memo.recall(read(path)) is None
    assert not caplog.text


@pytest.mark.parametrize(("mode", "is_ours"), [(0o666, False), (0o620, False), (0o602, False), (0o644, True)])
def test_an_entry_that_others_can_write_is_not_believed(
    memo: Memo, path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_ours: bool
) -> None:
    payloads = remember(memo, path)
    assert entry_of(memo).stat().st_mode & 0o777 == 0o600
    assert memo.directory.stat().st_mode & 0o777 == 0o700
    entry_of(memo).chmod(mode)
    assert (memo.recall(read(path)) == payloads) is is_ours
    assert ("somebody else" in caplog.text) is not is_ours


def test_an_entry_of_another_user_is_not_believed(
    memo: Memo, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(memo, path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 7)
    assert memo.recall(read(path)) is None
    assert "somebody else" in caplog.text


def test_an_entry_holds_for_tensors_of_the_same_names(memo: Memo, path: Path) -> None:
    """The names come from the header, which is read in any case; the contents are told by their order."""
    remember(memo, path)
    file = read(path)
    renamed = tuple(msgspec.structs.replace(tensor, name=f"other.{tensor.name}") for tensor in file.tensors)
    assert memo.recall(msgspec.structs.replace(file, tensors=renamed)) is None
    assert memo.recall(msgspec.structs.replace(file, tensors=file.tensors[::-1])) is None
    assert memo.recall(file) is not None


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo", max_total_bytes=3 * 4096, mounts=DATED)
    paths = [tmp_path / f"{number}.safetensors" for number in range(4)]
    for age, one in enumerate(paths):
        save_file({"a": np.full(8, age, np.uint8)}, one)
        remember(memo, one)
        newest = max(memo.directory.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)
        os.utime(newest, ns=(age * 10**9, age * 10**9))
    assert memo.recall(read(paths[0])) is not None  # used now
    memo.prune()
    assert [memo.recall(read(one)) is not None for one in paths] == [True, False, True, True]


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, path: Path) -> None:
    (tmp_path / "file").write_text("")
    memo = Memo(tmp_path / "file" / "memo", mounts=DATED)
    remember(memo, path)
    memo.prune()
    assert memo.recall(read(path)) is None


def test_the_place_follows_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "kvrelease" / "memo" / str(os.geteuid())
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory() == tmp_path / "home" / ".cache" / "kvrelease" / "memo" / str(os.geteuid())


def test_a_second_run_gives_the_same_fingerprint_without_hashing(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model", shards=3)
    memo = Memo(tmp_path / "memo", settled_ns=0, mounts=DATED)
    first, second = load_release(model, memo=memo), load_release(model, memo=memo)
    assert (first.remembered_bytes, second.remembered_bytes) == (0, first.bytes)
    same = {"created": first.created, "seconds": first.seconds, "remembered_bytes": 0}
    assert msgspec.structs.replace(second, **same) == first
    assert first == msgspec.structs.replace(load_release(model), created=first.created, seconds=first.seconds)


def test_only_the_shard_that_changed_is_hashed_again(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model", shards=3)
    memo = Memo(tmp_path / "memo", settled_ns=0, mounts=DATED)
    before = load_release(model, memo=memo)
    shard = model / "model-00002-of-00003.safetensors"
    rewrite(shard)
    after = load_release(model, memo=memo)
    in_shard = sum(tensor.size_bytes for tensor in read(shard).tensors)
    assert after.remembered_bytes == after.bytes - in_shard
    assert after.digests == load_release(model).digests != before.digests


class WrittenWhenItIsLookedAt(LocalSource):
    """A directory whose weights somebody writes again just before their header is read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, origin=open_directory(directory).origin)
        self._is_written = False

    def file(self, name: str) -> LocalFile:
        found = super().file(name)
        if name.endswith(".safetensors") and not self._is_written:
            self._is_written = True
            now_ns, data = time.time_ns(), found.path.read_bytes()
            # Until the clock of the file system, which is coarser than ours, has passed the moment of this look.
            while found.path.stat().st_ctime_ns <= now_ns:
                found.path.write_bytes(data)
        return found


def fingerprint_of_headers_read_before(source: LocalSource, memo: Memo) -> object:
    """As a diff reads a side whose headers may decide."""
    steady = SteadySource(source)
    return fingerprint_with_text(steady, memo=memo, content=read_content(steady))


def fingerprint_of_headers_read_now(source: LocalSource, memo: Memo) -> object:
    return fingerprint_with_text(source, memo=memo)


def adapter(source: LocalSource, memo: Memo) -> object:
    return read_adapter(source, memo=memo)


@pytest.mark.parametrize(
    ("write", "read_release"),
    [
        (write_release, fingerprint_of_headers_read_now),
        (write_release, fingerprint_of_headers_read_before),
        (write_adapter, adapter),
    ],
)
def test_what_was_written_after_our_first_look_is_not_remembered(
    tmp_path: Path, write: Callable[[Path], Path], read_release: Callable[[LocalSource, Memo], object]
) -> None:
    """A next write may leave its times as they are, so they must be older than the look, not than the reading."""
    directory = write(tmp_path / "model")
    memo = Memo(tmp_path / "memo", settled_ns=0, mounts=DATED)
    read_release(WrittenWhenItIsLookedAt(directory), memo)
    assert not list(memo.directory.glob("*.memo"))
    read_release(open_directory(directory), memo)
    assert list(memo.directory.glob("*.memo"))
