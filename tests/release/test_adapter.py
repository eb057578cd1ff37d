"""A LoRA adapter's directory: what is read, what is refused, and what its digest promises."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvrelease.errors import DamagedFile, InputError, NotFound, UnsupportedRelease
from kvrelease.release.adapter import is_adapter, read_adapter
from kvrelease.release.address import open_source
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import open_directory
from kvrelease.release.release_file import FileRole
from tests.release import naive
from tests.release.adapters import RECORDED, AdapterTensors, adapter_json, adapter_tensors, source_of, write_adapter
from tests.release.builders import hub_cache, write_json, write_release


def content(directory: Path) -> str:
    return read_adapter(source_of(directory)).content


def test_an_adapter_is_read_whole(tmp_path: Path) -> None:
    adapter = read_adapter(source_of(write_adapter(tmp_path / "support-v3")))
    assert (adapter.name, adapter.version, adapter.source) == ("support-v3", None, str(tmp_path / "support-v3"))
    assert len(adapter.payloads) == len(adapter.tensors) == 12
    assert adapter.warnings == ()
    assert [(file.path, file.role) for file in adapter.files] == [
        ("adapter_model.safetensors", FileRole.WEIGHTS),
        ("adapter_config.json", FileRole.CONFIG),
    ]
    alone = adapter.on(None, name="x", has_kv_name=True)
    assert (alone.name, alone.kv_name, alone.digest) == ("x", None, adapter.content)
    assert alone.uncounted["base_model_name_or_path"] == "acme/support"


@pytest.mark.parametrize("name", ["plain", "patterns", "dora", "tokens", "embeddings"])
def test_what_peft_really_writes_needs_no_warning_but_the_one_about_its_base(name: str) -> None:
    adapter = read_adapter(open_directory(RECORDED / name))
    assert len(adapter.warnings) == 1
    assert "records no commit of it" in adapter.warnings[0]


def test_a_second_implementation_agrees() -> None:
    for directory in RECORDED.iterdir():
        adapter = read_adapter(open_directory(directory))
        assert adapter.content == naive.adapter_digest(directory, canonical=adapter.config.entries)


def test_place_metadata_and_key_order_change_no_digest(tmp_path: Path) -> None:
    expected = content(write_adapter(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "deep" / "other")
    reordered = dict(reversed(adapter_json(target_modules=["q_proj", "v_proj"]).items()))
    annotated = write_adapter(tmp_path / "two", config=reordered, metadata={"format": "pt", "step": "9"})
    assert content(tmp_path / "deep" / "other") == content(annotated) == expected
    assert content(hub_cache(tmp_path / "one", tmp_path)) == expected


def test_any_flipped_bit_of_the_weights_changes_the_digest_or_is_refused(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path / "adapter")
    expected = content(directory)
    path = directory / "adapter_model.safetensors"
    original = path.read_bytes()
    generator = random.Random(5)
    for position in generator.sample(range(len(original)), k=80):
        changed = bytearray(original)
        changed[position] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        try:
            assert content(directory) != expected, position
        except InputError:
            continue


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_alpha": 64},
        {"use_rslora": True},
        {"target_modules": ["q_proj"]},
        {"alpha_pattern": {"q_proj": 64}},
        {"rank_pattern": {"q_proj": 2}},
    ],
)
def test_equal_weights_at_another_strength_are_another_adapter(tmp_path: Path, changes: dict[str, object]) -> None:
    """https://github.com/sgl-project/sglang/pull/34359, https://github.com/adapter-hub/adapters/pull/770,
    https://github.com/verl-project/verl/pull/1821
    """
    before = content(write_adapter(tmp_path / "one"))
    assert content(write_adapter(tmp_path / "two", config=adapter_json(**changes))) != before


def test_an_adapter_is_told_from_a_model_that_has_one_beside_it(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    assert is_adapter(source_of(adapter))
    assert is_adapter(open_source(adapter / "adapter_model.safetensors"))
    model = write_release(tmp_path / "model")
    assert not is_adapter(source_of(model))
    write_adapter(model)
    assert not is_adapter(source_of(model))
    with pytest.raises(UnsupportedRelease, match=r"a model and an adapter .* lie in one directory") as caught:
        load_release(model)
    assert "--adapter NAME=THAT_DIRECTORY" in (caught.value.hint or "")
    assert load_release(model / "model.safetensors").release.kv_name is not None
    (tmp_path / "empty").mkdir()
    assert not is_adapter(source_of(tmp_path / "empty"))


def test_other_weight_files_beside_it_are_named(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path / "adapter")
    (directory / "adapter_model.bin").write_bytes(b"x")
    adapter = read_adapter(source_of(directory))
    assert adapter.warnings == ("weight files that are not part of the adapter: 'adapter_model.bin'",)
    assert adapter.files[-1].role is FileRole.EXTRA


def test_factors_that_were_never_trained_are_a_warning(tmp_path: Path) -> None:
    tensors = adapter_tensors()
    for name in tensors:
        if ".lora_B." in name:
            tensors[name] = np.zeros_like(tensors[name])
    (warning,) = read_adapter(source_of(write_adapter(tmp_path / "a", tensors))).warnings
    assert "6 of the lora_B factors are all zero" in warning


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_a_pickle_is_refused_and_what_to_do_is_said(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "adapter_config.json", adapter_json())
    (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(UnsupportedRelease, match=f"the adapter is a pickle \\('{name}'\\)") as caught:
        read_adapter(source_of(tmp_path))
    assert "save_pretrained" in (caught.value.hint or "")


def test_weights_without_their_configuration_are_refused(tmp_path: Path) -> None:
    """Without it nobody knows how strong they are: https://github.com/sgl-project/sglang/pull/34359"""
    (write_adapter(tmp_path / "a") / "adapter_config.json").unlink()
    with pytest.raises(NotFound, match=r"no adapter_config\.json: how strong they are"):
        read_adapter(source_of(tmp_path / "a"))


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter_config.json", adapter_json())
    (tmp_path / "adapters.safetensors").write_bytes(b"")  # as MLX names them
    with pytest.raises(NotFound, match=r"no adapter_model\.safetensors among its 2 files"):
        read_adapter(source_of(tmp_path))


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "it holds no tensors"),
        (
            {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros(0, np.float32)},
            "1 of its tensors are empty: 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'",
        ),
    ],
)
def test_an_adapter_that_was_saved_empty_is_refused(tmp_path: Path, tensors: AdapterTensors, reason: str) -> None:
    """https://github.com/huggingface/peft/issues/2892 (https://github.com/huggingface/trl/issues/4416),
    https://github.com/huggingface/peft/issues/2450: a valid file of
    40 bytes, or tensors of shape [0], after training under DeepSpeed ZeRO-3.
    """
    directory = write_adapter(tmp_path / "a", adapter_tensors() | tensors if tensors else {})
    with pytest.raises(DamagedFile) as caught:
        read_adapter(source_of(directory))
    assert reason in caught.value.message
    assert "gathered" in (caught.value.hint or "")


def test_a_broken_configuration_names_its_file(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path / "a")
    (directory / "adapter_config.json").write_text(json.dumps({"r": 0}))
    with pytest.raises(DamagedFile, match=r"a/adapter_config\.json: the rank 'r' is 0"):
        read_adapter(source_of(directory))
