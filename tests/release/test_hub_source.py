"""Releases on the Hub: a real server with the Hub's endpoints, and the cache that its tools leave on a disk."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.errors import KvreleaseError, NotFound, Refused, UnexpectedReply, Unreachable, UsageError
from kvrelease.progress import ProgressEvent
from kvrelease.release.address import open_source
from kvrelease.release.fingerprint import load_release
from kvrelease.release.hub_client import redirected
from kvrelease.release.hub_source import HubSettings, HubSource, open_hub, parse_hub_address
from kvrelease.release.local_source import LocalSource
from kvrelease.release.range_reader import HEAD_BYTES
from kvrelease.release.source import Source
from tests.release.builders import raw_safetensors, tensors, write_release, write_text_side
from tests.release.hub_server import Hub, blob_id, entry, serve_hub

MODEL = "acme/support"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield served


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = write_text_side(write_release(tmp_path / "model", shards=3))
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (directory / "README.md").write_text("# Support")
    return directory


def impatient(hub: Hub, cache: Path, revision: str = "main") -> Source:
    """As `hf:`, but without waiting before a request is repeated."""
    address = parse_hub_address(f"hf:{MODEL}@{revision}", single_file_suffixes=(".safetensors",))
    settings = HubSettings(endpoint=hub.endpoint, cache=cache, is_offline=False, first_wait_s=0.0)
    return open_hub(address, settings=settings)


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


def test_the_token_goes_to_the_hub_and_to_nobody_else(hub: Hub, model: Path) -> None:
    """https://github.com/huggingface/huggingface_hub/pull/1269, https://github.com/osaurus-ai/osaurus/pull/1960"""
    hub.push(MODEL, model)
    load_release(f"hf:{MODEL}")
    assert {token for host, _, token in hub.requests if host == "hub"} == {"Bearer hf_of_the_test"}
    assert {token for host, _, token in hub.requests if host == "elsewhere"} == {None}


