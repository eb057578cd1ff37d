"""GGUF files on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kv
from tests.cli.shell import Releases
from tests.release.gguf_writer import (
    f32,
    f32_tensor,
    gguf_bytes,
    small_model,
    small_tensors,
    text,
    u32,
    write_gguf,
    write_split,
)


@pytest.fixture
def model(workdir: Path) -> Path:
    return write_gguf(workdir / "support-v1.2.gguf")


def test_a_file_is_fingerprinted_and_its_page_is_told(kv: Kv, model: Path) -> None:
    result = kv("fingerprint", model.name)
    assert result.code == 0
    assert result.out.startswith("Release support-v1.2")
    assert "kvfp1-full/all.1:" in result.out
    assert "kvrelease namespace support-v1.2.gguf --engine llamacpp" in result.out
    assert "no dependency rule is known for the tensors of GGUF files" in result.err


def test_the_artifact_has_format_and_labels_and_can_be_used_again(kv: Kv, model: Path) -> None:
    found = json.loads(kv("fingerprint", model.name, "--format", "json").out)
    assert (found["format"], found["labels"]) == ("gguf", {"general.file_type": 0, "general.name": "Support 1.2"})
    assert [(row["path"], row["role"]) for row in found["files"]] == [("support-v1.2.gguf", "weights")]
    kv("fingerprint", model.name, "-o", "saved.json")
    again = json.loads(kv("diff", "saved.json", model.name, "--format", "json").out)
    assert (again["kv"]["status"], again["changed"]) == ("valid", [])


def test_an_edited_template_keeps_kv_and_another_rope_does_not(kv: Kv, model: Path, workdir: Path) -> None:
    write_gguf(workdir / "template.gguf", small_model(tokenizer__chat_template=text("{{ other }}")))
    write_gguf(workdir / "rope.gguf", small_model(llama__rope__freq_base=f32(1e6)))
    kept = kv("diff", model.name, "template.gguf", "--fail-on", "kv")
    assert kept.code == 0
    assert "but prompts or answers may differ: the chat template changed." in " ".join(kept.out.split())
    lost = kv("diff", model.name, "rope.gguf", "--fail-on", "kv", "--format", "json")
    assert lost.code == 3
    assert json.loads(lost.out)["config"] == [
        {"key": "llama.rope.freq_base", "old": 10000.0, "new": 1000000.0, "affects_kv": None}
    ]


def test_safetensors_against_gguf_is_not_known(kv: Kv, model: Path, releases: Releases) -> None:
    for pair in ((releases.new, model.name), (model.name, releases.directory)):
        result = kv("diff", *pair, "--fail-on", "kv", "--format", "json")
        assert result.code == 3
        found = json.loads(result.out)["kv"]
        assert found["status"] == "unknown"
        assert "digests of the two say nothing about each other" in found["reasons"][0]


def test_a_namespace_can_be_bound_to_a_file(kv: Kv, model: Path) -> None:
    result = kv("namespace", model.name, "--engine", "llamacpp", "--format", "json")
    assert result.code == 0
    found = json.loads(result.out)
    assert found["namespace"].startswith(found["kv_name"])


def test_an_absent_part_is_named(kv: Kv, workdir: Path) -> None:
    write_split(workdir)[2].unlink()
    result = kv("fingerprint", "support-00001-of-00003.gguf")
    assert (result.code, result.out) == (4, "")
    assert "1 of the 3 parts of the model are absent: 'support-00003-of-00003.gguf'" in result.errors[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GGUF", "4 bytes are no GGUF file"),
        (gguf_bytes(small_model(), small_tensors())[:-40], "tensor 'output_norm.weight' ends at byte"),
        (gguf_bytes({"llama.x": u32(1)}), "it has no tensors"),
    ],
)
def test_a_file_that_is_no_model_ends_4(kv: Kv, workdir: Path, content: bytes, reason: str) -> None:
    (workdir / "bad.gguf").write_bytes(content)
    result = kv("fingerprint", "bad.gguf")
    assert (result.code, result.out) == (4, "")
    assert reason in result.errors[0]
    assert "Traceback" not in result.err


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_terminal_codes_in_names_and_values_never_reach_the_terminal(
    kv: Kv, model: Path, workdir: Path, form: str
) -> None:
    """Nor from a file that cannot be read."""
    evil = "\x1b[2J\x1b]0;owned\x07"
    metadata = small_model(general__name=text(evil), tokenizer__chat_template=text(evil))
    metadata[f"llama.{evil}"] = text(evil)
    write_gguf(workdir / "evil.gguf", metadata, [*small_tensors(), f32_tensor(evil, (4,))])
    results = [
        kv("fingerprint", "evil.gguf", "--format", form),
        kv("diff", model.name, "evil.gguf", "--format", form),
    ]
    (workdir / "cut.gguf").write_bytes((workdir / "evil.gguf").read_bytes()[:-20])
    results.append(kv("fingerprint", "cut.gguf", "--format", form))
    assert [result.code for result in results] == [0, 0, 4]
    for result in results:
        assert not {"\x1b", "\x07"} & set(result.out + result.err)
