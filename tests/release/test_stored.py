from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvrelease.errors import UnsupportedRelease
from kvrelease.release.address import open_source
from kvrelease.release.checkpoint import read_checkpoint
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.stored import proves, read_stored, stored_digest
from tests.release.builders import config_json, tensors, write_json, write_release, write_text_side
from tests.release.hub_server import Hub

MODEL = "acme/support"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "model", shards=2))


def test_an_earlier_fingerprint_still_holds_where_the_stated_hashes_are_equal(hub: Hub, model: Path) -> None:
    """Equal weights are recognised by headers and stated hashes alone."""
    hub.push(MODEL, model)
    saved = load_release(f"hf:{MODEL}")
    (model / "README.md").write_text("a new model card")
    hub.push(MODEL, model)
    hub.requests.clear()
    answer = read_stored(open_source(f"hf:{MODEL}"))
    assert proves(answer, saved)
    assert (answer.stored, answer.tensors, answer.bytes) == (saved.stored, saved.tensors, saved.bytes)
    assert (answer.config, answer.tokenizer) == (saved.digests.config, saved.digests.tokenizer)
    assert hub.asked("elsewhere") == 2  # the front of each shard, once


def test_changed_weights_or_configuration_prove_nothing(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.push(MODEL, model)
    saved = load_release(f"hf:{MODEL}")
    write_json(model / "config.json", config_json(rope_theta=5e5))
    hub.push(MODEL, model)
    assert not proves(read_stored(open_source(f"hf:{MODEL}")), saved)
    hub.push(MODEL, write_text_side(write_release(tmp_path / "other", tensors(3), shards=2)))
    assert not proves(read_stored(open_source(f"hf:{MODEL}")), saved)


def test_the_names_of_the_files_do_not_count_and_one_without_a_hash_leaves_no_answer(model: Path) -> None:
    files = [
        msgspec.structs.replace(file, identity=msgspec.structs.replace(file.identity, sha256=f"{number:064x}"))
        for number, file in enumerate(read_checkpoint(open_source(model)).files, start=1)
    ]
    assert stored_digest(files) == stored_digest(files[::-1]) != stored_digest(files[:1])
    assert stored_digest([*files, *read_checkpoint(open_source(model)).files[:1]]) is None


def test_a_fast_fingerprint_is_proved_by_no_hashes(hub: Hub, model: Path) -> None:
    """It says nothing of most bytes, so nothing of it could go on holding."""
    hub.push(MODEL, model)
    answer = read_stored(open_source(f"hf:{MODEL}"))
    assert proves(answer, load_release(f"hf:{MODEL}"))
    assert not proves(answer, load_release(f"hf:{MODEL}", mode=Mode.FAST))


def test_another_sharding_of_the_same_weights_is_not_recognised_without_reading(hub: Hub, tmp_path: Path) -> None:
    hub.push(MODEL, write_release(tmp_path / "one"))
    saved = load_release(f"hf:{MODEL}")
    hub.push(MODEL, write_release(tmp_path / "many", shards=4))
    assert not proves(read_stored(open_source(f"hf:{MODEL}")), saved)
    assert load_release(f"hf:{MODEL}").digests == saved.digests


def test_a_directory_states_no_hashes(model: Path) -> None:
    assert load_release(model).stored is None
    with pytest.raises(UnsupportedRelease, match="states no hashes"):
        read_stored(open_source(model))


def test_a_local_fingerprint_is_never_proved_by_hashes_that_it_lacks(hub: Hub, model: Path) -> None:
    hub.push(MODEL, model)
    assert not proves(read_stored(open_source(f"hf:{MODEL}")), load_release(model))
