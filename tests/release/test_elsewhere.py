"""Weights that lie elsewhere, and files that code may open: unread, so no kv name, and never a word of "same"."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.artifacts import JsonObject, Verdict
from kvrelease.errors import InputError
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.elsewhere import files_unread, weights_elsewhere
from kvrelease.release.file_changes import unread_of
from kvrelease.release.fingerprint import Fingerprint, require_kv_name
from kvrelease.release.loading import load_release
from kvrelease.release.source import MAX_FILES_BELOW
from tests.release.builders import config_json, write_json, write_release

OWN_CODE = {"AutoModelForCausalLM": "modeling_x.X"}


def require_unread(directory: Path, what: str) -> Fingerprint:
    """The fingerprint of a release that has no kv name, and whose KV is unknown even to itself."""
    found = load_release(directory)
    assert found.release.kv_name is None
    assert any(what in sentence for sentence in found.unread), found.unread
    with pytest.raises(InputError, match="naming the KV") as caught:
        require_kv_name(found)
    assert caught.value.hint is not None
    diff = diff_fingerprints(found, found)
    assert diff.kv.status is KvStatus.UNKNOWN
    for part in ("kv", "any"):
        assert diff_verdict(diff, part=part) is Verdict.INCONCLUSIVE
    return found


@pytest.mark.parametrize(
    "keys",
    [
        {"text_model_id": "meta-llama/Llama-3.3-70B-Instruct", "audio_model_id": "openai/whisper-large-v3-turbo"},
        {"mm_vision_tower": "openai/clip-vit-large-patch14-336"},
        {"mm_vision_tower": "clip"},
        {"vision_tower": "./tower"},
        {"speech": {"encoder_path": "whisper-large-v3"}},
        {"parts": [{"from": "acme/tower"}]},
        {"parts": ["s3://acme/tower"]},
        {"anything": "/models/tower"},
        {"encoder_path": "/models/my tower"},
    ],
)
def test_weights_that_a_configuration_takes_from_elsewhere_are_unread(tmp_path: Path, keys: JsonObject) -> None:
    config = config_json("ultravox")
    model = write_release(tmp_path / "model", config=config)
    assert load_release(model).release.kv_name is not None
    write_json(model / "config.json", config | keys)
    found = require_unread(model, "config.json names weights that lie elsewhere")
    assert diff_verdict(diff_fingerprints(found, found), part="weights") is Verdict.INCONCLUSIVE


def test_a_fingerprint_from_before_such_weights_were_seen_proves_nothing(tmp_path: Path) -> None:
    config = config_json("llava", mm_vision_tower="openai/clip-vit-large-patch14-336")
    found = load_release(write_release(tmp_path / "model", config=config))
    older = msgspec.structs.replace(found, unread=())
    assert unread_of(older) == found.unread
    assert diff_fingerprints(older, older).kv.status is KvStatus.UNKNOWN


def test_what_names_no_weights_is_none() -> None:
    stated: JsonObject = {
        "_name_or_path": "acme/base",
        "text_config": {"_name_or_path": "acme/base", "model_type": "llama", "hidden_act": "gelu"},
        "_model_name_or_path": "acme/base",
        "decoder_name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
        "tokenizer_name": "acme/base",
        "mime": "image/png",
        "vision_tower": None,
        "text_model_id": "",
        "auto_map": {"AutoModel": "modeling.X"},
        "quantization_config": {"dataset": "acme/wiki", "modules": ["a/b"]},
        "architectures": ["XForCausalLM"],
        "notes.json": {"homepage": "https://acme.example"},
    }
    assert weights_elsewhere(stated) == ()


def test_a_processor_may_name_a_model_too() -> None:
    (sentence,) = weights_elsewhere({"processor_config.json": {"audio_tokenizer_name_or_path": "acme/codec"}})
    assert sentence.startswith("processor_config.json names weights that lie elsewhere, audio_tokenizer_name_or_path")


def test_weights_in_a_sub_folder_are_unread_where_no_rule_knows_the_model(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model", config=config_json("kimi_audio"))
    (model / "original").mkdir()
    save_file({"x": np.ones(2, np.float32)}, model / "original" / "consolidated.safetensors")
    (model / "assets").mkdir()
    (model / "assets" / "a.wav").write_bytes(b"")
    assert load_release(model).unread == ()
    (tmp_path / "tower").mkdir()
    save_file({"x": np.ones(2, np.float32)}, tmp_path / "tower" / "model.safetensors")
    (model / "whisper-large-v3").symlink_to(tmp_path / "tower")
    (model / "loop").symlink_to(model)
    require_unread(model, "an engine may load were not read: 'whisper-large-v3/model.safetensors'")


def test_loose_weights_at_the_top_are_unread_where_no_rule_knows_the_model(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model", config=config_json("llava"), shards=2)
    for name in ("pytorch_model.bin", "model.gguf", "optimizer.pt", "training_args.bin", "notes.txt"):
        (model / name).write_bytes(b"1")
    assert load_release(model).unread == ()
    for name in ("mm_projector.bin", "joint_head.safetensors", "sparse_linear.pt"):
        if name.endswith(".safetensors"):
            save_file({"x": np.ones(2, np.float32)}, model / name)
        else:
            (model / name).write_bytes(b"1")
        require_unread(model, name)
        (model / name).unlink()


def test_shards_in_a_sub_folder_that_the_index_names_are_read(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model", config=config_json("acme"), shards=2)
    index = json.loads((model / "model.safetensors.index.json").read_text())
    (model / "parts").mkdir()
    for shard in set(index["weight_map"].values()):
        (model / shard).rename(model / "parts" / shard)
    weight_map = {name: f"parts/{shard}" for name, shard in index["weight_map"].items()}
    write_json(model / "model.safetensors.index.json", {"weight_map": weight_map})
    assert load_release(model).unread == ()


def test_a_model_of_text_keeps_its_name_beside_other_folders(tmp_path: Path) -> None:
    """Its rule knows what is loaded for its architecture."""
    model = write_release(tmp_path / "model")
    name = load_release(model).release.kv_name
    for folder in ("original", "onnx", "tower"):
        (model / folder).mkdir()
        save_file({"x": np.ones(2, np.float32)}, model / folder / "model.safetensors")
    write_json(model / "config.json", config_json(text_model_id="acme/base", _name_or_path="acme/x"))
    assert load_release(model).release.kv_name is not None
    write_json(model / "config.json", config_json())
    assert load_release(model).release.kv_name == name


# --- code that a release brings ---


def test_code_that_is_named_and_absent_is_unread(tmp_path: Path) -> None:
    config = config_json(auto_map=OWN_CODE | {"AutoTokenizer": ["tokenization_x.X", None]})
    model = write_release(tmp_path / "model", config=config)
    found = require_unread(model, "config.json names code that is not beside it, 'modeling_x.py' (auto_map)")
    assert "code" in diff_fingerprints(found, found).unknown
    (model / "modeling_x.py").write_text("x = 1")
    assert load_release(model).release.kv_name is not None


@pytest.mark.parametrize(
    "name", ["w.npz", "table.txt", "lib/m.py", "lib/data.json", "kernel.cu", "assets/voice.pt", "bias.dat"]
)
def test_files_that_code_may_open_are_unread(tmp_path: Path, name: str) -> None:
    model = write_release(tmp_path / "model", config=config_json(auto_map=OWN_CODE))
    (model / "modeling_x.py").write_text("x = 1")
    for harmless in ("README.md", "LICENSE.txt", ".gitattributes", "figures/a.dat", "requirements.txt", "merges.txt"):
        (model / harmless).parent.mkdir(exist_ok=True)
        (model / harmless).write_text("")
    write_json(model / "generation_config.json", {})
    assert load_release(model).unread == ()
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_bytes(b"1")
    require_unread(model, f"the code that the release brings may load were not read: '{name}'")


def test_too_many_files_are_not_looked_through() -> None:
    below = [f"a/{number}" for number in range(MAX_FILES_BELOW + 1)]
    (sentence,) = files_unread([], below, chosen=[], has_code=False)
    assert f"more than {MAX_FILES_BELOW} files" in sentence
