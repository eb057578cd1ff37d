"""A diff with a release on the Hub reads no weights that the answer does not need."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.pair import load_pair
from tests.release.builders import config_json, tensors, write_hub_model, write_json, write_release
from tests.release.hub_server import Hub


def push(hub: Hub, directory: Path, ref: str) -> str:
    return f"hf:acme/support@{hub.push('acme/support', directory, ref=ref)}"


def diff(old: str, new: str, *, wants_weights: bool = True) -> Diff:
    pair = load_pair(old, new, wants_weights=wants_weights)
    return diff_fingerprints(pair.old, pair.new, texts=pair.texts)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_hub_model(tmp_path / "model")


def are_weights_read(hub: Hub, model: Path, *, sides: int) -> bool:
    """Whether anybody asked the host of large files for more than one header of each shard."""
    return hub.asked("elsewhere") > sides * len(list(model.glob("*.safetensors")))


def test_equal_hashes_of_two_revisions_prove_equal_weights(hub: Hub, model: Path) -> None:
    first = push(hub, model, "v1")
    write_json(model / "generation_config.json", {"temperature": 0.9})
    second = push(hub, model, "v2")
    found = diff(first, second)
    assert not are_weights_read(hub, model, sides=2)
    assert (found.kv.status, found.changed, found.unknown) == (KvStatus.VALID, ("release", "generation"), ())
    assert diff_verdict(found, part="weights") is Verdict.PASS
    assert found.release.kv_name is None


def test_a_saved_fingerprint_of_the_same_files_names_their_kv(hub: Hub, model: Path, tmp_path: Path) -> None:
    first = push(hub, model, "v1")
    published = load_release(first)
    artifacts.write(tmp_path / "v1.json", published)
    write_json(model / "config.json", config_json(eos_token_id=9))
    second = push(hub, model, "v2")
    hub.requests.clear()
    pair = load_pair(tmp_path / "v1.json", second)
    assert not are_weights_read(hub, model, sides=1)
    read = load_release(second)
    assert pair.new.digests == read.digests
    assert pair.new.release.kv_name == published.release.kv_name
    assert pair.new.fast == read.fast
    assert any("no tensor was read" in warning for warning in pair.new.warnings)
    assert diff_fingerprints(pair.old, pair.new).kv.status is KvStatus.VALID


def test_a_saved_fast_fingerprint_proves_nothing_of_the_weights(hub: Hub, model: Path, tmp_path: Path) -> None:
    first = push(hub, model, "v1")
    artifacts.write(tmp_path / "v1.json", load_release(first, mode=Mode.FAST))
    hub.requests.clear()
    found = diff(str(tmp_path / "v1.json"), first)
    assert are_weights_read(hub, model, sides=1)
    assert found.kv.status is KvStatus.UNKNOWN


def test_a_configuration_that_decides_is_answered_from_headers(hub: Hub, model: Path) -> None:
    first = push(hub, model, "v1")
    write_release(model, tensors(1), shards=3, config=config_json(rms_norm_eps=1e-3))
    second = push(hub, model, "v2")
    found = diff(first, second, wants_weights=False)
    assert not are_weights_read(hub, model, sides=2)
    assert (found.kv.status, found.kv.first_invalid_layer) == (KvStatus.INVALID, 0)
    assert found.kv.reasons[:2] == (
        "config.json changed in 'rms_norm_eps', on which KV depends: every layer is invalid",
        "of the weights nothing is known: the weights were not read",
    )
    assert "weights" in found.unknown
    assert diff_verdict(found, part="weights") is Verdict.INCONCLUSIVE
    assert found.summary.startswith("Old KV is invalid from layer 0 on: 1 configuration key changed")


def test_weights_that_are_wanted_are_read(hub: Hub, model: Path) -> None:
    first = push(hub, model, "v1")
    write_release(model, tensors(1), shards=3, config=config_json(rms_norm_eps=1e-3))
    found = diff(first, push(hub, model, "v2"), wants_weights=True)
    assert are_weights_read(hub, model, sides=2)
    assert "weights" in found.changed
    assert len(found.tensors.changed) == len(tensors())


def test_a_configuration_that_does_not_decide_has_the_weights_read(hub: Hub, model: Path) -> None:
    first = push(hub, model, "v1")
    write_release(model, tensors(1), shards=3, config=config_json(eos_token_id=9))
    found = diff(first, push(hub, model, "v2"), wants_weights=False)
    assert (found.kv.status, "weights" in found.changed) == (KvStatus.INVALID, True)


def test_two_rules_have_the_weights_read_because_keys_of_one_decide_nothing_under_the_other(
    hub: Hub, model: Path
) -> None:
    write_json(model / "config.json", config_json("mamba"))
    first = push(hub, model, "v1")
    write_release(model, tensors(1), shards=3)
    found = diff(first, push(hub, model, "v2"), wants_weights=False)
    assert are_weights_read(hub, model, sides=2)
    assert found.kv.status is KvStatus.UNKNOWN
    assert len(found.tensors.changed) == len(tensors())


def test_other_shapes_in_headers_are_told_as_changed(hub: Hub, model: Path) -> None:
    first = push(hub, model, "v1")
    weights = tensors(1) | {"model.norm.weight": tensors()["model.layers.0.mlp.down_proj.weight"]}
    write_release(model, weights, shards=3, config=config_json(rms_norm_eps=1e-3))
    found = diff(first, push(hub, model, "v2"), wants_weights=False)
    assert found.tensors.changed == ("model.norm.weight",)
    assert "weights" in found.changed


def test_on_this_machine_every_byte_is_read(tmp_path: Path) -> None:
    one = write_release(tmp_path / "one", config=config_json(rms_norm_eps=1e-3))
    two = write_release(tmp_path / "two", tensors(1))
    pair = load_pair(one, two, wants_weights=False)
    assert (pair.old.mode, pair.new.mode) == (Mode.FULL, Mode.FULL)
    assert pair.texts is not None
