"""Files beside `config.json`: whatever an engine may load changes the kv name, and whatever none loads does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.errors import DamagedFile, InputError
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.release.quantization import is_quantized
from kvrelease.release.release_file import FileRole
from kvrelease.release.side_files import COUNTED, counts_for_kv, is_known_file
from tests.release.builders import config_json, write_json, write_release, write_text_side


@pytest.fixture(params=["llama", "other"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_text_side(write_release(tmp_path / "model", config=config_json(request.param)))


def named(model: Path) -> str:
    name = load_release(model).release.kv_name
    assert name is not None
    return name


@pytest.mark.parametrize(
    "name", [*sorted(COUNTED), "gptq_quantize_config.json", "my_hf_quant_config.json", "config.4.57.0.json", "x.json"]
)
def test_what_an_engine_may_load_is_part_of_the_kv_name(model: Path, name: str) -> None:
    """With or without it, and with another content, it is another kv name."""
    names = [named(model)]
    for value in (1, 2):
        write_json(model / name, {"x": value})
        names.append(named(model))
    assert len(set(names)) == 3
    found = load_release(model)
    assert found.config is not None
    assert found.config[name] == {"x": 2}
    assert (name, FileRole.CONFIG) in {(file.path, file.role) for file in found.files}


def test_a_changed_preprocessor_makes_old_kv_invalid_and_is_named(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    found: list[Fingerprint] = []
    for size in (224, 448):
        write_json(model / "preprocessor_config.json", {"size": size})
        found.append(load_release(model))
    kv = diff_fingerprints(*found).kv
    assert (kv.status, kv.valid_layers) == (KvStatus.INVALID, 0)
    assert kv.reasons == (
        "preprocessor_config.json changed (size 224 → 448), on which KV depends: every layer is invalid",
    )


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin.index.json",
        "eval_results.json",
        "trainer_state.json",
        "configuration.json",
        "modelcard.json",
        ".hidden.json",
        "sub/preprocessor_config.json",
    ],
)
def test_what_no_engine_computes_with_is_not(model: Path, name: str) -> None:
    before = load_release(model)
    (model / name).parent.mkdir(exist_ok=True)
    write_json(model / name, {"x": 1})
    after = load_release(model)
    assert (after.digests, after.warnings) == (before.digests, before.warnings)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "tekken.json",
        "generation_config.json",
        "chat_template.json",
    ],
)
def test_what_has_a_digest_of_its_own_counts_there_and_not_for_kv(model: Path, name: str) -> None:
    before = load_release(model).digests
    write_json(model / name, {"chat_template": "another", "temperature": 0.1})
    after = load_release(model).digests
    assert (after.kv, after.config, after.weights) == (before.kv, before.config, before.weights)
    assert after.release != before.release


def test_a_saved_fingerprint_in_the_directory_is_no_part_of_the_release(model: Path) -> None:
    before = load_release(model)
    artifacts.write(model / "kvrelease.json", before)
    artifacts.write(model / "v1.json", before)
    assert load_release(model).digests == before.digests
    content = json.loads((model / "v1.json").read_text())
    write_json(model / "params.json", content)
    assert load_release(model).digests.kv != before.digests.kv


def test_a_file_that_nobody_knows_counts_with_a_warning(model: Path) -> None:
    write_json(model / "results.json", {"accuracy": 0.9})
    write_json(model / "preprocessor_config.json", {"size": 224})
    (warning,) = [text for text in load_release(model).warnings if "results.json" in text]
    assert warning == (
        "files that no list of ours knows count for the kv digest, because code or an engine may load them: "
        "'results.json'; move those that belong to no release elsewhere"
    )


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1}\n{"a": 2}\n', "", "not JSON", '{"a": 1, "a": 2}'])
def test_a_file_that_is_no_object_counts_byte_for_byte(model: Path, text: str) -> None:
    names = []
    for end in ("", "\n", " "):
        (model / "table.json").write_text(text + end)
        names.append(named(model))
    assert len(set(names)) == 3


def test_a_large_file_counts_to_its_last_byte_and_is_not_copied_into_the_fingerprint(model: Path) -> None:
    names = []
    for last in "ab":
        (model / "table.json").write_text(json.dumps({"x": "a" * 2_000_000 + last}))
        names.append(named(model))
    assert len(set(names)) == 2
    assert len(artifacts.to_json(load_release(model))) < 100_000


def test_formatting_of_a_small_object_does_not_count(model: Path) -> None:
    value = {"size": {"height": 224, "width": 224}, "transformers_version": "4.1"}
    (model / "preprocessor_config.json").write_text(json.dumps(value))
    before = named(model)
    (model / "preprocessor_config.json").write_text(json.dumps(value | {"transformers_version": "5"}, indent=3))
    assert named(model) == before


def test_a_pointer_in_place_of_a_file_is_refused(model: Path) -> None:
    (model / "table.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(DamagedFile, match="Git LFS pointer"):
        load_release(model)


def test_a_name_that_is_no_text_is_refused(model: Path) -> None:
    path = str(model).encode() + b"/t\xff.json"
    Path(path.decode(errors="surrogateescape")).write_text("{}")
    with pytest.raises(InputError, match="not UTF-8"):
        load_release(model)


def test_every_name_by_which_engines_find_quantisation_means_a_quantised_checkpoint(tmp_path: Path) -> None:
    """vLLM looks for names that end so: vllm 0.32.0, model_loader/weight_utils.py (`get_quant_config`)."""
    for name in ("quantization_config.json", "llm_quantize_config.json", "awq_quant_config.json"):
        model = write_release(tmp_path / name)
        write_json(model / name, {"quant_method": "gptq", "bits": 4, "damp_percent": 0.1})
        found = load_release(model)
        assert found.rule.is_quantized
        assert found.config is not None
        assert found.config[name] == {"quant_method": "gptq", "bits": 4}
        assert is_quantized(found.config)


def test_the_lists_do_not_overlap() -> None:
    assert all(counts_for_kv(name) and is_known_file(name) for name in COUNTED)
    assert not counts_for_kv("config.json")
    assert counts_for_kv("anything.json")
    assert not is_known_file("anything.json")
    assert not counts_for_kv("anything.txt")
