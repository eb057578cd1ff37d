"""Folders that the Hub's tools leave on a disk, given as a path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvrelease.errors import DamagedFile, NotFound
from kvrelease.release.address import open_source
from kvrelease.release.loading import load_release
from kvrelease.release.source import Origin
from tests.release.builders import tensors, write_release, write_text_side

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "model", shards=2))


def snapshot(repository: Path, commit: str, model: Path, *, with_links: bool = True) -> Path:
    directory = repository / "snapshots" / commit
    directory.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    for path in model.iterdir():
        if with_links:
            blob = repository / "blobs" / f"{commit[:4]}{path.name}"
            shutil.copy(path, blob)
            (directory / path.name).symlink_to(f"../../blobs/{blob.name}")
        else:
            shutil.copy(path, directory / path.name)
    return directory


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models--acme--support"


def point(repository: Path, ref: str, commit: str) -> None:
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(commit)


def test_links_copies_and_a_plain_directory_are_one_release(model: Path, repository: Path, tmp_path: Path) -> None:
    """https://github.com/promptfoo/modelaudit/pull/178, https://github.com/tobocop2/lilbee/pull/738,
    https://github.com/egonSchiele/agency-lang/pull/1032
    """
    expected = load_release(model).digests
    linked = snapshot(repository, OLD, model)
    copied = snapshot(tmp_path / "models--acme--windows", OLD, model, with_links=False)
    local_dir = tmp_path / "local-dir"
    shutil.copytree(model, local_dir)
    (local_dir / ".cache" / "huggingface" / "download").mkdir(parents=True)
    (local_dir / ".cache" / "huggingface" / "download" / "config.json.metadata").write_text(f"{OLD}\n0\n0\n")
    for place in (linked, copied, local_dir):
        fingerprint = load_release(place)
        assert (fingerprint.digests, fingerprint.warnings) == (expected, ())


def test_a_snapshot_gives_its_commit(model: Path, repository: Path) -> None:
    """https://github.com/NVIDIA/NeMo-Retriever/pull/1499, https://github.com/verl-project/verl/pull/7658"""
    path = snapshot(repository, NEW, model)
    assert open_source(path).origin == Origin(name="support", version=NEW, address=str(path))


def test_a_repository_folder_means_main(model: Path, repository: Path, tmp_path: Path) -> None:
    snapshot(repository, OLD, model)
    snapshot(repository, NEW, write_release(tmp_path / "other", tensors(8)))
    point(repository, "main", NEW)
    fingerprint = load_release(repository)
    assert fingerprint.digests == load_release(repository / "snapshots" / NEW).digests
    assert fingerprint.release.version == NEW
    assert fingerprint.warnings[0] == (
        f"read the snapshot of 'main', commit {NEW}; other snapshots lie beside it: '{OLD}'"
    )


def test_a_repository_folder_with_one_snapshot_needs_no_ref(model: Path, repository: Path) -> None:
    snapshot(repository, OLD, model)
    assert load_release(repository).release.version == OLD
    assert load_release(repository).warnings == ()


def test_a_repository_folder_that_does_not_say_which_is_refused(model: Path, repository: Path) -> None:
    snapshot(repository, OLD, model)
    snapshot(repository, NEW, model)
    with pytest.raises(NotFound, match=f"holds 2 snapshots of a model and no 'main': '{OLD}', '{NEW}'") as caught:
        load_release(repository)
    assert "snapshots/COMMIT" in (caught.value.hint or "")
    point(repository, "main", "c" * 40)
    with pytest.raises(NotFound, match=f"'main' is commit {'c' * 40}, of which there is no snapshot"):
        load_release(repository)
    point(repository, "main", "../../elsewhere")
    with pytest.raises(DamagedFile, match=r"'../../elsewhere' is no commit"):
        load_release(repository)


def test_an_empty_repository_folder_is_no_release(repository: Path) -> None:
    (repository / "snapshots").mkdir(parents=True)
    with pytest.raises(NotFound, match="holds 0 snapshots"):
        load_release(repository)


def test_a_link_without_its_blob_is_an_incomplete_download(model: Path, repository: Path) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/3298"""
    path = snapshot(repository, OLD, model)
    (repository / "blobs" / f"{OLD[:4]}tokenizer.json").unlink()
    with pytest.raises(NotFound, match=r"tokenizer.json: it is a link to .*, which does not exist") as caught:
        load_release(path)
    assert caught.value.hint == "the download is incomplete: run it again"


def test_what_a_partial_snapshot_lacks_of_its_commit_is_named(model: Path, repository: Path) -> None:
    """Folders are no files, and what nobody reads may be absent.

    https://github.com/huggingface/huggingface_hub/issues/3706
    """
    path = snapshot(repository, OLD, model)
    files = {item.name: {"size": item.stat().st_size, "blob_id": "0"} for item in model.iterdir()}
    files["README.md"] = files["onnx/model.onnx"] = {"size": 1, "blob_id": "0"}
    (repository / "trees").mkdir()
    (repository / "trees" / f"{OLD}.json").write_text(json.dumps({"format_version": 1, "files": files}))
    assert load_release(path).warnings == ()
    (path / "tokenizer.json").unlink()
    assert load_release(path).warnings[0] == (
        "the snapshot lacks 1 files of its commit: 'tokenizer.json'; the digests are those of what is there"
    )


def test_a_blob_that_was_edited_changes_the_digest_whatever_its_name(model: Path, repository: Path) -> None:
    """https://github.com/huggingface/huggingface_hub/pull/3461"""
    path = snapshot(repository, OLD, model)
    before = load_release(path)
    blob = (path / "model-00001-of-00002.safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    after = load_release(path)
    assert after.release.version == before.release.version
    assert after.digests.weights != before.digests.weights
