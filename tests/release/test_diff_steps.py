"""A diff in one call, from two places to the last answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.errors import UsageError
from kvrelease.release.diff import needs_weights
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.diff_steps import run_diff
from kvrelease.release.loading import load_release
from kvrelease.release.relayout import RelaidStatus
from kvrelease.release.runtime_change import NOT_COMPARED, StatedRuntime, compare_runtimes
from tests.release.builders import config_json, tensors, write_release
from tests.release.test_relayout import fused


def test_each_answer_is_whole_and_says_what_the_next_one_adds(tmp_path: Path) -> None:
    old = write_release(tmp_path / "old", tensors(1))
    new = write_release(tmp_path / "new", fused(tensors(1)))
    first, last = run_diff(str(old), str(new), warn=list[str]().append)
    assert first.left_out == (
        "whether tensors in another layout are the same weights was not proven: the run was cut short",
    )
    assert {one.status for one in first.tensors.relaid} == {RelaidStatus.UNPROVEN}
    assert last.left_out == ()
    assert {one.status for one in last.tensors.relaid} == {RelaidStatus.EQUAL}
    assert (first.kv.status, last.kv.status) == (KvStatus.INVALID, KvStatus.INVALID)
    assert (last.old.source, last.release.source, last.runtime) == (str(old), str(new), NOT_COMPARED)


def test_the_runtime_that_is_given_decides(tmp_path: Path) -> None:
    sides = [
        StatedRuntime(source="a", fields={"engine": "vllm", "version": version}, name=None) for version in ("1", "2")
    ]
    old = str(write_release(tmp_path / "old"))
    *_, found = run_diff(old, old, warn=list[str]().append, runtime=compare_runtimes(*sides, known_fields=()))
    assert (found.kv.status, found.changed) == (KvStatus.INVALID, ())


def test_what_both_sides_are_warned_of_is_told_once_and_before_the_answer(tmp_path: Path) -> None:
    old, new = (str(write_release(tmp_path / name, config=config_json("mamba"))) for name in ("old", "new"))
    (Path(new) / "training.bin").write_bytes(b"1")
    told: list[str] = []
    next(run_diff(old, new, warn=told.append))
    assert [text.partition(": ")[0] for text in told] == [f"{old} and {new}", new, new]


def test_drift_of_a_saved_fingerprint_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    artifacts.write(tmp_path / "old.json", load_release(write_release(tmp_path / "old")))
    with pytest.raises(UsageError, match="saved fingerprint"):
        next(run_diff(str(tmp_path / "old.json"), "nowhere", warn=list[str]().append, measures_drift=True))


@pytest.mark.parametrize(("part", "wanted"), [("kv", False), ("config", False), ("weights", True), ("any", True)])
def test_only_questions_about_weights_are_worth_a_download(part: str, *, wanted: bool) -> None:
    assert needs_weights(part) is wanted
