"""Releases in an object store: a real S3 server, and the client libraries that operators use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.errors import (
    DamagedFile,
    InputError,
    NotFound,
    Refused,
    ServiceError,
    Unreachable,
    UsageError,
)
from kvrelease.progress import ProgressEvent
from kvrelease.release.address import open_source
from kvrelease.release.checkpoint import read_checkpoint
from kvrelease.release.loading import load_release
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.object_store import StoredObject, _Store
from kvrelease.release.source import FileIdentity, read_range
from tests.release.builders import config_json, tensors, write_release, write_text_side
from tests.release.gguf_writer import write_gguf, write_split
from tests.release.s3_server import BUCKET, S3Server, serve_s3


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    with serve_s3(monkeypatch, tmp_path) as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = write_text_side(write_release(tmp_path / "support-v1.3", shards=3))
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    return directory


def test_an_object_store_gives_the_digests_of_the_directory(s3: S3Server, model: Path) -> None:
    local, remote = load_release(model), load_release(s3.upload(model, "llama/support-v1.3"))
    assert remote.digests == local.digests
    assert remote.layers == local.layers
    assert remote.tensor_digests == local.tensor_digests
    assert (remote.files, remote.warnings) == (local.files, local.warnings)
    assert (remote.release.name, remote.release.version) == ("support-v1.3", None)
    assert remote.release.source == f"s3://{BUCKET}/llama/support-v1.3"


def test_the_fast_digest_of_objects_is_that_of_the_directory_and_nothing_is_remembered(
    s3: S3Server, model: Path, tmp_path: Path
) -> None:
    address = s3.upload(model, "llama/support-v1.3")
    memo = Memo(tmp_path / "memo", settled_ns=0)
    fast, full = load_release(address, mode=Mode.FAST), load_release(address, memo=memo)
    assert fast.fast == full.fast == load_release(model).fast
    assert full.remembered_bytes == load_release(address, memo=memo).remembered_bytes == 0
    assert not memo.directory.exists()


def test_one_object_and_shards_in_sub_folders_are_found(s3: S3Server, model: Path, tmp_path: Path) -> None:
    single = write_release(tmp_path / "single")
    address = s3.upload(single, "single")
    assert load_release(f"{address}/model.safetensors").digests == load_release(single).digests
    index = json.loads((model / "model.safetensors.index.json").read_text())
    index["weight_map"] = {name: f"shards/{shard}" for name, shard in index["weight_map"].items()}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (model / "shards").mkdir()
    for shard in set(index["weight_map"].values()):
        shutil.move(model / Path(shard).name, model / shard)
    assert load_release(s3.upload(model, "nested")).digests == load_release(model).digests


def test_gguf_files_are_read_whole_and_split(s3: S3Server, tmp_path: Path) -> None:
    local = load_release(write_gguf(tmp_path / "whole" / "support.gguf"))
    paths = write_split(tmp_path / "split")
    whole, split = s3.upload(tmp_path / "whole", "whole"), s3.upload(tmp_path / "split", "split")
    for address in (whole, f"{whole}/support.gguf", split, f"{split}/{paths[2].name}"):
        found = load_release(address)
        assert found.digests == local.digests, address
        assert found.config == local.config
    assert load_release(f"{split}/{paths[2].name}").release.name == "support"


def test_an_object_that_appears_while_the_release_is_read_is_an_error(s3: S3Server, model: Path) -> None:
    address = s3.upload(model, "m")

    def add(_: ProgressEvent) -> None:
        s3.put("m/added_tokens.json", b'{"<new>": 2}')

    with pytest.raises(InputError, match=f"reading {address}: .*'added_tokens.json' appeared"):
        load_release(address, jobs=1, progress=add)


def test_progress_counts_the_bytes_that_came(s3: S3Server, model: Path) -> None:
    events: list[ProgressEvent] = []
    fingerprint = load_release(s3.upload(model, "m"), progress=events.append)
    assert events[-1] == ProgressEvent(stage="hashing", done=fingerprint.bytes, total=fingerprint.bytes, unit="bytes")


def test_ranges_are_what_lies_there(s3: S3Server) -> None:
    data = bytes(range(256)) * 3000
    s3.put("r/model.safetensors", data)
    with open_source(f"s3://{BUCKET}/r").file("model.safetensors").open() as reader:
        for offset, size in ((0, 64), (8, 1000), (200_000, 150_000), (300_000, 5), (len(data) - 7, 100)):
            assert read_range(reader, offset, size) == data[offset : offset + size]
        assert read_range(reader, len(data), 1) == b""


def test_object_overwritten_while_it_is_read_is_an_error(s3: S3Server, model: Path) -> None:
    address = s3.upload(model, "m")
    other = write_release(model.parent / "other", tensors(9), shards=3)
    name = "model-00002-of-00003.safetensors"

    def overwrite(_: ProgressEvent) -> None:
        s3.put(f"m/{name}", (other / name).read_bytes())

    with pytest.raises(InputError, match=f"m/{name}: the file changed while it was read"):
        load_release(address, jobs=1, progress=overwrite)


class OneObject:
    """What fsspec's file systems say of an object, said by nobody else."""

    def __init__(self, **said: object) -> None:
        self.said = {"type": "file", "size": 3, "name": "b/k", **said}

    def info(self, path: str) -> dict[str, object]:
        assert path == "b/k"
        return self.said


