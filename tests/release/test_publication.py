"""Where a publication lies, and what a release's place says against it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.errors import NotFound, UsageError
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.publication import check_by_stated_hashes, read_publication
from tests.release.builders import write_release, write_text_side
from tests.release.gguf_writer import write_gguf
from tests.release.hub_server import Hub

MODEL = "acme/support"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "model", shards=2))


def test_a_publication_lies_beside_the_weights_of_a_directory_and_of_a_file(model: Path, tmp_path: Path) -> None:
    published = load_release(model)
    artifacts.write(model / "kvrelease.json", published)
    for release in (str(model), f"{model}/", str(write_gguf(model / "support.gguf"))):
        assert read_publication(release) == published
    (model / "kvrelease.json").rename(tmp_path / "saved.json")
    assert read_publication(str(model), against=str(tmp_path / "saved.json")) == published


def test_what_was_never_published_says_how_to_publish(model: Path) -> None:
    with pytest.raises(NotFound) as caught:
        read_publication(str(model))
    assert f"kvrelease fingerprint {model} --publish" in (caught.value.hint or "")


def test_a_place_that_keeps_no_publications_wants_the_address_of_one(model: Path) -> None:
    with pytest.raises(UsageError, match=r"--check hf:acme/support/kvrelease.json: not the address of a saved"):
        read_publication("hf:acme/support")
    with pytest.raises(UsageError, match="--against"):
        read_publication(str(model), against=str(model))


def test_the_hubs_word_passes_with_what_an_operator_should_know(hub: Hub, model: Path) -> None:
    hub.push(MODEL, model)
    (model / "other.safetensors").write_bytes(b"")
    published = load_release(f"hf:{MODEL}")
    commit = hub.push(MODEL, model)
    hub.requests.clear()
    check = check_by_stated_hashes(published, f"hf:{MODEL}")
    assert check is not None
    assert (check.verdict, check.changed, check.release.source) == (Verdict.PASS, (), f"hf:{MODEL}@{commit}")
    assert "'main' can move to another commit at any time" in check.warnings[0]
    assert "not part of the release: 'other.safetensors'" in check.warnings[1]
    assert hub.asked("elsewhere") == 2  # the front of each shard, once


def test_only_the_hub_states_hashes_and_a_fast_fingerprint_is_proved_by_none(hub: Hub, model: Path) -> None:
    hub.push(MODEL, model)
    published = load_release(f"hf:{MODEL}")
    assert published.stored is not None
    assert check_by_stated_hashes(published, str(model)) is None
    assert check_by_stated_hashes(msgspec.structs.replace(published, stored=None), f"hf:{MODEL}") is None
    fast = load_release(f"hf:{MODEL}", mode=Mode.FAST)
    assert fast.stored == published.stored
    assert check_by_stated_hashes(fast, f"hf:{MODEL}") is None
