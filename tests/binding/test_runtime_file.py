"""What saved files say about a runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Artifact
from kvrelease.binding.runtime import declared_runtime
from kvrelease.binding.runtime_file import compare_runtime_files, read_stated_runtime
from kvrelease.errors import DamagedFile, InputError, KvreleaseError, NotFound, UsageError
from kvrelease.release.runtime_change import NOT_COMPARED, RuntimeStatus
from tests import builders

RUNTIME = declared_runtime({"engine": "vllm", "version": "0.32.0"})


def write(path: Path, artifact: Artifact) -> Path:
    artifacts.write(path, artifact)
    return path


def test_a_namespace_and_yaml_say_the_fields_that_were_declared(tmp_path: Path) -> None:
    saved = read_stated_runtime(write(tmp_path / "n.json", builders.namespace()))
    (tmp_path / "kvrelease.yaml").write_text("timeout: 5\nruntime: {engine: vllm, version: 0.32.0}\n")
    declared = read_stated_runtime(tmp_path / "kvrelease.yaml")
    assert saved.fields == declared.fields == {"engine": "vllm", "version": "0.32.0"}
    assert saved.name == declared.name == RUNTIME.name


def test_a_record_says_which_engine_was_observed(tmp_path: Path) -> None:
    found = read_stated_runtime(write(tmp_path / "r.json", builders.record()))
    assert (found.fields, found.name) == ({"engine": "vllm", "version": "0.32.0"}, None)


@pytest.mark.parametrize("artifact", [builders.prewarm, builders.verify], ids=["prewarm", "verify"])
def test_a_namespace_alone_gives_the_name(tmp_path: Path, artifact: Callable[..., Artifact]) -> None:
    text = f"{builders.NEW_KV}-{RUNTIME.name}-e3"
    found = read_stated_runtime(write(tmp_path / "p.json", artifact(namespace=text)))
    assert (found.fields, found.name) == ({}, RUNTIME.name)
    undeclared = read_stated_runtime(write(tmp_path / "u.json", artifact()))
    assert (undeclared.fields, undeclared.name) == ({}, None)


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("none.json", None, NotFound, "no such file"),
        ("a.json", "{", DamagedFile, "neither YAML .* nor an artifact"),
        ("a.json", '{"kind": "kvrelease/namespace", "runtime": 5}', DamagedFile, "nor an artifact"),
        ("a.json", '{"kind": "kvrelease/diff"}', InputError, "a kvrelease/diff artifact, which says nothing"),
        ("a.yaml", "timeout: 5", UsageError, "it declares none"),
        ("a.yaml", "runtime: [1]", UsageError, "Expected `object`"),
        ("a.yaml", "nonsense: 1", UsageError, "unknown field"),
    ],
)
def test_what_says_nothing_is_an_error_that_tells_what_to_give(
    tmp_path: Path, name: str, content: str | None, error: type[KvreleaseError], words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=words):
        read_stated_runtime(tmp_path / name)


def test_bytes_that_are_no_text_and_a_directory_are_errors_of_ours(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    for path in (tmp_path / "a.yaml", tmp_path):
        with pytest.raises(InputError):
            read_stated_runtime(path)


def test_two_files_are_compared_and_a_field_that_nobody_knows_is_told_once(tmp_path: Path) -> None:
    for name, version in (("a.yaml", "0.31.0"), ("b.yaml", "0.32.0")):
        (tmp_path / name).write_text(f"runtime: {{engine: vllm, version: {version}, dtpye: half}}\n")
    told: list[str] = []
    found = compare_runtime_files(tmp_path / "a.yaml", tmp_path / "b.yaml", warn=told.append)
    assert (found.status, [field.field for field in found.fields]) == (RuntimeStatus.DIFFERENT, ["version"])
    assert [text.partition(": ")[0] for text in told] == [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    assert all("(did you mean dtype?)" in text for text in told)
    again: list[str] = []
    same = compare_runtime_files(tmp_path / "a.yaml", tmp_path / "a.yaml", warn=again.append)
    assert (same.status, len(again)) == (RuntimeStatus.SAME, 1)
    assert compare_runtime_files(None, None, warn=told.append) == NOT_COMPARED
