from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from kvrelease.errors import DamagedFile, NotFound, UnsupportedRelease
from kvrelease.release.address import open_source
from kvrelease.release.checkpoint import read_checkpoint
from kvrelease.release.content import read_content
from kvrelease.release.loading import load_release
from kvrelease.release.release_file import FileRole
from tests.release.builders import tensors, write_json, write_release

INDEX = "model.safetensors.index.json"
FIRST_SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_release(tmp_path / "model", shards=3)


def edit_index(directory: Path, **entries: str | None) -> None:
    index = json.loads((directory / INDEX).read_text())
    for name, shard in entries.items():
        if shard is None:
            del index["weight_map"][name.replace("__", ".")]
        else:
            index["weight_map"][name.replace("__", ".")] = shard
    write_json(directory / INDEX, index)


def chosen(directory: Path) -> list[str]:
    return [file.file.name for file in read_checkpoint(open_source(directory)).files]


def test_index_decides_what_is_loaded(sharded: Path) -> None:
    assert chosen(sharded) == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert read_checkpoint(open_source(sharded)).warnings == ()


def test_missing_shard_is_named_with_a_tensor_before_anything_is_read(sharded: Path) -> None:
    """https://github.com/sgl-project/sglang/pull/32279, https://github.com/Neph0s/CoSER/issues/3,
    https://github.com/GeeeekExplorer/nano-vllm/pull/272, https://github.com/Blaizzy/mlx-vlm/pull/1827
    """
    (sharded / FIRST_SHARD).unlink()
    (sharded / "model-00002-of-00003.safetensors").write_bytes(b"")  # would be another error, if it were read first
    with pytest.raises(NotFound, match=f"1 of the 3 shards .* '{FIRST_SHARD}'; tensor 'lm_head.weight'"):
        read_checkpoint(open_source(sharded))


def test_tensor_of_the_index_in_no_shard_is_an_error(sharded: Path) -> None:
    edit_index(sharded, model__extra__weight=FIRST_SHARD)
    with pytest.raises(DamagedFile, match=f"'model.extra.weight'; the first should be in '{FIRST_SHARD}'"):
        read_checkpoint(open_source(sharded))


def test_tensor_that_the_index_forgot_is_loaded_with_a_warning(sharded: Path) -> None:
    """https://github.com/ml-explore/mlx-swift-lm/pull/562"""
    edit_index(sharded, model__norm__weight=None)
    (warning,) = read_checkpoint(open_source(sharded)).warnings
    assert "1 tensors are in the shards but not in" in warning
    assert "'model.norm.weight'" in warning


