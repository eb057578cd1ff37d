"""Releases on the Hub: a real server with the Hub's endpoints, and the cache that its tools leave on a disk."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.errors import NotFound, UsageError
from kvrelease.progress import ProgressEvent
from kvrelease.release.address import open_source
from kvrelease.release.hub_source import HubSettings, HubSource, hub_settings, parse_hub_address
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import LocalSource
from kvrelease.release.release_file import FileRole
from tests.release.builders import tensors, write_hub_model, write_release
from tests.release.hub_server import Hub, blob_id

MODEL = "acme/support"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_hub_model(tmp_path / "model")


def cached(cache: Path, commit: str, model: Path, *, with_links: bool = True, with_list: bool = False) -> Path:
    """What a download leaves behind: refs, a snapshot of links (or files), and the commit's list of files."""
    repository = cache / "models--acme--support"
    snapshot = repository / "snapshots" / commit
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "blobs").mkdir(exist_ok=True)
    files = {}
    for path in sorted(path for path in model.rglob("*") if path.is_file()):
        name = path.relative_to(model)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        blob = repository / "blobs" / blob_id(path.read_bytes())
        shutil.copy(path, blob)
        files[name.as_posix()] = {"size": path.stat().st_size, "blob_id": blob.name}
        if with_links:
            (snapshot / name).symlink_to(blob)
        else:
            shutil.copy(path, snapshot / name)
    if with_list:
        (repository / "trees").mkdir()
        (repository / "trees" / f"{commit}.json").write_text(json.dumps({"format_version": 1, "files": files}))
    return repository


def test_the_hub_gives_the_digests_of_the_directory_and_the_commit(hub: Hub, model: Path) -> None:
    commit = hub.push(MODEL, model)
    local, remote = load_release(model), load_release(f"hf:{MODEL}@{commit}")
    assert remote.digests == local.digests
    assert remote.tensor_digests == local.tensor_digests
    assert remote.files == local.files
    assert (remote.release.name, remote.release.version) == ("support", commit)
    assert remote.release.source == f"hf:{MODEL}@{commit}"
    assert remote.warnings == local.warnings


def test_a_name_that_can_move_is_pinned_with_a_warning(hub: Hub, model: Path, tmp_path: Path) -> None:
    """https://github.com/noonghunna/club-3090/issues/319"""
    commit = hub.push(MODEL, model)
    fingerprint = load_release(f"hf:{MODEL}")
    assert fingerprint.release.source == f"hf:{MODEL}@{commit}"
    assert f"'main' can move to another commit at any time; this is {commit}" in fingerprint.warnings[0]
    moved = hub.push(MODEL, write_release(tmp_path / "other", tensors(7)))
    assert load_release(f"hf:{MODEL}").release.version == moved
    assert load_release(f"hf:{MODEL}@{commit}").digests == fingerprint.digests


def test_revisions_compare_by_content(hub: Hub, model: Path, tmp_path: Path) -> None:
    """Two revisions of one repository share nothing by name: https://github.com/vllm-project/vllm/issues/49261"""
    hub.push(MODEL, model, ref="v1.2")
    hub.push(MODEL, write_release(tmp_path / "other", tensors(7)), ref="refs/pr/1")
    old, new = load_release(f"hf:{MODEL}@v1.2"), load_release(f"hf:{MODEL}@refs/pr/1")
    assert old.release.kv_name != new.release.kv_name


def test_one_file_of_a_repository(hub: Hub, tmp_path: Path) -> None:
    directory = write_release(tmp_path / "single")
    commit = hub.push(MODEL, directory)
    fingerprint = load_release(f"hf:{MODEL}@{commit}/model.safetensors")
    assert fingerprint.digests == load_release(directory).digests
    assert fingerprint.release.source == f"hf:{MODEL}@{commit}/model.safetensors"


def test_large_tensors_come_in_ranges_with_progress(hub: Hub, tmp_path: Path) -> None:
    weights = {**tensors(), "model.extra.weight": np.ones((1100, 1000), np.float32)}
    directory = write_release(tmp_path / "large", weights)
    hub.push(MODEL, directory)
    events: list[ProgressEvent] = []
    fingerprint = load_release(f"hf:{MODEL}", progress=events.append)
    assert fingerprint.digests == load_release(directory).digests
    assert events[-1] == ProgressEvent(stage="hashing", done=fingerprint.bytes, total=fingerprint.bytes, unit="bytes")