def identity(**said: object) -> FileIdentity:
    return StoredObject(store=_Store(scheme="s3", filesystem=OneObject(**said)), path="b/k", name="k").identity()


@pytest.mark.parametrize("key", ["ETag", "etag", "VersionId", "generation", "LastModified", "updated", "mtime"])
def test_whatever_a_store_says_of_an_objects_version_makes_its_identity(key: str) -> None:
    """s3fs gives an entity tag, a version and a time, gcsfs a generation beside them; others give fewer."""
    assert identity(**{key: "1"}) == identity(**{key: "1"})
    assert identity(**{key: "1"}) != identity(**{key: "2"})
    assert identity(ETag="same", **({} if key == "ETag" else {key: "1"})) != identity(**{"ETag": "same", key: "2"})


def test_an_object_without_a_version_is_refused() -> None:
    with pytest.raises(InputError, match="tells no version of the object"):
        identity(ETag=None)


def test_absent_shard_config_bucket_and_prefix_are_named(s3: S3Server, model: Path) -> None:
    """Elsewhere one "File access error": https://github.com/run-ai/runai-model-streamer/issues/28,
    https://github.com/run-ai/runai-model-streamer/issues/46, https://github.com/vllm-project/vllm/issues/19192
    """
    address = s3.upload(model, "m")
    s3.client.delete_object(Bucket=BUCKET, Key="m/config.json")
    with pytest.raises(NotFound, match=r"s3://models/m: it holds weights, but no config.json"):
        load_release(address)
    s3.client.delete_object(Bucket=BUCKET, Key="m/model-00001-of-00003.safetensors")
    with pytest.raises(NotFound, match=r"1 of the 3 shards .* 'model-00001-of-00003.safetensors'"):
        load_release(address)
    for absent in ("s3://models/nowhere", "s3://no-such-bucket/m", "s3://models/m/other.safetensors"):
        with pytest.raises(NotFound, match=f"{absent}.*no such bucket or object") as caught:
            load_release(absent)
        assert caught.value.hint is not None


def test_truncated_and_pickled_objects_are_told_as_on_a_disk(s3: S3Server) -> None:
    s3.put("t/model.safetensors", b"version https://git-lfs.github.com/spec/v1\n")
    s3.put("t/config.json", json.dumps(config_json()).encode())
    with pytest.raises(DamagedFile, match=r"s3://models/t/model.safetensors: it is a Git LFS pointer"):
        load_release(f"s3://{BUCKET}/t")
    s3.put("p/pytorch_model.bin", b"PK\x03\x04")
    with pytest.raises(InputError, match="only pickles"):
        load_release(f"s3://{BUCKET}/p")


def test_a_folder_marker_is_no_file(s3: S3Server, model: Path) -> None:
    """Consoles keep an empty object `prefix/` so that an empty folder shows."""
    s3.put("m/", b"")
    source = open_source(s3.upload(model, "m"))
    assert "" not in source.names()
    assert "m" not in source.names()
    assert read_checkpoint(source).warnings == ()


def test_missing_credentials_say_what_to_set(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Refused, match="no usable credentials") as caught:
        load_release(f"s3://{BUCKET}/m")
    assert "AWS_PROFILE" in (caught.value.hint or "")


def test_refused_credentials_are_told_from_absent_objects(s3: S3Server, model: Path) -> None:
    address = s3.upload(model, "m")
    s3.demand_credentials()
    with pytest.raises(Refused, match=r"s3://models/m: the store refused \(PermissionError\)") as caught:
        load_release(address)
    assert caught.value.status == 403
    assert "testing" not in f"{caught.value.message} {caught.value.hint}"


def test_saved_fingerprint_lies_beside_the_weights(s3: S3Server, model: Path) -> None:
    address = s3.upload(model, "m")
    fingerprint = load_release(address, version="1.3")
    s3.put("m/kvrelease.json", artifacts.to_json(fingerprint).encode())
    assert load_release(f"{address}/kvrelease.json") == fingerprint
    with pytest.raises(NotFound, match=f"{address}/other.json: no such bucket or object"):
        load_release(f"{address}/other.json")


def test_nothing_listens_there(monkeypatch: pytest.MonkeyPatch, s3: S3Server) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(Unreachable, match="could not be reached") as caught:
        load_release(f"s3://{BUCKET}/m")
    assert "AWS_ENDPOINT_URL" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("s3://AKIAEXAMPLE:hunter2@models/m", "credentials do not belong in an address"),
        ("az://container/m", "no store is known for az://"),
        ("https://models.example/m?X-Amz-Signature=hunter2", "no store is known for https://"),
        ("s3://", "names no bucket"),
    ],
)
def test_addresses_that_cannot_be_read_are_usage_errors(address: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        load_release(address)
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"
    assert not isinstance(caught.value, ServiceError)
