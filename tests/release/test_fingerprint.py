"""What a fingerprint promises, stated on real files."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvrelease import artifacts
from kvrelease.errors import DamagedFile, InputError, NotFound, UnsupportedRelease
from kvrelease.progress import ProgressEvent
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.release_file import FileRole, ReleaseFile
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.sampling import detection_bound
from tests.release import naive
from tests.release.builders import (
    config_json,
    hub_cache,
    local_file,
    tensors,
    write_json,
    write_release,
    write_text_side,
)


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
    """Metadata: https://github.com/safetensors/safetensors/issues/584, https://github.com/ahrefs/ocannl/issues/1007.
    Paths: https://github.com/ai-dynamo/dynamo/issues/12796, https://github.com/ai-dynamo/dynamo/pull/7368,
    https://github.com/ai-dynamo/dynamo/pull/14610.
    """
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


def test_rotary_frequencies_that_old_checkpoints_store_change_no_kv(model: Path) -> None:
    """Engines compute them, and load none that is stored: vllm 0.32.0, models/utils.py; SGLang, models/llama.py;
    transformers 5.24.0, modeling_utils.py (`_adjust_missing_and_unexpected_keys`).
    """
    before = load_release(model)
    stored = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32) for layer in range(3)}
    write_release(model, tensors() | stored)
    after = load_release(model)
    assert (after.digests.kv, after.layers) == (before.digests.kv, before.layers)
    assert after.digests.weights != before.digests.weights


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
    """https://github.com/ggml-org/llama.cpp/pull/17286, https://github.com/sgl-project/sglang/pull/35107"""
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


def test_stale_copy_in_a_shard_that_the_index_reuses_is_refused(tmp_path: Path) -> None:
    """Engines load whole shards, so the order would decide: https://github.com/vllm-project/vllm/pull/54230"""
    directory = write_release(tmp_path / "model", shards=2)
    shard = directory / "model-00002-of-00002.safetensors"
    stored = load_file(shard)
    assert "lm_head.weight" not in stored
    stored["lm_head.weight"] = tensors(5)["lm_head.weight"]
    save_file(stored, shard)
    with pytest.raises(DamagedFile, match=r"tensor 'lm_head.weight': .*00001-of.* and .*00002-of.* hold different"):
        load_release(directory)


def test_same_size_and_time_stamps_hide_no_change(model: Path) -> None:
    """As after `rsync -a` or `cp -p`: https://github.com/osaurus-ai/osaurus/pull/1989,
    https://github.com/magicnight/Mac-MLX/pull/99
    """
    before = load_release(model)
    path = model / "model.safetensors"
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=times)
    assert load_release(model).digests.weights != before.digests.weights


def test_all_zero_matrix_and_disagreement_are_warnings(tmp_path: Path) -> None:
    weights = tensors()
    weights["model.layers.1.mlp.up_proj.weight"][:] = 0
    weights["model.norm.weight"] = np.zeros(9, np.float32)  # a vector of zeros is no matrix
    found = load_release(write_release(tmp_path / "model", weights)).warnings
    assert any("1 weight matrices are all zero: 'model.layers.1.mlp.up_proj.weight'" in text for text in found)
    assert any("1 tensors have another shape" in text for text in found)


def test_unknown_architecture_counts_everything(tmp_path: Path) -> None:
    weights = tensors()
    config = config_json("mamba")
    before = load_release(write_release(tmp_path / "model", weights, config=config))
    assert before.digests.kv.startswith("kvfp1-full/all.1:")
    assert before.layers == ()
    assert "no dependency rule is known for model type 'mamba'" in before.warnings[0]
    weights["model.norm.weight"] += 1
    after = load_release(write_release(tmp_path / "model", weights, config=config))
    assert after.digests.kv != before.digests.kv


def test_without_a_rule_the_configuration_stays_as_it_is_stated(tmp_path: Path) -> None:
    """Else a table for a further model type would change what `all.1` gives for it."""
    code = {"AutoModelForCausalLM": "modeling.Model"}
    stated = {"model_type": "llama", "num_hidden_layers": 3, "rope_theta": 1e6, "torch_dtype": "bfloat16"}
    found = load_release(write_release(tmp_path / "model", config={**stated, "auto_map": code}))
    assert found.config == {
        "auto_map": code,
        "dtype": "bfloat16",
        "model_type": "llama",
        "num_hidden_layers": 3,
        "rope_theta": 1e6,
    }
    assert found.digests.config is not None
    assert found.digests.config.startswith("kvfp1-config/all.1:")


