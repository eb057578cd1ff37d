"""Which GGUF files belong to a model: parts, projectors, and what lies beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvrelease.errors import DamagedFile, NotFound, UnsupportedRelease
from kvrelease.release.address import open_source
from kvrelease.release.gguf_model import GgufModel, holds_gguf, read_gguf_model
from kvrelease.release.loading import load_release
from kvrelease.release.release_file import FileRole
from tests.release.builders import hub_cache, write_json, write_release
from tests.release.gguf_writer import (
    Metadata,
    f32_tensor,
    gguf_bytes,
    i32,
    small_model,
    small_tensors,
    text,
    u16,
    write_gguf,
    write_split,
)


def model_of(path: Path) -> GgufModel:
    return read_gguf_model(open_source(path))


def file_names(model: GgufModel) -> list[str]:
    return [weights.file.name for weights in model.checkpoint.files]


def projector() -> Metadata:
    return {"general.architecture": text("clip"), "general.type": text("mmproj"), "clip.vision.image_size": i32(224)}


def write_projector(directory: Path, name: str = "mmproj-f16.gguf") -> Path:
    return write_gguf(directory / name, projector(), [f32_tensor("v.patch_embd.weight", (4, 4))])


def test_a_directory_of_one_model_is_the_model(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m" / "support-Q4.gguf")
    by_file, by_directory = load_release(file), load_release(file.parent)
    assert by_file.digests == by_directory.digests
    assert (by_file.release.name, by_directory.release.name) == ("support-Q4", "m")
    assert [(row.path, row.role) for row in by_directory.files] == [("support-Q4.gguf", FileRole.WEIGHTS)]


def test_a_directory_with_safetensors_is_read_as_such(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "m")
    expected = load_release(directory).digests
    write_gguf(directory / "m.gguf")
    assert not holds_gguf(open_source(directory))
    found = load_release(directory)
    assert found.digests == expected
    assert found.warnings == ("weight files that are not part of the release: 'm.gguf'",)


def test_several_models_in_a_directory_are_refused_and_one_can_be_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-Q4.gguf")
    write_gguf(tmp_path / "m-Q8.gguf")
    write_split(tmp_path, stem="m-Q8")
    several = r"holds 3 GGUF models: 'm-Q4\.gguf', 'm-Q8-00001-of-00003\.gguf', 'm-Q8\.gguf'"
    with pytest.raises(UnsupportedRelease, match=several) as caught:
        model_of(tmp_path)
    assert caught.value.hint == "give the file of one of them (of a split model, any part)"
    assert file_names(model_of(tmp_path / "m-Q4.gguf")) == ["m-Q4.gguf"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_stands_for_the_whole_model(tmp_path: Path, number: int) -> None:
    """Elsewhere any but the first fails: https://github.com/Michael-A-Kuykendall/shimmy/issues/170,
    https://github.com/vllm-project/vllm-metal/pull/720
    """
    whole = load_release(write_gguf(tmp_path / "whole" / "support.gguf"))
    paths = write_split(tmp_path / "split")
    found = load_release(paths[number - 1])
    assert found.digests == whole.digests
    assert found.tensor_digests == whole.tensor_digests
    assert found.config == whole.config
    assert found.release.name == "support"
    assert load_release(tmp_path / "split").digests == whole.digests


def test_a_split_model_in_a_hub_cache_is_found_through_its_links(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "split")
    snapshot = hub_cache(tmp_path / "split", tmp_path)
    assert load_release(snapshot / paths[1].name).digests == load_release(paths[0]).digests


@pytest.mark.parametrize("asked", ["support-00001-of-00003.gguf", "support-00003-of-00003.gguf", "."])
def test_absent_parts_are_named(tmp_path: Path, asked: str) -> None:
    """One part of four is fetched, and fails when it is loaded: https://github.com/eullm/eullm/pull/394"""
    write_split(tmp_path)[1].unlink()
    with pytest.raises(NotFound, match=r"1 of the 3 parts of the model are absent: 'support-00002-of-00003\.gguf'"):
        model_of(tmp_path / asked)


