"""Contents of tensors: hashed, remembered or sampled, always in the order of the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.errors import InputError
from kvrelease.progress import ProgressEvent, silent
from kvrelease.release.hashing import hash_tensors
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.sample_reader import sample_tensors
from kvrelease.release.tensor_contents import TensorContents, read_tensors
from kvrelease.release.weights import WeightFile
from tests.release.builders import local_file
from tests.release.mount_tables import DATED

LONG_AFTER_NS = 2**62


@pytest.fixture
def files(tmp_path: Path) -> list[WeightFile]:
    for number in range(3):
        zero, large = np.zeros(9, np.uint8), np.arange(9000 + number, dtype=np.int16)
        save_file({f"{number}.zero": zero, f"{number}.large": large}, tmp_path / f"{number}.safetensors")
    return [read_safetensors(local_file(path)) for path in sorted(tmp_path.iterdir())]


@pytest.fixture
def memo(tmp_path: Path) -> Memo:
    return Memo(tmp_path / "memo", settled_ns=0, mounts=DATED)


def read(files: list[WeightFile], *, mode: Mode = Mode.FULL, memo: Memo | None = None) -> TensorContents:
    return read_tensors(files, mode=mode, jobs=2, memo=memo, seen_ns=LONG_AFTER_NS, progress=silent)


def test_full_is_what_hashing_finds_and_fast_what_sampling_finds(files: list[WeightFile]) -> None:
    payloads, samples = hash_tensors(files, jobs=1), sample_tensors(files, jobs=1)
    full = read(files)
    assert full.digests == tuple(payload.digest for payload in payloads)
    assert full.samples == samples
    assert full.zeros == (False, True) * 3
    assert read(files, mode=Mode.FAST) == TensorContents(digests=samples, samples=samples, zeros=(None,) * 6)


def test_what_is_remembered_takes_its_place_among_what_is_hashed(files: list[WeightFile], memo: Memo) -> None:
    expected = read(files)
    read(files[1:2], memo=memo)
    found = read(files, memo=memo)
    of_second = sum(tensor.size_bytes for tensor in files[1].tensors)
    assert (found.digests, found.samples, found.zeros) == (expected.digests, expected.samples, expected.zeros)
    assert found.remembered_bytes == of_second
    assert read(files, memo=memo).remembered_bytes == sum(
        tensor.size_bytes for file in files for tensor in file.tensors
    )


def test_only_what_was_hashed_is_told_as_progress(files: list[WeightFile], memo: Memo) -> None:
    read(files[:2], memo=memo)
    events: list[ProgressEvent] = []
    read_tensors(files, mode=Mode.FULL, jobs=1, memo=memo, seen_ns=LONG_AFTER_NS, progress=events.append)
    assert events[-1].total == sum(tensor.size_bytes for tensor in files[2].tensors)


def test_whoever_remembers_makes_room(files: list[WeightFile], memo: Memo) -> None:
    """A memo of one entry's size holds one, however many releases come by."""
    small = Memo(memo.directory, max_total_bytes=4096, settled_ns=0, mounts=DATED)
    for file in files:
        read([file], memo=small)
    assert len(list(small.directory.iterdir())) == 1


def test_mode_fast_neither_asks_a_memo_nor_fills_it(files: list[WeightFile], memo: Memo) -> None:
    read(files, mode=Mode.FAST, memo=memo)
    assert not memo.directory.exists()


def test_a_remembered_file_that_is_another_one_by_now_is_an_error(files: list[WeightFile], memo: Memo) -> None:
    read(files, memo=memo)
    path = Path(files[0].file.where)
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    with pytest.raises(InputError, match=r"0.safetensors: the file changed while it was read"):
        read(files, memo=memo)
