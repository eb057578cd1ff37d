"""What a fingerprint promises, stated on real files."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease import artifacts
from kvrelease.errors import DamagedFile, InputError, NotFound, UnsupportedRelease
from kvrelease.progress import ProgressEvent
from kvrelease.release.checkpoint import FileRole, ReleaseFile
from kvrelease.release.fingerprint import Fingerprint, load_release
from tests.release.builders import config_json, hub_cache, tensors, write_json, write_release, write_text_side


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "support-v1.2"))


def test_fingerprint_of_a_directory(model: Path) -> None:
    fingerprint = load_release(model, version="1.2")
    assert fingerprint.release.name == "support-v1.2"
    assert fingerprint.release.version == "1.2"
    assert fingerprint.release.source == str(model)
    assert fingerprint.release.kv_name is not None
    assert (fingerprint.tensors, fingerprint.bytes) == (30, sum(array.nbytes for array in tensors().values()))
    assert [layer.layer for layer in fingerprint.layers] == [0, 1, 2]
    assert fingerprint.transformers_version == "4.40.0"
    assert fingerprint.warnings == ()
    assert {(file.path, file.role) for file in fingerprint.files} == {
        ("model.safetensors", FileRole.WEIGHTS),
        ("config.json", FileRole.CONFIG),
        ("tokenizer.json", FileRole.TOKENIZER),
        ("tokenizer_config.json", FileRole.TOKENIZER),
        ("generation_config.json", FileRole.GENERATION),
    }
    assert ReleaseFile(path="config.json", bytes=(model / "config.json").stat().st_size, role=FileRole.CONFIG) in (
        fingerprint.files
    )


def test_place_shards_metadata_links_and_formatting_change_no_digest(model: Path, tmp_path: Path) -> None:
    expected = load_release(model).digests
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(model, moved)
    sharded = write_text_side(write_release(tmp_path / "sharded", shards=4))
    annotated = write_text_side(write_release(tmp_path / "annotated", metadata={"step": "9", "format": "pt"}))
    (annotated / "config.json").write_text(json.dumps(config_json(transformers_version="5.24.0", _name_or_path="/x")))
    cached = hub_cache(sharded, tmp_path)
    for other in (moved, sharded, annotated, cached):
        assert load_release(other).digests == expected, other


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_resharding_by_transformers_changes_no_digest(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    raw = {key: value for key, value in config_json(tie_word_embeddings=True).items() if key != "torch_dtype"}
    make_config: Any = LlamaConfig
    LlamaForCausalLM(make_config(**raw)).save_pretrained(tmp_path / "one")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    again.save_pretrained(tmp_path / "many", max_shard_size="2KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load_release(tmp_path / "one"), load_release(tmp_path / "many")
    assert one.digests == many.digests
    assert one.layers == many.layers
    assert (one.warnings, many.warnings) == ((), ())


def test_any_flipped_bit_changes_the_digests_or_is_refused(model: Path) -> None:
    before = load_release(model)
    path = model / "model.safetensors"
    original = path.read_bytes()
    header_end = 8 + int.from_bytes(original[:8], "little")
    generator = random.Random(11)
    positions = [generator.randrange(header_end, len(original)) for _ in range(60)]
    positions += [generator.randrange(header_end) for _ in range(60)]
    refused: list[int] = []
    for position in positions:
        changed = bytearray(original)
        changed[position] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        try:
            after = load_release(model)
        except InputError:
            refused.append(position)
            continue
        assert after.digests.weights != before.digests.weights, position
        assert after.digests.release != before.digests.release, position
    assert all(position < header_end for position in refused)


def test_final_norm_alone_changes_weights_and_not_kv(model: Path) -> None:
    before = load_release(model)
    weights = tensors()
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    save_file(weights, model / "model.safetensors")
    after = load_release(model)
    assert after.digests.weights != before.digests.weights
    assert after.digests.kv == before.digests.kv
    assert after.release.kv_name == before.release.kv_name
    assert after.layers == before.layers


def test_tied_output_layer_may_be_stored_or_not(tmp_path: Path) -> None:
    config = config_json(tie_word_embeddings=True)
    weights = tensors(is_tied=True)
    without = load_release(write_release(tmp_path / "without", weights, config=config))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    stored = load_release(write_release(tmp_path / "with", weights, config=config))
    assert stored.digests == without.digests
    assert stored.tensor_digests == without.tensor_digests
    assert stored.warnings == ("lm_head.weight repeats the embeddings it is tied to, and is not counted",)
    weights["lm_head.weight"][0, 0] += 1
    assert load_release(write_release(tmp_path / "other", weights, config=config)).digests.kv != (without.digests.kv)


def test_tensor_stored_twice_is_a_note_if_equal_and_an_error_if_not(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "model", shards=2)
    expected = load_release(directory).digests
    (directory / "model.safetensors.index.json").unlink()
    copy = {"model.norm.weight": tensors()["model.norm.weight"]}
    save_file(copy, directory / "copy.safetensors")
    fingerprint = load_release(directory)
    assert fingerprint.digests == expected
    assert "1 tensors are stored twice with equal content: 'model.norm.weight'" in fingerprint.warnings
    save_file({"model.norm.weight": np.zeros(8, np.float32)}, directory / "copy.safetensors")
    with pytest.raises(DamagedFile, match=r"tensor 'model.norm.weight': .*copy.safetensors and .*hold different"):
        load_release(directory)


def test_all_zero_matrix_and_disagreement_are_warnings(tmp_path: Path) -> None:
    weights = tensors()
    weights["model.layers.1.mlp.up_proj.weight"][:] = 0
    weights["model.norm.weight"] = np.zeros(9, np.float32)  # a vector of zeros is no matrix
    found = load_release(write_release(tmp_path / "model", weights)).warnings
    assert any("1 weight matrices are all zero: 'model.layers.1.mlp.up_proj.weight'" in text for text in found)
    assert any("1 tensors have another shape" in text for text in found)


def test_unknown_architecture_counts_everything(tmp_path: Path) -> None:
    weights = tensors()
    config = config_json("gemma2")
    before = load_release(write_release(tmp_path / "model", weights, config=config))
    assert before.digests.kv.startswith("kvfp0-full/all.1:")
    assert before.layers == ()
    assert "no dependency rule is known for model type 'gemma2'" in before.warnings[0]
    weights["model.norm.weight"] += 1
    after = load_release(write_release(tmp_path / "model", weights, config=config))
    assert after.digests.kv != before.digests.kv


def test_code_of_the_model_counts(tmp_path: Path) -> None:
    config = config_json(auto_map={"AutoModelForCausalLM": "modeling.Model"})
    directory = write_release(tmp_path / "model", config=config)
    (directory / "modeling.py").write_text("a = 1\n")
    before = load_release(directory)
    (directory / "modeling.py").write_text("a = 2\n")
    after = load_release(directory)
    assert before.digests.kv != after.digests.kv
    assert before.digests.config != after.digests.config


def test_single_file_with_and_without_a_configuration(model: Path, tmp_path: Path) -> None:
    assert load_release(model / "model.safetensors").digests == load_release(model).digests
    alone = tmp_path / "alone.safetensors"
    shutil.copy(model / "model.safetensors", alone)
    fingerprint = load_release(alone)
    assert fingerprint.digests.weights == load_release(model).digests.weights
    assert (fingerprint.release.name, fingerprint.release.kv_name) == ("alone", None)
    assert "there is no config.json" in fingerprint.warnings[0]


def test_hub_cache_gives_name_and_commit(model: Path, tmp_path: Path) -> None:
    release = load_release(hub_cache(model, tmp_path)).release
    assert (release.name, release.version) == ("support", "0123abcd")


def test_saved_fingerprint_is_read_back_whole(model: Path, tmp_path: Path) -> None:
    fingerprint = load_release(model, jobs=1, version="1.2")
    saved = tmp_path / "kvrelease.json"
    artifacts.write(saved, fingerprint)
    assert load_release(saved) == fingerprint
    renamed = load_release(str(saved), name="other", version="9").release
    assert (renamed.name, renamed.version, renamed.kv_name) == ("other", "9", fingerprint.release.kv_name)
    assert json.loads(saved.read_text())["kind"] == "kvrelease/fingerprint"


def test_tensor_names_are_raw_in_data(tmp_path: Path) -> None:
    name = "evil\x1b[31m\nname"
    weights = {**tensors(), name: np.zeros((2, 2), np.float32)}
    fingerprint = load_release(write_release(tmp_path / "model", weights))
    assert name in fingerprint.tensor_digests
    assert not any("\x1b" in warning or "\n" in warning for warning in fingerprint.warnings)
    assert artifacts.from_json(artifacts.to_json(fingerprint).encode(), Fingerprint, source="-") == fingerprint


def test_progress_reaches_the_total(model: Path) -> None:
    events: list[ProgressEvent] = []
    fingerprint = load_release(model, progress=events.append)
    assert events[-1] == ProgressEvent(stage="hashing", done=fingerprint.bytes, total=fingerprint.bytes, unit="bytes")


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("absent", NotFound, "no such file or directory"),
        ("notes.txt", UnsupportedRelease, "neither a model directory"),
        ("no-config", NotFound, "no config.json"),
        ("kvrelease.json", DamagedFile, "not an artifact"),
    ],
)
def test_what_is_no_release_says_why(tmp_path: Path, name: str, error: type[Exception], reason: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    write_json(tmp_path / "kvrelease.json", {})
    (write_release(tmp_path / "no-config") / "config.json").unlink()
    with pytest.raises(error, match=reason):
        load_release(tmp_path / name)
