"""Weight files that a model does not load: no digest covers them, so they are at most not known to differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.artifacts import Verdict
from kvrelease.release.diff import diff_fingerprints, diff_verdict
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.file_changes import FileChange, FileEdit
from kvrelease.release.loading import load_release
from tests.release.builders import tensors, write_release
from tests.release.fingerprints import STAYS_VALID
from tests.release.gguf_writer import small_model, write_gguf


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    old, new = (write_release(tmp_path / name) for name in ("old", "new"))
    return old, new


def diff(old: Path, new: Path) -> Diff:
    return diff_fingerprints(load_release(old), load_release(new))


def verdicts(found: Diff, *parts: str) -> list[Verdict]:
    return [diff_verdict(found, part=part) for part in parts]


def test_another_name_or_size_is_a_change_and_keeps_kv(pair: tuple[Path, Path]) -> None:
    for side, files in zip(pair, ({"a.bin": b"1", "b.bin": b"1"}, {"b.bin": b"12", "c.bin": b"1"}), strict=True):
        for name, data in files.items():
            (side / name).write_bytes(data)
    found = diff(*pair)
    assert (found.kv.status, found.changed, found.unknown) == (KvStatus.VALID, ("extra",), ())
    assert found.extra == (
        FileChange(name="a.bin", edit=FileEdit.REMOVED),
        FileChange(name="b.bin", edit=FileEdit.CHANGED),
        FileChange(name="c.bin", edit=FileEdit.ADDED),
    )
    assert found.summary == f"{STAYS_VALID}: weight files that the model does not load changed."
    assert found.kv.notes[-1] == (
        "weight files that are not part of the release differ by name or size: 'b.bin' changed, 'c.bin' added, "
        "'a.bin' removed"
    )
    assert verdicts(found, "extra", "any") == [Verdict.FAIL] * 2
    assert verdicts(found, "kv", "weights", "config", "code", "preprocessor") == [Verdict.PASS] * 5
    artifacts.write(pair[0] / "diff.json", found)
    assert artifacts.read(pair[0] / "diff.json", Diff) == found


def test_equal_names_and_sizes_prove_nothing(pair: tuple[Path, Path]) -> None:
    for side, data in zip(pair, (b"1", b"2"), strict=True):
        (side / "draft.bin").write_bytes(data)
    found = diff(*pair)
    assert (found.kv.status, found.changed, found.unknown, found.extra) == (KvStatus.VALID, (), ("extra",), ())
    assert found.summary == (
        f"{STAYS_VALID}: no change was seen; not known: weight files that the model does not load."
    )
    assert verdicts(found, "extra", "any") == [Verdict.INCONCLUSIVE] * 2
    assert verdicts(found, "kv", "weights") == [Verdict.PASS] * 2


def test_without_any_nothing_is_in_question(pair: tuple[Path, Path]) -> None:
    found = diff(*pair)
    assert (found.unknown, verdicts(found, "extra", "any")) == ((), [Verdict.PASS] * 2)


def test_what_some_engine_loads_in_place_of_the_weights_is_of_the_weights(tmp_path: Path) -> None:
    old, new = (write_release(tmp_path / name, shards=2) for name in ("old", "new"))
    write_release(tmp_path / "single", tensors(5))
    (tmp_path / "single" / "model.safetensors").rename(new / "model.safetensors")
    found = diff(old, new)
    assert ("extra" in found.changed, "weights" in found.unknown) == (False, True)


def test_what_lies_beside_a_file_that_was_given_alone_is_not_asked_about(pair: tuple[Path, Path]) -> None:
    """Two files of one directory are no extra files of each other."""
    old, new = pair
    (old / "model.safetensors").rename(old / "a.safetensors")
    (old / "b.safetensors").write_bytes((old / "a.safetensors").read_bytes())
    found = diff(old / "a.safetensors", old / "b.safetensors")
    assert verdicts(found, "extra", "any") == [Verdict.PASS] * 2
    (new / "draft.bin").write_bytes(b"1")
    assert verdicts(diff(old / "a.safetensors", new), "extra") == [Verdict.INCONCLUSIVE]


def test_two_formats_do_not_tell_whether_they_changed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (pair[0] / "draft.bin").write_bytes(b"1")
    (tmp_path / "converted").mkdir()
    write_gguf(tmp_path / "converted" / "model.gguf", small_model())
    found = diff(pair[0], tmp_path / "converted")
    assert ("extra" in found.changed, "extra" in found.unknown) == (False, True)
    assert found.extra == ()