def test_tensor_in_another_shard_than_the_index_says_is_a_warning(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    other = next(shard for shard in index["weight_map"].values() if shard != index["weight_map"]["model.norm.weight"])
    edit_index(sharded, model__norm__weight=other)
    (warning,) = read_checkpoint(open_source(sharded)).warnings
    assert "in another shard" in warning


@pytest.mark.parametrize(
    "escape", ["../outside.safetensors", "/etc/passwd", "a/../../b.safetensors", "a\\..\\b", "a\0b"]
)
def test_index_that_points_outside_is_refused(sharded: Path, escape: str) -> None:
    """https://github.com/sigstore/model-transparency/pull/667,
    https://github.com/sigstore/model-transparency/pull/647
    """
    (sharded.parent / "outside.safetensors").write_bytes((sharded / FIRST_SHARD).read_bytes())
    edit_index(sharded, model__norm__weight=escape)
    with pytest.raises(DamagedFile, match=r"'model.norm.weight' points outside the directory"):
        read_checkpoint(open_source(sharded))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": 1}}', "tensor 'a' is in no file"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "the key 'a' occurs twice"),
        ("[]", "expected a JSON object"),
        ("<html>", "not valid JSON"),
        ("version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 80 + "1" + "}" * 80, "nested deeper"),
    ],
)
def test_damaged_index_is_refused(sharded: Path, text: str, reason: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(DamagedFile, match=reason):
        read_checkpoint(open_source(sharded))


def test_extra_weight_files_are_a_warning_and_not_loaded(sharded: Path) -> None:
    """https://github.com/Blaizzy/mlx-vlm/pull/1464, https://github.com/ml-explore/mlx-swift-lm/pull/408"""
    save_file(tensors(9), sharded / "other.safetensors")
    (sharded / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    (sharded / "optimizer.pt").write_bytes(b"")
    checkpoint = read_checkpoint(open_source(sharded))
    assert checkpoint.warnings == (
        "weight files that are not part of the release: 'other.safetensors', 'pytorch_model.bin'",
    )
    assert [file.path for file in checkpoint.other_files if file.role is FileRole.EXTRA] == [
        "other.safetensors",
        "pytorch_model.bin",
    ]


def test_an_extra_file_whose_link_leads_nowhere_is_named_and_has_no_row(sharded: Path) -> None:
    """It is no part of the release, so it stands in nobody's way."""
    (sharded / "other.safetensors").symlink_to("../../blobs/0123")
    checkpoint = read_checkpoint(open_source(sharded))
    assert checkpoint.warnings == ("weight files that are not part of the release: 'other.safetensors'",)
    assert [file.path for file in checkpoint.other_files] == [INDEX]


def test_both_of_two_layouts_count_because_engines_load_one_or_the_other(tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm/issues/40765"""
    directory = write_release(tmp_path / "model", shards=2)
    plain = load_release(directory)
    layout = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    names = [plain.release.kv_name]
    for seed in range(2):
        own = {f"layers.0.attention.w{part}.weight": tensors(seed)["lm_head.weight"] for part in "kv"}
        save_file(own, directory / "consolidated.safetensors")
        assert chosen(directory) == [*layout, "consolidated.safetensors"]
        found = load_release(directory)
        assert any("two layouts of the weights lie here" in warning for warning in found.warnings)
        assert found.tensors == plain.tensors + 2
        names.append(found.release.kv_name)
    weights = tensors()
    weights["model.layers.0.self_attn.k_proj.weight"] += 1
    write_release(directory, weights, shards=2)
    names.append(load_release(directory).release.kv_name)
    assert len(set(names)) == 4
    write_json(directory / "params.json", {"rope_theta": 1e6})
    assert load_release(directory).release.kv_name not in names


def test_a_layout_that_says_the_same_again_is_counted_once_and_one_that_says_otherwise_is_refused(
    tmp_path: Path,
) -> None:
    directory = write_release(tmp_path / "model")
    before = load_release(directory).digests
    shutil.copy(directory / "model.safetensors", directory / "consolidated.safetensors")
    assert load_release(directory).digests == before
    save_file(tensors(9), directory / "consolidated.safetensors")
    with pytest.raises(DamagedFile, match="hold different versions of it"):
        load_release(directory)


def test_the_index_of_mistrals_layout_decides_what_of_it_counts(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "model")
    for number in (1, 2):
        save_file({f"w{number}": tensors()["model.norm.weight"]}, directory / f"consolidated-{number}.safetensors")
    assert len(chosen(directory)) == 3
    index = {"weight_map": {"w1": "consolidated-1.safetensors"}}
    write_json(directory / "consolidated.safetensors.index.json", index)
    assert chosen(directory) == ["model.safetensors", "consolidated-1.safetensors"]
    index = {"weight_map": {"w1": "consolidated-1.safetensors", "w3": "consolidated-3.safetensors"}}
    write_json(directory / "consolidated.safetensors.index.json", index)
    with pytest.raises(NotFound, match=r"consolidated.safetensors.index.json names are absent: 'consolidated-3"):
        read_checkpoint(open_source(directory))


def test_consolidated_alone_is_loaded(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "consolidated.safetensors")
    assert chosen(directory) == ["consolidated.safetensors"]


def test_single_file_beside_an_index_is_unread(sharded: Path) -> None:
    save_file(tensors(9), sharded / "model.safetensors")
    found = read_checkpoint(open_source(sharded))
    assert [weights.file.name for weights in found.files] == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    assert found.unread == (
        f"model.safetensors lies beside {INDEX}, which does not name it: vLLM loads the index's shards, transformers "
        "model.safetensors, which was not read; remove one of the two",
    )
    single = read_checkpoint(open_source(sharded / "model.safetensors"))
    assert single.unread == (
        f"beside 'model.safetensors' lies {INDEX}, which names other files: engines that are given the directory load "
        "those, which were not read; remove one of the two",
    )


def test_the_same_of_the_consolidated_layout(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "consolidated-00001-of-00001.safetensors")
    weight_map = dict.fromkeys(tensors(), "consolidated-00001-of-00001.safetensors")
    write_json(directory / "consolidated.safetensors.index.json", {"weight_map": weight_map})
    assert read_checkpoint(open_source(directory)).unread == ()
    save_file(tensors(9), directory / "consolidated.safetensors")
    (sentence,) = read_checkpoint(open_source(directory)).unread
    assert "mistral-inference consolidated.safetensors, which was not read" in sentence


def test_an_index_that_names_the_single_file_leaves_nothing_unread(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "model")
    write_json(directory / INDEX, {"weight_map": dict.fromkeys(tensors(), "model.safetensors")})
    for place in (directory, directory / "model.safetensors"):
        assert read_checkpoint(open_source(place)).unread == ()


def test_shards_without_an_index_are_all_loaded_or_missed_by_number(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert len(chosen(sharded)) == 3
    assert any("as vLLM does" in warning for warning in read_checkpoint(open_source(sharded)).warnings)
    (sharded / FIRST_SHARD).unlink()
    with pytest.raises(NotFound, match=f"1 of 3 shards are absent: '{FIRST_SHARD}'"):
        read_checkpoint(open_source(sharded))


def test_a_missing_shard_of_any_numbered_family_is_named(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "a-00001-of-00001.safetensors")
    save_file({"x": tensors()["model.norm.weight"]}, directory / "b-00002-of-00002.safetensors")
    with pytest.raises(NotFound, match=r"1 of 2 shards are absent: 'b-00001-of-00002.safetensors'"):
        read_checkpoint(open_source(directory))


def test_one_shard_that_an_index_names_beside_others_is_no_release(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    renamed = {}
    for number, name in enumerate(sorted(set(index["weight_map"].values()))):
        renamed[name] = f"part_{'abc'[number]}.safetensors"
        (sharded / name).rename(sharded / renamed[name])
    write_json(sharded / INDEX, {"weight_map": {name: renamed[file] for name, file in index["weight_map"].items()}})
    assert load_release(sharded).release.kv_name is not None
    with pytest.raises(UnsupportedRelease, match=f"one of the 3 shards that {INDEX} names") as caught:
        load_release(sharded / "part_a.safetensors")
    assert caught.value.hint == f"give {sharded} instead"
    save_file(tensors(), sharded / "merged.safetensors")
    assert any("which names other files" in text for text in load_release(sharded / "merged.safetensors").unread)


def test_one_shard_of_several_is_no_release(sharded: Path) -> None:
    with pytest.raises(UnsupportedRelease, match="one shard of 3"):
        read_checkpoint(open_source(sharded / FIRST_SHARD))


@pytest.mark.parametrize(
    ("files", "error", "reason"),
    [
        ([], NotFound, "the directory is empty"),
        (["README.md"], NotFound, "no \\*.safetensors among its 1 files"),
        (["config.json", "pytorch_model.bin"], UnsupportedRelease, "only pickles \\('pytorch_model.bin'\\)"),
        (["adapter_config.json", "adapter_model.safetensors"], UnsupportedRelease, "LoRA adapter without its base"),
    ],
)
def test_directory_without_weights_says_what_it_holds(
    tmp_path: Path, files: list[str], error: type[Exception], reason: str
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(error, match=reason):
        read_checkpoint(open_source(tmp_path))


def test_a_directory_of_models_is_not_called_empty(tmp_path: Path) -> None:
    (tmp_path / "a-notes").mkdir()
    (tmp_path / "a-notes" / "README.md").write_bytes(b"x")
    for name in ("v1", "v2"):
        write_release(tmp_path / name)
    with pytest.raises(NotFound, match=r"it holds no files, only directories: 'v1', 'v2'$") as caught:
        read_checkpoint(open_source(tmp_path))
    assert caught.value.hint == f"give the one that holds config.json and the weights, as in {tmp_path / 'v1'}"


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read_checkpoint(open_source(tmp_path / "absent"))


def test_link_that_leads_nowhere_is_an_incomplete_download(tmp_path: Path) -> None:
    directory = write_release(tmp_path / "model")
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors").symlink_to("../../blobs/0123")
    with pytest.raises(NotFound, match=r"link to '../../blobs/0123', which does not exist"):
        read_checkpoint(open_source(directory))


def test_a_directory_that_is_named_like_weights_is_none(sharded: Path) -> None:
    """https://github.com/GeeeekExplorer/nano-vllm/pull/272"""
    (sharded / "extra.safetensors").mkdir()
    (sharded / INDEX).unlink()
    assert len(chosen(sharded)) == 3


def test_one_shard_under_two_spellings_is_read_once(sharded: Path) -> None:
    edit_index(sharded, lm_head__weight=f"./{FIRST_SHARD}")
    assert len(chosen(sharded)) == 3
    assert read_checkpoint(open_source(sharded)).warnings == ()


def test_consolidated_shards_need_no_index_of_that_name(tmp_path: Path) -> None:
    """https://github.com/huggingface/huggingface_hub/pull/3645"""
    directory = write_release(tmp_path / "model", shards=2)
    for path in sorted(directory.glob("model*")):
        path.rename(directory / path.name.replace("model", "consolidated", 1))
    names = [f"consolidated-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = directory / "consolidated.safetensors.index.json"
    index.write_text(index.read_text().replace('"model-', '"consolidated-'))
    assert chosen(directory) == names
    index.unlink()
    assert chosen(directory) == names
    (directory / names[1]).unlink()
    with pytest.raises(NotFound, match=f"1 of 2 shards are absent: '{names[1]}'"):
        read_checkpoint(open_source(directory))


def test_shards_whose_names_were_swapped_are_the_same_tensors_with_a_warning(sharded: Path) -> None:
    """https://github.com/sigstore/model-transparency/issues/49"""
    second = sharded / "model-00002-of-00003.safetensors"
    (sharded / FIRST_SHARD).rename(sharded / "aside")
    second.rename(sharded / FIRST_SHARD)
    (sharded / "aside").rename(second)
    (warning,) = read_checkpoint(open_source(sharded)).warnings
    assert f"20 tensors are in another shard than {INDEX} says" in warning


def test_links_out_of_the_directory_are_followed(sharded: Path, tmp_path: Path) -> None:
    """Engines do, and many keep weights on another disk: https://github.com/sigstore/model-transparency/issues/196"""
    (tmp_path / "disk").mkdir()
    shutil.move(sharded / FIRST_SHARD, tmp_path / "disk" / FIRST_SHARD)
    (sharded / FIRST_SHARD).symlink_to(tmp_path / "disk" / FIRST_SHARD)
    assert len(chosen(sharded)) == 3


def test_a_directory_copied_without_its_configuration_says_so(sharded: Path) -> None:
    """https://github.com/JustVugg/colibri/pull/1487"""
    (sharded / "config.json").unlink()
    with pytest.raises(NotFound, match=r"no config.json, without which no engine can load them"):
        read_content(open_source(sharded))
