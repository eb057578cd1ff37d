from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from kvrelease.errors import InputError, NotFound
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import identity_of, open_directory, open_single_file
from kvrelease.release.source import Origin, read_range
from tests.release.builders import local_file


def test_names_are_files_of_the_directory_and_of_its_templates(tmp_path: Path) -> None:
    """Other folders, and links in them, are not looked at.

    https://github.com/sigstore/model-transparency/issues/549,
    https://github.com/sigstore/model-transparency/issues/374,
    https://github.com/sigstore/model-transparency/issues/461
    """
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "broken").symlink_to("nowhere")
    for name in ("model.safetensors", "config.json", "additional_chat_templates/b.jinja", "onnx/model.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gone.safetensors").symlink_to("nowhere")
    source = open_directory(tmp_path)
    assert source.names() == (
        "additional_chat_templates/b.jinja",
        "config.json",
        "gone.safetensors",
        "model.safetensors",
    )
    assert [source.has(name) for name in ("config.json", "onnx/model.onnx", "gone.safetensors", "x")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("change", ["write", "replace", "touch"])
def test_identity_changes_with_every_change(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    file = local_file(path)
    before = file.identity()
    assert file.identity() == before
    if change == "write":
        path.write_bytes(b"abcd")
    elif change == "replace":
        (tmp_path / "copy").write_bytes(b"abc")
        os.utime(tmp_path / "copy", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        (tmp_path / "copy").replace(path)
    else:
        os.utime(path, ns=(0, 0))
    assert file.identity() != before


def status(**changes: int) -> os.stat_result:
    numbers = {"mode": 0o100644, "ino": 7, "dev": 3, "nlink": 1, "uid": 0, "gid": 0, "size": 10, "mtime": 5, "ctime": 6}
    numbers |= {key: value for key, value in changes.items() if key in numbers}
    fields = [numbers[key] for key in ("mode", "ino", "dev", "nlink", "uid", "gid", "size")]
    times = {f"st_{key}_ns": numbers[key] * 10**9 + changes.get(f"{key}_ns", 0) for key in ("mtime", "ctime")}
    return os.stat_result((*fields, 0, numbers["mtime"], numbers["ctime"]), times)


@pytest.mark.parametrize("change", ["ino", "dev", "size", "mtime", "ctime", "mtime_ns", "ctime_ns"])
def test_every_part_of_what_a_file_is_makes_its_identity(change: str) -> None:
    assert identity_of(status()) == identity_of(status())
    assert identity_of(status(**{change: 9})) != identity_of(status())
    assert identity_of(status(uid=9, nlink=9)) == identity_of(status())


def test_a_file_without_an_inode_or_a_time_has_no_clock() -> None:
    """As some file systems in user space say: two files would then be one, or an old one not be told from a new."""
    assert identity_of(status()).changed_ns == 6 * 10**9
    assert identity_of(status(mtime=8)).changed_ns == 8 * 10**9
    for absent in ("ino", "mtime", "ctime"):
        assert identity_of(status(**{absent: 0})).changed_ns is None


def test_reads_are_positional_and_independent_of_each_other(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    (tmp_path / "f").write_bytes(data)
    wrong: list[int] = []
    with local_file(tmp_path / "f").open() as reader:

        def read_all(step: int) -> None:
            wrong.extend(
                offset
                for offset in range(0, len(data), step)
                if read_range(reader, offset, step) != data[offset : offset + step]
            )

        threads = [threading.Thread(target=read_all, args=(step,)) for step in (7, 1000, 4096)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert read_range(reader, len(data) - 3, 10) == data[-3:]
        assert reader.identity == local_file(tmp_path / "f").identity()


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("../gone")
    for name, error, reason in (
        ("pipe", InputError, "not a regular file"),
        ("link", NotFound, "a link to '../gone', which does not exist"),
        ("absent", NotFound, "No such file"),
    ):
        with pytest.raises(error, match=reason):
            local_file(tmp_path / name).identity()
        with pytest.raises(error, match=reason), local_file(tmp_path / name).open():
            pass


def test_origin_is_the_directory_or_the_file(tmp_path: Path) -> None:
    assert open_directory(tmp_path).origin == Origin(name=tmp_path.name, version=None, address=str(tmp_path))
    single = open_single_file(tmp_path / "v1.safetensors")
    assert single.origin == Origin(name="v1", version=None, address=str(tmp_path / "v1.safetensors"))
    assert single.single_file == "v1.safetensors"


def test_a_name_that_no_file_system_can_hold_leads_nowhere(tmp_path: Path) -> None:
    long_name = "x" * 5000
    assert not open_directory(tmp_path).has(long_name)
    for what in (long_name, f"{long_name}.json", f"{long_name}.safetensors", f"{long_name}/{long_name}"):
        with pytest.raises(NotFound):
            load_release(tmp_path / what)


def test_an_index_may_name_a_shard_that_no_file_system_can_hold(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x" * 5000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NotFound, match="are absent"):
        load_release(tmp_path)