def test_generation_defaults_are_those_that_are_stated(tmp_path: Path) -> None:
    """What an engine assumes for absent keys is no part of the file, and differs between model types."""
    absent = load_release(write_release(tmp_path / "absent", config={"model_type": "llama", "num_hidden_layers": 3}))
    stated = {"model_type": "llama", "num_hidden_layers": 3, "bos_token_id": 1}
    assert load_release(write_release(tmp_path / "stated", config=stated)).digests.generation != (
        absent.digests.generation
    )


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


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("config.json", "config.json is a part of a release: give its directory, "),
        ("model.safetensors.index.json", "model.safetensors.index.json is a part of a release: give its directory, "),
        ("preprocessor_config.json", "preprocessor_config.json is a part of a release: give its directory, "),
        ("kvrelease.json", "if kvrelease wrote it, it was cut off or edited: write the kvrelease/fingerprint artifact"),
        ("results.json", "if kvrelease wrote it, it was cut off or edited: write the kvrelease/fingerprint artifact"),
    ],
)
def test_json_that_is_no_fingerprint_says_what_to_give(tmp_path: Path, name: str, step: str) -> None:
    for text in ("{}", '{"kind": "kvrelease/finger', ""):
        (tmp_path / name).write_text(text)
        with pytest.raises(DamagedFile) as caught:
            load_release(tmp_path / name)
        assert caught.value.hint is not None
        assert caught.value.hint.startswith(step)
        assert ("give its directory" in step) == caught.value.hint.endswith(str(tmp_path))


def test_a_fast_fingerprint_has_the_fast_digest_of_the_full_one_and_nothing_else_of_it(model: Path) -> None:
    full, fast = load_release(model), load_release(model, mode=Mode.FAST)
    assert full.fast == fast.fast == fast.digests.weights == naive.fast_digest(model)
    assert fast.mode is Mode.FAST
    assert fast.release.kv_name is None
    assert fast.digests.release.startswith("kvfp1-fast:")
    assert fast.digests.kv.startswith("kvfp1-fast/llama.1:")
    assert {layer.digest.partition(":")[0] for layer in fast.layers} == {"kvfp1-fast/llama.1"}
    for name in ("release", "weights", "kv"):
        assert getattr(full.digests, name) != getattr(fast.digests, name)
    for name in ("config", "tokenizer", "template", "generation"):
        assert getattr(full.digests, name) == getattr(fast.digests, name)
    assert (fast.tensors, fast.bytes, fast.files, fast.rule) == (full.tensors, full.bytes, full.files, full.rule)
    assert fast.bound == detection_bound(
        (tensor.shape, tensor.size_bytes)
        for tensor in read_safetensors(local_file(model / "model.safetensors")).tensors
    )
    assert full.bound is None


def test_shards_names_of_files_and_metadata_leave_the_fast_digest_alone(model: Path, tmp_path: Path) -> None:
    sharded = write_release(tmp_path / "sharded", shards=4)
    annotated = write_release(tmp_path / "annotated", metadata={"step": "9"})
    fast = {load_release(path, mode=Mode.FAST).fast for path in (model, sharded, annotated)}
    assert len(fast) == 1


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_stored_copy_of_tied_embeddings_is_in_no_fast_digest(tmp_path: Path, is_copy: bool) -> None:
    """Large enough to be sampled: the copy is sampled where the embeddings are."""
    config = config_json(tie_word_embeddings=True, vocab_size=4000)
    weights = tensors(is_tied=True)
    weights["model.embed_tokens.weight"] = np.random.default_rng(1).standard_normal((4000, 8)).astype(np.float32)
    without = write_release(tmp_path / "without", weights, config=config)
    copy = weights["model.embed_tokens.weight"] + (0 if is_copy else 1)
    stored = write_release(tmp_path / "stored", {**weights, "lm_head.weight": copy}, config=config)
    full, fast = (load_release(stored, mode=mode) for mode in Mode)
    found = {load_release(without, mode=mode).fast for mode in Mode}
    assert found | {full.fast, fast.fast} == found | {naive.fast_digest(stored, tied=True)}
    assert len(found | {fast.fast}) == (1 if is_copy else 2)
    notes = [[text for text in one.warnings if text.startswith("lm_head.weight")] for one in (full, fast)]
    assert notes == (
        [
            ["lm_head.weight repeats the embeddings it is tied to, and is not counted"],
            ["lm_head.weight shows in samples no difference from the embeddings it is tied to, and is not counted"],
        ]
        if is_copy
        else [[], []]
    )


def test_a_tensor_stored_twice_is_sampled_once(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    expected = load_release(model).fast
    save_file({"model.norm.weight": tensors()["model.norm.weight"]}, model / "other.safetensors")
    fast = load_release(model, mode=Mode.FAST)
    assert load_release(model).fast == fast.fast == expected
    assert "1 tensors are stored twice and show no difference in samples: 'model.norm.weight'" in fast.warnings
    save_file({"model.norm.weight": tensors()["model.norm.weight"] + 1}, model / "other.safetensors")
    with pytest.raises(DamagedFile, match=r"model\.norm\.weight.* different versions"):
        load_release(model, mode=Mode.FAST)


def test_a_fingerprint_saved_before_modes_were_told_apart_is_read(model: Path, tmp_path: Path) -> None:
    saved = json.loads(artifacts.to_json(load_release(model)))
    del saved["bound"], saved["remembered_bytes"]
    found = load_release(write_json(tmp_path / "old.json", {**saved, "fast": None}))
    assert (found.mode, found.fast, found.bound, found.remembered_bytes) == (Mode.FULL, None, None, 0)
