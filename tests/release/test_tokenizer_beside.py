"""Files of a tokenizer that its frozen digest does not cover: never called the same when they changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.loading import load_release
from tests.release.builders import write_json, write_release

# JSON files among them count for KV besides, because nobody knows who loads them.
NAMES = (
    "rwkv_vocab_v20230424.txt",
    "source.spm",
    "bpe.codes",
    "vocab.bpe",
    "tokenizer.bin",
    "dict.txt",
    "spiece.vocab",
)


@pytest.mark.parametrize("name", [*NAMES, "tokenizer.4.0.0.json", "encoder.json", "vocab-src.json"])
def test_a_changed_file_leaves_the_tokenizer_unknown(tmp_path: Path, name: str) -> None:
    old, new = (write_release(tmp_path / side) for side in ("old", "new"))
    for directory, text in ((old, '{"a": 1}'), (new, '{"a": 2}')):
        (directory / name).write_text(text)
    before, after = load_release(old), load_release(new)
    assert before.digests.tokenizer == after.digests.tokenizer
    found = diff_fingerprints(before, after)
    assert "tokenizer" in found.unknown
    assert diff_verdict(found, part="tokenizer") is Verdict.INCONCLUSIVE
    assert any(f"'{name}' changed: some engine makes the tokenizer of such a file" in note for note in found.kv.notes)
    assert (found.kv.status is KvStatus.VALID) == (name in NAMES)
    same = diff_fingerprints(before, load_release(old))
    assert diff_verdict(same, part="any") is Verdict.PASS
    assert (same.kv.reasons, same.kv.notes) == ((), ())


def test_a_file_that_went_and_one_that_an_older_fingerprint_does_not_say(tmp_path: Path) -> None:
    old = write_release(tmp_path / "old")
    (old / "source.spm").write_bytes(b"\1")
    new = tmp_path / "new"
    shutil.copytree(old, new)
    saved = tmp_path / "saved.json"
    artifacts.write(saved, load_release(old))
    content = json.loads(saved.read_text())
    del content["details"]["tokenizer_beside"]
    saved.write_text(json.dumps(content))
    found = diff_fingerprints(load_release(saved), load_release(new))
    assert diff_verdict(found, part="tokenizer") is Verdict.INCONCLUSIVE
    assert "whether 'source.spm' changed a fingerprint that was saved earlier does not say" in found.kv.notes[-1]
    (new / "source.spm").unlink()
    assert diff_verdict(diff_fingerprints(load_release(saved), load_release(new)), part="tokenizer") is Verdict.PASS
    gone = diff_fingerprints(load_release(old), load_release(new))
    assert diff_verdict(gone, part="tokenizer") is Verdict.INCONCLUSIVE


def test_a_tokenizer_without_a_vocabulary_is_warned_of(tmp_path: Path) -> None:
    model = write_release(tmp_path / "model")
    for kind, is_warned in (("LlamaTokenizerFast", True), ("ByT5Tokenizer", False), (None, False)):
        write_json(model / "tokenizer_config.json", {"tokenizer_class": kind})
        warnings = [text for text in load_release(model).warnings if "there is no vocabulary beside it" in text]
        assert bool(warnings) == is_warned
    write_json(model / "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer"})
    (model / "source.spm").write_bytes(b"\1")
    assert not [text for text in load_release(model).warnings if "no vocabulary" in text]