def test_a_part_under_another_name_is_refused_with_the_name_it_needs(tmp_path: Path) -> None:
    part = write_split(tmp_path)[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(DamagedFile, match="its metadata say part 2 of 3, its name does not") as caught:
        model_of(part)
    assert caught.value.hint is not None
    assert "renamed-00002-of-00003.gguf" in caught.value.hint


def test_parts_of_two_versions_are_refused(tmp_path: Path) -> None:
    """Merged without a word: https://github.com/anthony-chaudhary/fak/issues/13110"""
    paths = write_split(tmp_path)
    shutil.copy(paths[1], paths[2])
    with pytest.raises(
        DamagedFile, match=r"00003-of-00003\.gguf: its name says part 3 of 3, its metadata say part 2 of 3"
    ):
        model_of(paths[0])
    write_gguf(paths[2], {"split.no": u16(2), "split.count": u16(4)}, [f32_tensor("output_norm.weight", (4,))])
    with pytest.raises(DamagedFile, match="its metadata say part 3 of 4"):
        model_of(paths[0])
    two = {"split.no": u16(2), "split.count": u16(3)}
    write_gguf(paths[2], two, [f32_tensor("output_norm.weight", (4,)), f32_tensor("more", (4,))])
    with pytest.raises(DamagedFile, match="it promises 3 tensors in 3 parts, which have 4"):
        model_of(paths[0])
    write_gguf(paths[2], two, [small_tensors()[0]])
    with pytest.raises(DamagedFile, match=r"'token_embd.weight': it is in .*00001-of-00003.gguf and again in .*00003"):
        model_of(paths[0])


def test_metadata_of_later_parts_are_not_read_and_told(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    expected = load_release(paths[0]).digests
    later = {"split.no": u16(1), "split.count": u16(3), "llama.block_count": i32(9)}
    write_gguf(paths[1], later, [small_tensors()[1]])
    found = load_release(paths[0])
    assert found.digests == expected
    assert any(
        "later parts have metadata of their own, which engines do not read: 'support-00002-of-00003.gguf'" in warning
        for warning in found.warnings
    )


def test_a_projector_in_the_directory_counts_and_beside_a_named_file_is_told(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "support.gguf")
    alone = load_release(tmp_path)
    write_projector(tmp_path)
    both, named = load_release(tmp_path), load_release(file)
    assert both.digests.kv != alone.digests.kv
    assert "v.patch_embd.weight" in both.tensor_digests
    assert both.config is not None
    assert both.config["mmproj"] == {
        "clip.vision.image_size": 224,
        "general.architecture": "clip",
        "general.type": "mmproj",
    }
    assert both.digests.tokenizer == alone.digests.tokenizer
    assert named.digests == alone.digests
    assert any("multimodal projectors lie beside it: 'mmproj-f16.gguf'" in warning for warning in named.warnings)
    write_projector(tmp_path, "mmproj-f32.gguf")
    with pytest.raises(UnsupportedRelease, match="several multimodal projectors"):
        load_release(tmp_path)


def test_what_is_no_model_is_refused_by_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedRelease, match="multimodal projector without its model"):
        model_of(write_projector(tmp_path, "mm.gguf"))
    adapter = write_gguf(tmp_path / "lora.gguf", {"general.type": text("adapter")}, small_tensors())
    with pytest.raises(UnsupportedRelease, match="LoRA adapter without its base model"):
        model_of(adapter)
    other = write_gguf(tmp_path / "i.gguf", {"general.type": text("imatrix")}, small_tensors())
    with pytest.raises(UnsupportedRelease, match=r"general\.type is 'imatrix', so it is no model"):
        model_of(other)
    (tmp_path / "vocab.gguf").write_bytes(gguf_bytes(small_model()))
    with pytest.raises(UnsupportedRelease, match="it has no tensors; a vocabulary alone is no release"):
        model_of(tmp_path / "vocab.gguf")


def test_a_directory_of_projectors_only_is_no_model(tmp_path: Path) -> None:
    write_projector(tmp_path)
    with pytest.raises(UnsupportedRelease, match=r"it holds no model, only 'mmproj-f16\.gguf'"):
        model_of(tmp_path)


def test_a_projector_by_name_only_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "support.gguf")
    write_gguf(tmp_path / "support-mmproj.gguf")
    with pytest.raises(UnsupportedRelease, match="its name says multimodal projector, its metadata do not"):
        model_of(tmp_path)


def test_settings_and_weights_that_are_not_read_are_told(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "support.gguf")
    expected = load_release(file).digests
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    found = load_release(tmp_path)
    assert found.digests == expected
    assert [warning for warning in found.warnings if "pytorch_model.bin" in warning] == [
        "weight files that are not part of the release: 'pytorch_model.bin'"
    ]
    assert any("brings its own configuration and tokenizer" in warning for warning in found.warnings)
    assert ("pytorch_model.bin", FileRole.EXTRA) in [(row.path, row.role) for row in found.files]


def test_a_model_without_an_architecture_is_told(tmp_path: Path) -> None:
    found = load_release(write_gguf(tmp_path / "support.gguf", small_model(general__architecture=None)))
    assert any("lack general.architecture" in warning for warning in found.warnings)
