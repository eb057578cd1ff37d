"""What the Hub answers and refuses: a real server with its endpoints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.errors import KvreleaseError, NotFound, Refused, UnexpectedReply, Unreachable
from kvrelease.release.address import open_source
from kvrelease.release.hub_client import redirected
from kvrelease.release.hub_source import HubSettings, open_hub, parse_hub_address
from kvrelease.release.loading import load_release
from kvrelease.release.range_reader import HEAD_BYTES
from kvrelease.release.source import Source
from tests.release.builders import raw_safetensors, tensors, write_hub_model, write_release
from tests.release.hub_server import Hub, blob_id, entry

MODEL = "acme/support"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_hub_model(tmp_path / "model")


def impatient(hub: Hub, cache: Path, revision: str = "main") -> Source:
    """As `hf:`, but without waiting before a request is repeated."""
    address = parse_hub_address(f"hf:{MODEL}@{revision}", single_file_suffixes=(".safetensors",))
    settings = HubSettings(endpoint=hub.endpoint, cache=cache, is_offline=False, first_wait_s=0.0)
    return open_hub(address, settings=settings)


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
        from kvrelease.release.fingerprinting import fingerprint_with_text

        found, _ = fingerprint_with_text(impatient(hub, tmp_path))
        assert found.digests == expected
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
    """Repeating helps where the Hub is busy or broken, and nowhere else."""
    hub.refused = answer
    error, reason, hint = REFUSALS[answer]
    with pytest.raises(error, match=re.escape(reason)) as caught:
        impatient(hub, tmp_path)
    assert hint in (caught.value.hint or "")
    assert "hf_of_the_test" not in f"{caught.value.message} {caught.value.hint}"
    assert len(hub.requests) == (2 if answer[0] in (429, 503) else 1)


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
