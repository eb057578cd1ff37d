"""Real GGUF files, as llama.cpp's own library reads, edits and splits them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.gguf import read_gguf
from kvrelease.release.gguf_types import GGML_TYPES
from kvrelease.release.loading import load_release
from kvrelease.release.local_source import LocalFile
from tests.live.conftest import CACHE, Pair

GGUF_PY = CACHE / "engines" / "llamacpp-b11434" / "convert" / "gguf-py"

READ = """
import json, sys, gguf
reader = gguf.GGUFReader(sys.argv[1])
print(json.dumps({
    "tensors": [[t.name, t.tensor_type.name, t.shape.tolist(), t.data_offset, t.n_bytes] for t in reader.tensors],
    "values": {field.name: field.contents() for field in reader.fields.values() if field.types},
    "types": {int(number): [number.name, *sizes] for number, sizes in gguf.GGML_QUANT_SIZES.items()},
}))
"""

SPLIT = """
import sys, gguf
from gguf.scripts.gguf_new_metadata import copy_with_new_metadata
reader = gguf.GGUFReader(sys.argv[1])
writer = gguf.GGUFWriter(sys.argv[2], "llama", split_max_tensors=100)
copy_with_new_metadata(reader, writer, {}, [])
"""


def gguf_py(code: str, *arguments: str | Path) -> str:
    """What a program prints that uses llama.cpp's library."""
    assert GGUF_PY.exists(), f"run `make engines` first; missing: {GGUF_PY}"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(GGUF_PY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def theirs(pair: Pair) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gguf_py(READ, pair.old_gguf))
    return found


@pytest.fixture(scope="module")
def old(pair: Pair) -> Fingerprint:
    return load_release(pair.old_gguf)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_a_real_file_is_read_as_llama_cpps_library_reads_it(pair: Pair, theirs: dict[str, Any]) -> None:
    found = read_gguf(LocalFile(path=pair.old_gguf, name=pair.old_gguf.name))
    ours = [[t.name, t.dtype, list(t.shape), t.offset, t.size_bytes] for t in found.weights.tensors]
    assert ours == theirs["tensors"]
    metadata = found.metadata
    inline = {**metadata.configuration, **metadata.labels}
    assert inline == {key: theirs["values"][key] for key in inline}
    assert len(inline) > 15
    assert metadata.templates == {"default": theirs["values"]["tokenizer.chat_template"]}
    known = {*inline, *metadata.tokenizer, "tokenizer.chat_template"}
    assert {key for key in theirs["values"] if not key.startswith("GGUF.")} == known


def test_the_table_of_types_is_that_of_llama_cpps_library(theirs: dict[str, Any]) -> None:
    ours = {str(number): [known.word, known.block, known.block_bytes] for number, known in GGML_TYPES.items()}
    assert ours == theirs["types"]


def test_a_template_that_their_tool_edited_leaves_weights_and_kv_alone(
    pair: Pair, old: Fingerprint, tmp_path: Path
) -> None:
    edited = tmp_path / "smollm2-v1.2.gguf"
    subprocess.run(
        [
            *(sys.executable, "-m", "gguf.scripts.gguf_new_metadata", pair.old_gguf, edited),
            *("--chat-template", "{{ messages }}", "--general-name", "Edited", "--force"),
        ],
        env={**os.environ, "PYTHONPATH": str(GGUF_PY)},
        capture_output=True,
        timeout=300,
        check=True,
    )
    new = load_release(edited)
    assert sha256(edited) != sha256(pair.old_gguf)
    found = diff_fingerprints(old, new)
    assert found.changed == ("release", "template")
    assert found.kv.status is KvStatus.VALID
    assert new.release.kv_name == old.release.kv_name
    assert new.labels["general.name"] == "Edited"


def test_a_model_that_their_writer_split_is_the_same_release(pair: Pair, old: Fingerprint, tmp_path: Path) -> None:
    gguf_py(SPLIT, pair.old_gguf, tmp_path / "support.gguf")
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [part.name for part in parts] == [f"support-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    assert load_release(parts[1]).digests == old.digests
    assert load_release(tmp_path).digests == old.digests


def test_the_fine_tune_changes_weights_and_kv_and_no_metadata(pair: Pair, old: Fingerprint) -> None:
    found = diff_fingerprints(old, load_release(pair.new_gguf))
    assert found.changed == ("release", "weights", "kv")
    assert found.kv.status is KvStatus.UNKNOWN
    assert len(found.tensors.changed) > 200


def test_the_safetensors_it_was_converted_from_are_not_comparable(pair: Pair, old: Fingerprint) -> None:
    found = diff_fingerprints(load_release(pair.old), old)
    assert found.kv.status is KvStatus.UNKNOWN
    assert "the old release is safetensors, the new one gguf" in found.kv.reasons[0]
