"""Stamps on a real disk: whole or not at all, within the store, one of two."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvrelease.engines.block_files import open_stored_blocks
from kvrelease.errors import DamagedFile, InputError, NotFound, UsageError
from kvrelease.stores.stamp import DIRECTORY_STAMP, FILE_SUFFIX, Permission, Stamp, StampedFile
from kvrelease.stores.stamp_files import read_stamp, stamp_place, write_stamp
from tests.builders import NAMESPACE, OLD_KV

OTHER = f"{OLD_KV}-undeclared-e0"
NOTHING = Permission()


def stamped(path: Path, namespace: str = NAMESPACE, permission: Permission = NOTHING) -> tuple[Stamp, bool]:
    return write_stamp(stamp_place(str(path)), Stamp(namespace=namespace), permission=permission)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    directory = tmp_path / "kv"
    directory.mkdir()
    return directory


def test_a_directory_holds_its_stamp_and_nothing_else(store: Path) -> None:
    stamp, is_new = stamped(store)
    assert is_new
    assert names(store) == [DIRECTORY_STAMP]
    assert read_stamp(stamp_place(str(store))) == (stamp, None)
    document = json.loads((store / DIRECTORY_STAMP).read_text())
    assert (document["kind"], document["schema"], document["namespace"]) == ("kvrelease/stamp", 1, NAMESPACE)


def test_a_second_time_changes_nothing_also_with_entries(store: Path) -> None:
    first, _ = stamped(store)
    (store / "entry").write_text("kv")
    before = (store / DIRECTORY_STAMP).stat()
    assert stamped(store) == (first, False)
    assert (store / DIRECTORY_STAMP).stat() == before


def test_what_is_refused_leaves_the_store_as_it_was(store: Path) -> None:
    (store / "entry").write_text("kv")
    with pytest.raises(InputError, match="has entries, and no stamp"):
        stamped(store)
    assert names(store) == ["entry"]
    stamped(store, permission=Permission(adopts="its own"))
    before = (store / DIRECTORY_STAMP).read_bytes()
    with pytest.raises(InputError, match="is stamped for"):
        stamped(store, OTHER)
    assert (store / DIRECTORY_STAMP).read_bytes() == before


def test_another_namespace_takes_over_whole(store: Path) -> None:
    stamped(store, OTHER)
    stamp, is_new = stamped(store, permission=Permission(replaces=True))
    assert (is_new, stamp.replaced) == (True, OTHER)
    assert names(store) == [DIRECTORY_STAMP]


def test_a_volumes_own_directory_and_an_interrupted_stamping_are_no_entries(store: Path) -> None:
    (store / "lost+found").mkdir()
    (store / f"{DIRECTORY_STAMP}.tmp-0123").write_text("{")
    assert stamped(store)[1]


def test_a_file_is_stamped_beside_itself_by_its_content(store: Path) -> None:
    slot = store / "slot.bin"
    slot.write_bytes(b"ggsq")
    stamp, _ = stamped(slot)
    assert stamp.file == StampedFile(name="slot.bin", size_bytes=4, sha256=hashlib.sha256(b"ggsq").hexdigest())
    assert names(store) == ["slot.bin", f"slot.bin{FILE_SUFFIX}"]
    slot.write_bytes(b"another")
    with pytest.raises(InputError, match="changed after it was stamped"):
        stamped(slot)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_link_in_place_of_the_stamp_is_neither_read_nor_written_through(
    store: Path, tmp_path: Path, replaces: bool
) -> None:
    outside = tmp_path / "outside.json"
    stamped(store)
    (store / DIRECTORY_STAMP).rename(outside)
    before = outside.read_bytes()
    (store / DIRECTORY_STAMP).symlink_to(outside)
    with pytest.raises(DamagedFile, match="it is a link"):
        stamped(store, OTHER, Permission(replaces=replaces))
    (store / DIRECTORY_STAMP).unlink()
    (store / DIRECTORY_STAMP).symlink_to(tmp_path / "nowhere")
    with pytest.raises(DamagedFile, match="it is a link"):
        stamped(store)
    assert (outside.read_bytes(), (tmp_path / "nowhere").exists()) == (before, False)


def test_a_linked_file_is_not_stamped(store: Path, tmp_path: Path) -> None:
    (tmp_path / "slot.bin").write_bytes(b"ggsq")
    (store / "slot.bin").symlink_to(tmp_path / "slot.bin")
    with pytest.raises(InputError, match="neither a directory nor a file"):
        stamped(store / "slot.bin")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"kind": "kvrelease/verify", "schema": 1}', b"\xff", b" " * 2_000_000]
)
def test_what_is_no_stamp_is_damage_and_never_no_stamp(store: Path, content: bytes) -> None:
    (store / DIRECTORY_STAMP).write_bytes(content)
    with pytest.raises(DamagedFile):
        stamped(store, permission=Permission(adopts="why", replaces=True))
    assert (store / DIRECTORY_STAMP).read_bytes() == content


def test_a_stamp_of_a_newer_kvrelease_is_refused(store: Path) -> None:
    stamped(store)
    document = json.loads((store / DIRECTORY_STAMP).read_text())
    (store / DIRECTORY_STAMP).write_text(json.dumps(document | {"schema": 99}))
    with pytest.raises(InputError, match="schema 99 is newer"):
        read_stamp(stamp_place(str(store)))


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_a_stamp_that_is_no_file_is_damage_and_nobody_waits_for_it(store: Path, kind: str) -> None:
    (store / DIRECTORY_STAMP).mkdir() if kind == "directory" else os.mkfifo(store / DIRECTORY_STAMP)
    with pytest.raises(DamagedFile, match="it is no file"):
        stamped(store)


def test_a_directory_that_cannot_be_written_to_is_an_error_that_says_so() -> None:
    """Not even root can make a file there."""
    with pytest.raises(InputError, match=r"stamping /proc: .*; it is left as it was") as caught:
        stamped(Path("/proc"), permission=Permission(adopts="a test"))
    assert "read-only" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_read_only_mount_is_an_error_that_says_so(store: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from kvrelease.errors import InputError\n"
        "from tests.stores.test_stamp_files import stamped\n"
        "try: stamped(Path(sys.argv[1]))\n"
        "except InputError as error: print(error.message)\n"
    )
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(store), sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "unshare" in done.stderr + done.stdout:
        pytest.skip("this container may not mount")
    assert done.stdout == f"stamping {store}: Read-only file system; it is left as it was\n", done.stderr


def test_of_many_that_stamp_one_store_at_once_one_namespace_wins(store: Path) -> None:
    namespaces = [f"{NAMESPACE[:-1]}{number}" for number in range(8)]
    gate = threading.Barrier(len(namespaces))
    won: list[str] = []
    refused: list[InputError] = []

    def stamp(name: str) -> None:
        gate.wait()
        try:
            won.append(stamped(store, name)[0].namespace)
        except InputError as error:
            refused.append(error)

    threads = [threading.Thread(target=stamp, args=(name,)) for name in namespaces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(refused) == 7
    found, _ = read_stamp(stamp_place(str(store)))
    assert found is not None
    assert found.namespace == won[0]
    assert names(store) == [DIRECTORY_STAMP]


def test_a_file_system_without_hard_links_has_stamps_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    stamp, is_new = stamped(store)
    assert (is_new, names(store)) == (True, [DIRECTORY_STAMP])
    assert read_stamp(stamp_place(str(store)))[0] == stamp
    with pytest.raises(InputError, match="is stamped for"):
        stamped(store, OTHER)


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("nowhere/kv", NotFound, "mkdir -p nowhere/kv"),
        ("redis://127.0.0.1/0?prefix=x", UsageError, "redis://"),
        ("/dev/null", InputError, "neither a directory nor a file"),
    ],
)
def test_what_cannot_be_stamped_says_why(what: str, error: type[InputError], words: str) -> None:
    with pytest.raises(error) as caught:
        stamp_place(what)
    assert words in caught.value.message + (caught.value.hint or "")


def test_a_store_of_the_in_process_engine_may_be_stamped(store: Path) -> None:
    (store / f"{'0' * 64}.safetensors").write_bytes(b"")
    stamped(store, permission=Permission(adopts="its own"))
    assert not open_stored_blocks(store).is_empty()
