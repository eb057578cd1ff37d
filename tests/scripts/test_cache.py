from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from provision.cache import (
    Manifest,
    RecordedFile,
    Stamps,
    State,
    damage,
    judge,
    read_manifest,
    recipe_digest,
    record_files,
    sole_installer,
    write_manifest,
)
from provision.errors import ProvisionError
from provision.progress import Progress


def manifest_of(root: Path, **contents: str) -> Manifest:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (root / name).write_text(text)
    files = record_files(root, [root / name for name in sorted(contents)], hashed=True)
    return Manifest(name="toy", recipe="sha256:a", seconds=1.5, files=files, facts={"seed": "7"})


def test_the_recipe_digest_is_pinned() -> None:
    # hashlib over the documented bytes, outside this program; a change here rebuilds every cache.
    assert recipe_digest({"a": "1", "b": b"2"}) == (
        "sha256:0a24ca17bab16f6a99ea046ac8f59b86b32bc1a174f1f511f9d6725fbc5bffb0"
    )


def test_the_order_of_ingredients_does_not_matter_and_each_change_does() -> None:
    base = recipe_digest({"torch": "2.13.0+cpu", "flags": "-O3"})
    assert recipe_digest({"flags": "-O3", "torch": "2.13.0+cpu"}) == base
    assert recipe_digest({"torch": "2.13.1+cpu", "flags": "-O3"}) != base
    assert recipe_digest({"torch": "2.13.0+cpu", "flags": "-O3", "seed": ""}) != base


def test_text_cannot_move_between_a_name_and_its_value() -> None:
    assert recipe_digest({"ab": "c"}) != recipe_digest({"a": "bc"})


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "root", first="one", second="two")
    write_manifest(tmp_path / "manifests", manifest)
    assert read_manifest(tmp_path / "manifests", "toy") == manifest


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "kvrelease-provision/0"}', '{"schema": 3, "files": 4}'])
def test_an_unreadable_manifest_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "toy.json").write_text(text)
    assert read_manifest(tmp_path, "toy") is None


def test_whole_files_have_no_damage(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, first="one", second="two")
    assert damage(tmp_path, manifest.files, read_contents=True) == ()


def test_a_changed_byte_is_noticed_although_the_size_is_the_same(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, first="one", second="two")
    (tmp_path / "second").write_text("tw0")
    assert damage(tmp_path, manifest.files, read_contents=False) == ()
    (finding,) = damage(tmp_path, manifest.files, read_contents=True)
    assert finding.startswith("second has SHA-256 ")


def test_a_short_file_and_a_missing_file_are_noticed_without_reading(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, first="one", second="two")
    (tmp_path / "first").write_text("o")
    (tmp_path / "second").unlink()
    assert damage(tmp_path, manifest.files, read_contents=False) == (
        "first has 1 bytes, recorded were 3",
        "second is missing",
    )


def test_a_file_recorded_by_size_only_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_text("abc")
    record = RecordedFile(path="library.so", size_bytes=3, sha256=None)
    assert damage(tmp_path, [record], read_contents=True) == ()


def test_another_recipe_makes_an_install_outdated_before_its_files_are_read(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path, first="one")
    (tmp_path / "first").unlink()
    state, reasons = judge(tmp_path, manifest, recipe="sha256:b", read_contents=True)
    assert state is State.OUTDATED
    assert len(reasons) == 1
    assert judge(tmp_path, None, recipe="sha256:b", read_contents=True) == (State.MISSING, ())


def test_a_stamp_counts_only_for_the_recipe_that_made_it(tmp_path: Path) -> None:
    Stamps(folder=tmp_path, recipe="sha256:a").mark("unpacked")
    assert Stamps(folder=tmp_path, recipe="sha256:a").is_done("unpacked")
    assert not Stamps(folder=tmp_path, recipe="sha256:b").is_done("unpacked")
    assert not Stamps(folder=tmp_path, recipe="sha256:a").is_done("built")


def test_no_draft_is_left_beside_a_manifest(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest_of(tmp_path / "root", first="one"))
    assert [path.name for path in tmp_path.glob("*") if path.is_file()] == ["toy.json"]
    assert json.loads((tmp_path / "toy.json").read_text())["seconds"] == 1.5


def hold(lock: str, ready: Any) -> None:
    with sole_installer(Path(lock), progress=Progress(say=lambda _: None)):
        ready.set()
        signal.pause()


def test_a_second_installer_waits_and_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold, args=(str(tmp_path / "lock"), ready))
    holder.start()
    assert ready.wait(60)
    assert holder.pid is not None
    said: list[str] = []

    def kill_the_holder_once_we_wait(line: str) -> None:
        said.append(line)
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)

    with sole_installer(tmp_path / "lock", progress=Progress(say=kill_the_holder_once_we_wait), poll_s=0.01):
        holder.join()
    assert any(f"waiting for another install (process {holder.pid})" in line for line in said)


def test_a_cache_that_cannot_be_written_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ProvisionError, match="Tried to open") as caught,
        sole_installer(tmp_path / "file" / "lock", progress=Progress(say=lambda _: None)),
    ):
        pass
    assert "KVRELEASE_CACHE" in caught.value.paragraph()