def test_a_signed_address_is_used_again_and_renewed_when_it_expires(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.push(MODEL, write_release(tmp_path / "one", {**tensors(), "x": np.zeros(HEAD_BYTES, np.float32)}))
    source = open_source(f"hf:{MODEL}")
    with source.file("model.safetensors").open() as reader:
        view = memoryview(bytearray(HEAD_BYTES))
        before = hub.asked("hub")
        for offset in (0, 1, 2):
            reader.read_into(view, offset)
        assert hub.asked("hub") == before + 1
        hub.expired = True
        assert reader.read_into(view, 3) == HEAD_BYTES
        assert hub.asked("hub") == before + 2


@pytest.mark.parametrize("times", [1, 50])
def test_an_answer_that_breaks_off_is_asked_again_and_never_believed(
    hub: Hub, model: Path, tmp_path: Path, times: int
) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/4419"""
    hub.push(MODEL, model)
    hub.cut_bytes, hub.cuts = 100, times
    if times == 1:
        expected = load_release(model).digests
        from kvrelease.release.fingerprint import fingerprint_source

        assert fingerprint_source(impatient(hub, tmp_path)).digests == expected
        return
    source = impatient(hub, tmp_path)
    with (
        source.file("model-00001-of-00003.safetensors").open() as reader,
        pytest.raises(UnexpectedReply, match=r"model-00001-of-00003.safetensors: the answer broke off") as caught,
    ):
        reader.read_into(memoryview(bytearray(500)), 0)
    assert "s3cret" not in caught.value.message
    assert hub.cuts == times - 5


REFUSALS: dict[tuple[int, str | None], tuple[type[KvreleaseError], str, str]] = {
    (401, "GatedRepo"): (Refused, "the model is gated (HTTP 401)", "accept its terms"),
    (403, "GatedRepo"): (Refused, "the model is gated (HTTP 403)", "HF_TOKEN"),
    (401, "RepoNotFound"): (NotFound, "no such model, or a private one", "HF_TOKEN"),
    (403, None): (Refused, "the Hub refused (HTTP 403)", "HF_TOKEN"),
    (429, None): (Refused, "HTTP 429", "signed-in users"),
    (503, None): (Refused, "HTTP 503", "again later"),
}


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_refusal_says_what_to_do(hub: Hub, tmp_path: Path, answer: tuple[int, str | None]) -> None:
    hub.refused = answer
    error, reason, hint = REFUSALS[answer]
    with pytest.raises(error, match=re.escape(reason)) as caught:
        impatient(hub, tmp_path)
    assert hint in (caught.value.hint or "")
    assert "hf_of_the_test" not in f"{caught.value.message} {caught.value.hint}"


def test_unknown_model_and_revision_are_told_apart(hub: Hub, model: Path) -> None:
    hub.push(MODEL, model)
    with pytest.raises(NotFound, match="hf:acme/other@main: no such model"):
        load_release("hf:acme/other")
    for revision in ("v9", "f" * 40):
        with pytest.raises(NotFound, match=f"{revision}: the model has no such revision"):
            load_release(f"hf:{MODEL}@{revision}")


def test_an_html_page_is_no_answer(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.push(MODEL, model)
    hub.page = "<!DOCTYPE html><html>please log in to the network</html>"
    with pytest.raises(UnexpectedReply, match=r"an HTML page came") as caught:
        load_release(f"hf:{MODEL}")
    assert "prox" in (caught.value.hint or "")


def test_a_host_without_ranges_is_refused_before_gigabytes_come(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.push(MODEL, write_release(tmp_path / "one", {**tensors(), "x": np.zeros(HEAD_BYTES, np.float32)}))
    hub.without_ranges = True
    with pytest.raises(UnexpectedReply, match=r"does not serve byte ranges \(HTTP 200\)"):
        load_release(f"hf:{MODEL}")


def test_other_content_than_the_list_of_files_names_is_refused(hub: Hub, model: Path) -> None:
    hub.push(MODEL, model)
    hub.linked_etag = "0" * 64
    with pytest.raises(UnexpectedReply, match=r"serves content 0000.*its own list of files says") as caught:
        load_release(f"hf:{MODEL}")
    assert "HF_ENDPOINT" in (caught.value.hint or "")


def test_nobody_listens_at_the_endpoint(hub: Hub, tmp_path: Path) -> None:
    settings = HubSettings(endpoint="http://127.0.0.1:9", cache=tmp_path, is_offline=False, first_wait_s=0.0)
    address = parse_hub_address(f"hf:{MODEL}", single_file_suffixes=())
    with pytest.raises(Unreachable, match="could not be reached") as caught:
        open_hub(address, settings=settings)
    assert "HF_HUB_OFFLINE=1" in (caught.value.hint or "")


def test_missing_shard_of_a_commit_is_named(hub: Hub, model: Path) -> None:
    (model / "model-00002-of-00003.safetensors").unlink()
    hub.push(MODEL, model)
    with pytest.raises(NotFound, match=r"1 of the 3 shards .*'model-00002-of-00003.safetensors'"):
        load_release(f"hf:{MODEL}")


def test_a_list_of_files_that_goes_on_elsewhere_is_refused(hub: Hub, model: Path) -> None:
    """A token must not follow a Link header: https://github.com/unslothai/unsloth/pull/7382"""
    hub.push(MODEL, model)
    hub.next_page_host = hub.elsewhere
    with pytest.raises(UnexpectedReply, match="goes on at another host"):
        load_release(f"hf:{MODEL}")
    assert hub.asked("elsewhere") == 0


def test_a_renamed_model_is_followed_with_the_token(hub: Hub, model: Path) -> None:
    """https://github.com/huggingface/huggingface_hub/pull/4739"""
    hub.push(MODEL, model)
    hub.renamed["acme/old-name"] = MODEL
    assert load_release("hf:acme/old-name").digests == load_release(model).digests
    assert {token for host, _, token in hub.requests if host == "hub"} == {"Bearer hf_of_the_test"}


def test_a_redirect_out_of_tls_is_refused() -> None:
    """https://github.com/huggingface/huggingface_hub/pull/4792"""
    here = "https://mirror.example/acme/support/resolve/0/config.json"
    assert redirected(here, "/new/name", where="x") == "https://mirror.example/new/name"
    assert redirected(here, "https://cdn.example/a?b", where="x") == "https://cdn.example/a?b"
    with pytest.raises(UnexpectedReply, match="redirects from https to http://"):
        redirected(here, "http://mirror.example/acme/support", where="x")


def test_a_branch_that_moves_while_it_is_read_is_still_one_commit(hub: Hub, model: Path, tmp_path: Path) -> None:
    """https://github.com/ai-dynamo/modelexpress/pull/598"""
    first = hub.push(MODEL, model)
    other = write_release(tmp_path / "other", tensors(7), shards=3)

    def push(_: ProgressEvent) -> None:
        hub.push(MODEL, other)

    fingerprint = load_release(f"hf:{MODEL}", jobs=1, progress=push)
    assert fingerprint.digests == load_release(model).digests
    assert fingerprint.release.version == first


def test_a_branch_that_names_a_lost_commit_is_told(hub: Hub, model: Path) -> None:
    """After a forced push: https://github.com/huggingface/huggingface_hub/issues/3406"""
    hub.push(MODEL, model)
    hub.refs[MODEL, "main"] = lost = "d" * 40
    with pytest.raises(NotFound, match=f"hf:{MODEL}@{lost}: the model has no such revision"):
        load_release(f"hf:{MODEL}")


@pytest.mark.parametrize("distance", [-9, -8, -1, 0, 1, 100])
def test_a_header_that_ends_where_the_first_range_does(hub: Hub, tmp_path: Path, distance: int) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/4602"""
    header = {"__metadata__": {"pad": ""}, "x": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    wanted = HEAD_BYTES + distance - 8
    header["__metadata__"] = {"pad": "p" * (wanted - len(json.dumps(header)))}
    data = raw_safetensors(header, b"abc")
    assert len(data) == HEAD_BYTES + distance + 3
    directory = write_release(tmp_path / "model")
    (directory / "model.safetensors").write_bytes(data)
    hub.push(MODEL, directory)
    assert load_release(f"hf:{MODEL}").digests == load_release(directory).digests


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


def test_a_snapshot_without_the_files_nobody_reads_is_whole(hub: Hub, model: Path, tmp_path: Path) -> None:
    """https://github.com/huggingface/optimum-intel/pull/1855"""
    commit = hub.push(MODEL, model)
    repository = cached(tmp_path / "cache", commit, model)
    (repository / "snapshots" / commit / "README.md").unlink()
    assert isinstance(open_source(f"hf:{MODEL}"), LocalSource)


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


def test_entries_of_the_server_are_those_of_the_library(model: Path) -> None:
    """The server answers what huggingface_hub's own parser takes."""
    from huggingface_hub.hf_api import RepoFile

    parse: Any = RepoFile  # untyped
    data = (model / "model-00001-of-00003.safetensors").read_bytes()
    parsed = parse(**entry("model-00001-of-00003.safetensors", data))
    assert parsed.lfs is not None
    assert (parsed.size, parsed.blob_id) == (len(data), blob_id(data))


def test_large_files_are_written_by_save_file(tmp_path: Path) -> None:
    """The fixture's own promise: what is larger than the kept front needs more than one range."""
    save_file({"x": np.zeros(HEAD_BYTES, np.float32)}, tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").stat().st_size > 2 * HEAD_BYTES
