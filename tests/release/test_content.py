"""What a release consists of but for the bytes of its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from kvrelease.errors import NotFound, UnsupportedRelease
from kvrelease.release.address import open_source
from kvrelease.release.content import Content, Format, read_content
from kvrelease.release.release_file import FileRole
from tests.release.adapters import write_adapter
from tests.release.builders import config_json, tensors, write_json, write_release, write_text_side
from tests.release.gguf_writer import write_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "model", shards=2))


def read(path: Path) -> Content:
    return read_content(open_source(path))


def test_every_file_has_its_role_and_code_that_two_files_name_is_one(model: Path) -> None:
    code = {"auto_map": {"AutoModel": "modeling.Model"}}
    write_json(model / "config.json", config_json(**code))
    write_json(model / "tokenizer_config.json", code)
    write_json(model / "params.json", {"dim": 8})
    (model / "modeling.py").write_text("a = 1\n")
    (model / "README.md").write_text("# Support")
    content = read(model)
    assert sorted((file.role, file.path) for file in content.files) == [
        (FileRole.CODE, "modeling.py"),
        (FileRole.CONFIG, "config.json"),
        (FileRole.CONFIG, "params.json"),
        (FileRole.GENERATION, "generation_config.json"),
        (FileRole.INDEX, "model.safetensors.index.json"),
        (FileRole.TOKENIZER, "tokenizer.json"),
        (FileRole.TOKENIZER, "tokenizer_config.json"),
        (FileRole.WEIGHTS, "model-00001-of-00002.safetensors"),
        (FileRole.WEIGHTS, "model-00002-of-00002.safetensors"),
    ]
    assert all(file.bytes == (model / file.path).stat().st_size for file in content.files)
    assert content.code == {"modeling.py": blake3(b"a = 1\n").hexdigest()}
    assert {tensor.name for tensor in content.tensors} == set(tensors())


def test_code_that_nothing_names_is_no_part_of_the_release(model: Path) -> None:
    (model / "modeling.py").write_text("a = 1\n")
    content = read(model)
    assert content.code == {}
    assert FileRole.CODE not in {file.role for file in content.files}


def test_a_model_with_an_adapter_inside_is_refused_because_engines_differ(model: Path) -> None:
    write_adapter(model)
    with pytest.raises(UnsupportedRelease, match=r"a model and an adapter .* lie in one directory"):
        read(model)
    (model / "adapter_config.json").unlink()
    assert "'adapter_model.safetensors'" in read(model).checkpoint.warnings[0]


def test_a_file_alone_has_no_configuration_and_a_directory_has_one(model: Path, tmp_path: Path) -> None:
    single = write_release(tmp_path / "single")
    assert read(single / "model.safetensors").config == read(single).config
    for directory in (single, model):
        (directory / "config.json").unlink()
        with pytest.raises(NotFound, match=r"no config\.json"):
            read(directory)
    alone = read(single / "model.safetensors")
    assert (alone.config, alone.rule.reason) == (None, "there is no config.json, which says what the model is")


def test_a_gguf_file_brings_everything_itself(tmp_path: Path) -> None:
    write_text_side(tmp_path)
    path = write_gguf(tmp_path / "support.gguf")
    content = read(path)
    assert (content.format, content.name, content.code) == (Format.GGUF, "support", {})
    assert content.config is not None
    assert content.config.entries["general.architecture"] == "llama"
    assert [(file.path, file.role) for file in content.files] == [("support.gguf", FileRole.WEIGHTS)]
    assert content.text_side.files == ()