def test_missing_shard_of_a_commit_is_named(hub: Hub, model: Path) -> None:
    (model / "model-00002-of-00003.safetensors").unlink()
    hub.push(MODEL, model)
    with pytest.raises(NotFound, match=r"1 of the 3 shards .*'model-00002-of-00003.safetensors'"):
        load_release(f"hf:{MODEL}")


def test_a_branch_that_moves_while_it_is_read_is_still_one_commit(hub: Hub, model: Path, tmp_path: Path) -> None:
    """https://github.com/ai-dynamo/modelexpress/pull/598"""
    first = hub.push(MODEL, model)
    other = write_release(tmp_path / "other", tensors(7), shards=3)

    def push(_: ProgressEvent) -> None:
        hub.push(MODEL, other)

    fingerprint = load_release(f"hf:{MODEL}", jobs=1, progress=push)
    assert fingerprint.digests == load_release(model).digests
    assert fingerprint.release.version == first


def test_offline_a_commit_needs_no_ref(hub: Hub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/4487"""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commit = "e" * 40
    repository = cached(tmp_path / "cache", commit, model, with_list=True)
    shutil.rmtree(repository / "refs")
    fingerprint = load_release(f"hf:{MODEL}@{commit}")
    assert fingerprint.digests == load_release(model).digests
    assert fingerprint.warnings == load_release(model).warnings
    with pytest.raises(NotFound, match=f"the commits '{commit}'"):
        load_release(f"hf:{MODEL}")


@pytest.mark.parametrize("with_links", [True, False])
def test_a_whole_snapshot_in_the_cache_is_read_instead(
    hub: Hub, model: Path, tmp_path: Path, *, with_links: bool
) -> None:
    commit = hub.push(MODEL, model)
    cached(tmp_path / "cache", commit, model, with_links=with_links)
    source = open_source(f"hf:{MODEL}")
    assert isinstance(source, LocalSource)
    fingerprint = load_release(f"hf:{MODEL}@{commit}")
    assert fingerprint.digests == load_release(model).digests
    assert fingerprint.release.source == f"hf:{MODEL}@{commit}"
    assert hub.asked("elsewhere") == 0


@pytest.mark.parametrize("name", ["tokenizer.json", "model-00002-of-00003.safetensors"])
def test_a_partial_snapshot_is_not_used_while_there_is_a_network(
    hub: Hub, model: Path, tmp_path: Path, name: str
) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/3706"""
    commit = hub.push(MODEL, model)
    repository = cached(tmp_path / "cache", commit, model)
    (repository / "snapshots" / commit / name).unlink()
    assert isinstance(open_source(f"hf:{MODEL}"), HubSource)
    assert load_release(f"hf:{MODEL}").digests == load_release(model).digests


def test_one_file_is_that_file_though_the_cache_has_the_whole_commit(hub: Hub, model: Path, tmp_path: Path) -> None:
    """An engine that was given one file loads no index beside it."""
    save_file(tensors(7), model / "other.safetensors")
    commit = hub.push(MODEL, model)
    cached(tmp_path / "cache", commit, model)
    found = load_release(f"hf:{MODEL}@{commit}/other.safetensors")
    assert found.digests == load_release(model / "other.safetensors").digests
    assert [file.path for file in found.files if file.role is FileRole.WEIGHTS] == ["other.safetensors"]


def test_only_the_hash_of_a_large_file_is_one_of_its_content(hub: Hub, model: Path) -> None:
    """Of a small file the Hub states git's object id, which is a SHA-1 of more than its bytes."""
    commit = hub.push(MODEL, model)
    source = open_source(f"hf:{MODEL}@{commit}")
    shard = "model-00001-of-00003.safetensors"
    assert source.file(shard).identity().sha256 == hashlib.sha256((model / shard).read_bytes()).hexdigest()
    small = source.file("config.json").identity()
    assert small.sha256 is None
    assert blob_id((model / "config.json").read_bytes()) in small.version


def test_what_lies_in_the_cache_is_never_vouched_for_by_the_hubs_hashes(hub: Hub, model: Path, tmp_path: Path) -> None:
    """A file of the cache may have been edited: a fingerprint of it would be proved by hashes of other bytes."""
    commit = hub.push(MODEL, model)
    assert load_release(f"hf:{MODEL}@{commit}").stored is not None
    cached(tmp_path / "cache", commit, model, with_links=False)
    assert load_release(f"hf:{MODEL}@{commit}").stored is None


def test_a_snapshot_without_the_files_nobody_reads_is_whole(hub: Hub, model: Path, tmp_path: Path) -> None:
    """https://github.com/huggingface/optimum-intel/pull/1855"""
    commit = hub.push(MODEL, model)
    repository = cached(tmp_path / "cache", commit, model)
    (repository / "snapshots" / commit / "README.md").unlink()
    assert isinstance(open_source(f"hf:{MODEL}"), LocalSource)


@pytest.mark.parametrize("name", ["tokenizer.model.v3", "sentencepiece.bpe.model", "hf_quant_config.json"])
def test_cache_and_network_give_the_same_digests_whatever_the_tokenizer_is_called(
    hub: Hub, model: Path, tmp_path: Path, name: str
) -> None:
    """A snapshot without it, as a download by patterns leaves it, is not whole."""
    (model / name).write_text("{}")
    commit = hub.push(MODEL, model)
    expected = load_release(model).digests
    cached(tmp_path / "cache", commit, model, with_list=True)
    assert load_release(f"hf:{MODEL}@{commit}").digests == expected
    (tmp_path / "cache" / "models--acme--support" / "snapshots" / commit / name).unlink()
    assert load_release(f"hf:{MODEL}@{commit}").digests == expected
    with_gap = load_release(tmp_path / "cache" / "models--acme--support" / "snapshots" / commit)
    assert with_gap.warnings[0].startswith(f"the snapshot lacks 1 files of its commit: {name!r}")


def test_offline_reads_the_cache_or_says_what_is_missing(
    hub: Hub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be checked is said: https://github.com/huggingface/huggingface_hub/issues/4624"""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commit = "0123456789abcdef0123456789abcdef01234567"
    with pytest.raises(NotFound, match=r"offline: the cache .* it has nothing of that model") as caught:
        load_release(f"hf:{MODEL}")
    assert f"hf download {MODEL} --revision main" in (caught.value.hint or "")
    repository = cached(tmp_path / "cache", commit, model)
    fingerprint = load_release(f"hf:{MODEL}")
    assert fingerprint.digests == load_release(model).digests
    assert fingerprint.release.version == commit
    assert any(
        "whether a tokenizer or template file is missing cannot be told" in text for text in fingerprint.warnings
    )
    with pytest.raises(NotFound, match=f"it has the commits '{commit}'"):
        load_release(f"hf:{MODEL}@v9")
    (repository / "snapshots" / commit / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(NotFound, match=r"'model-00003-of-00003.safetensors'"):
        load_release(f"hf:{MODEL}")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("address", "model", "revision", "file"),
    [
        ("hf:acme/support", "acme/support", "main", None),
        ("hf://acme/support@v1", "acme/support", "v1", None),
        ("hf:gpt2@refs/pr/1", "gpt2", "refs/pr/1", None),
        ("hf:acme/support@v1/a.safetensors", "acme/support", "v1", "a.safetensors"),
        ("hf:acme/support/a.safetensors", "acme/support", "main", "a.safetensors"),
    ],
)
def test_addresses(address: str, model: str, revision: str, file: str | None) -> None:
    found = parse_hub_address(address, single_file_suffixes=(".safetensors",))
    assert (found.model, found.revision, found.file) == (model, revision, file)


@pytest.mark.parametrize("address", ["hf:", "hf:acme/", "hf:acme/support@", "hf:a/b/c", "hf:../secrets", "hf:a b"])
def test_what_is_no_model_is_a_usage_error(address: str) -> None:
    with pytest.raises(UsageError, match="not a model on the Hub"):
        load_release(address)


def test_the_environment_says_where_hub_and_cache_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "HF_ENDPOINT",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "XDG_CACHE_HOME",
        "TRANSFORMERS_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert hub_settings() == HubSettings(
        endpoint="https://huggingface.co", cache=tmp_path / ".cache/huggingface/hub", is_offline=False
    )
    monkeypatch.setenv("HF_HOME", "$HOME/hf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    assert (hub_settings().cache, hub_settings().is_offline) == (tmp_path / "hf/hub", True)
    monkeypatch.setenv("HF_HUB_CACHE", "/mnt/models")
    assert hub_settings().cache == Path("/mnt/models")
