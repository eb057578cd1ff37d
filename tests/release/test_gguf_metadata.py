"""Which metadata keys change what an engine computes, and how much of them is kept."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from kvrelease.errors import DamagedFile, UnsupportedRelease
from kvrelease.release.gguf import read_gguf
from kvrelease.release.gguf_metadata import MAX_KEPT_BYTES, KeyRole, Metadata, key_role
from tests.release.builders import local_file
from tests.release.gguf_writer import ARRAY, I8, STRING, Value, array, small_model, small_tensors, text, u32, write_gguf

ROLES = {
    KeyRole.CONFIGURATION: (
        "general.architecture",
        "general.type",
        "general.quantization_version",
        "general.tensor_extra.prec_a4",
        "llama.rope.freq_base",
        "gemma4.attention.sliding_window",
        "tokenizer.ggml.token_type_count",
        "general.something_new",
        "something",
    ),
    KeyRole.TOKENIZER: (
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.huggingface.json",
        "tokenizer.chat_templating",
    ),
    KeyRole.TEMPLATE: ("tokenizer.chat_template", "tokenizer.chat_template.tool_use"),
    KeyRole.SAMPLING: ("general.sampling.temp", "general.sampling.top_k"),
    KeyRole.LABEL: (
        "general.author",
        "general.basename",
        "general.description",
        "general.doi",
        "general.finetune",
        "general.languages",
        "general.license",
        "general.name",
        "general.organization",
        "general.quantized_by",
        "general.repo_url",
        "general.size_label",
        "general.tags",
        "general.url",
        "general.uuid",
        "general.version",
        "general.dataset.0.name",
        "general.license.link",
        "general.file_type",
        "general.base_model.0.repo_url",
        "general.source.huggingface.repository",
        "quantize.imatrix.file",
        "tokenizer.chat_templates",
    ),
    KeyRole.LAYOUT: ("general.alignment", "split.no", "split.count", "split.tensors.count"),
}


@pytest.mark.parametrize(("role", "key"), [(role, key) for role, keys in ROLES.items() for key in keys])
def test_each_key_has_its_role_and_unknown_ones_are_configuration(role: KeyRole, key: str) -> None:
    assert key_role(key) is role


def metadata_of(tmp_path: Path, metadata: dict[str, Value]) -> Metadata:
    return read_gguf(local_file(write_gguf(tmp_path / "m.gguf", metadata, small_tensors()))).metadata


def test_metadata_are_sorted_by_what_they_are_for(tmp_path: Path) -> None:
    found = metadata_of(
        tmp_path,
        small_model(
            general__sampling__temp=Value(6, 0.5),
            tokenizer__chat_template=text("one\r\ntwo\rthree\n"),
            tokenizer__chat_template__rag=text("for documents"),
            tokenizer__chat_templates=array(STRING, ["rag"]),
        ),
    )
    assert set(found.configuration) == {
        "general.architecture",
        "general.quantization_version",
        "general.type",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.block_count",
        "llama.rope.freq_base",
    }
    assert {key: len(digest) for key, digest in found.tokenizer.items()} == dict.fromkeys(
        ("tokenizer.ggml.merges", "tokenizer.ggml.model", "tokenizer.ggml.scores", "tokenizer.ggml.tokens"), 32
    )
    assert found.templates == {"default": "one\ntwo\nthree\n", "rag": "for documents"}
    assert found.sampling == {"general.sampling.temp": 0.5}
    assert found.labels == {"general.file_type": 0, "general.name": "Support 1.2", "tokenizer.chat_templates": ["rag"]}


def test_the_type_of_a_tokenizer_value_counts(tmp_path: Path) -> None:
    signed, unsigned = (
        metadata_of(tmp_path, {"tokenizer.ggml.token_type": array(item_type, [1, 2])}).tokenizer for item_type in (4, 5)
    )
    assert signed.keys() == unsigned.keys()
    assert signed != unsigned


def test_two_templates_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match="second template with the name 'default'"):
        metadata_of(tmp_path, {"tokenizer.chat_template": text("a"), "tokenizer.chat_template.default": text("b")})


def test_more_settings_than_any_model_has_are_refused_within_bounded_memory(tmp_path: Path) -> None:
    """Small numbers in arrays are what costs most: 1 byte in the file, 36 in memory."""
    count = MAX_KEPT_BYTES // 4000 + 1
    path = write_gguf(tmp_path / "m.gguf", {f"k{n}": array(I8, [-100] * 4000) for n in range(count)}, small_tensors())
    fits = write_gguf(tmp_path / "f.gguf", {f"k{n}": array(I8, [-100] * 4000) for n in range(count - 3)})
    tracemalloc.start()
    with pytest.raises(UnsupportedRelease, match=r"key 'k\d+' brings keys and settings to more than 1048576 bytes"):
        read_gguf(local_file(path))
    read_gguf(local_file(fits))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 45 * MAX_KEPT_BYTES


def test_a_template_larger_than_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedRelease, match=r"'tokenizer\.chat_template' has 2000008 bytes, more than the 1048576"
    ):
        metadata_of(tmp_path, {"tokenizer.chat_template": text("x" * 2_000_000)})


def test_nesting_and_the_number_of_inner_arrays_are_limited(tmp_path: Path) -> None:
    deep = array(ARRAY, [])
    for _ in range(3):
        deep = array(ARRAY, [deep])
    assert metadata_of(tmp_path, {"llama.deep": deep}).configuration == {"llama.deep": [[[[]]]]}
    with pytest.raises(UnsupportedRelease, match=r"'llama\.deep' nests arrays more than 4 deep"):
        metadata_of(tmp_path, {"llama.deep": array(ARRAY, [deep])})
    with pytest.raises(UnsupportedRelease, match=r"'llama\.wide' has more than 65536 arrays inside arrays"):
        metadata_of(tmp_path, {"llama.wide": array(ARRAY, [array(I8, [])] * 65_537)})


def test_more_keys_than_any_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedRelease, match="announces 65537 keys; the limit is 65536"):
        metadata_of(tmp_path, {f"k{n}": u32(n) for n in range(65_537)})
