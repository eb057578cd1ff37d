"""Samples read from files: those that full hashing sees, whatever the layout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.errors import DamagedFile, InputError
from kvrelease.progress import ProgressEvent
from kvrelease.release.hashing import hash_tensors
from kvrelease.release.local_source import CHUNK_BYTES
from kvrelease.release.range_reader import HEAD_BYTES
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.sample_reader import sample_file, sample_tensors
from kvrelease.release.weights import WeightFile
from tests.release import naive
from tests.release.builders import local_file
from tests.release.remote_file import Remote

SIZES = (0, 1, 7, 1024, 4095, 4096, 4097, 5000, 5120, 7169, 8192, 70_001, CHUNK_BYTES - 1, CHUNK_BYTES + 1025, 2**22)


@pytest.fixture
def files(tmp_path: Path) -> list[WeightFile]:
    """Three files with tensors of every size that is a border somewhere; many small ones side by side in the last."""
    generator = np.random.default_rng(11)
    for number in range(2):
        tensors = {f"t{number}.{size}": generator.integers(0, 256, size, np.uint8) for size in SIZES}
        save_file(tensors, tmp_path / f"{number}.safetensors")
    small = {f"norm.{number}": generator.integers(0, 256, 4000, np.uint8) for number in range(200)}
    save_file(small, tmp_path / "2.safetensors")
    return [read_safetensors(local_file(path)) for path in sorted(tmp_path.iterdir())]


@pytest.mark.parametrize(("jobs", "slow_s"), [(1, 0.0), (3, 0.0), (3, 60.0)], ids=["one", "threads", "quick place"])
def test_samples_are_those_of_the_specification_and_of_full_hashing(
    files: list[WeightFile], jobs: int, slow_s: float
) -> None:
    names = [tensor.name for file in files for tensor in file.tensors]
    found = dict(zip(names, sample_tensors(files, jobs=jobs, slow_s=slow_s), strict=True))
    assert found == {name: digest.hex() for name, digest in naive.samples(Path(files[0].file.where).parent).items()}
    hashed = hash_tensors(files, jobs=2)
    assert found == dict(zip(names, (payload.sample for payload in hashed), strict=True))


def test_few_bytes_are_read(files: list[WeightFile]) -> None:
    """A change outside of the samples shows in the full digest alone: so nothing else was read."""
    (tensor,) = [tensor for tensor in files[0].tensors if tensor.size_bytes == SIZES[-1]]
    places = naive.places(tensor.name, tensor.dtype, list(tensor.shape), tensor.size_bytes)
    outside = next(n for n in range(tensor.size_bytes) if not any(begin <= n < begin + size for begin, size in places))
    before, before_full = sample_tensors(files[:1], jobs=1), hash_tensors(files[:1], jobs=1)
    path = Path(files[0].file.where)
    with path.open("r+b") as file:
        for place in (outside, places[2][0] + 5):
            file.seek(tensor.offset + place)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
            file.flush()
            again = read_safetensors(local_file(path))
            assert (sample_tensors([again], jobs=1) != before) == (place != outside)
            assert [one.digest for one in hash_tensors([again], jobs=1)] != [one.digest for one in before_full]


def test_small_tensors_that_lie_side_by_side_are_read_together_in_bounded_runs(files: list[WeightFile]) -> None:
    """Eight hundred kilobytes of them: neither a request for each, nor a buffer for all."""
    remote = Remote(Path(files[2].file.where).read_bytes())
    with remote.open() as reader:
        assert tuple(sample_file(read_safetensors(remote), reader)) == sample_tensors(files[2:], jobs=1)
    sizes = [end - begin for begin, end in remote.asked]
    assert max(sizes) <= HEAD_BYTES == 256 * 1024
    assert len(sizes) < 8


def test_progress_counts_files(files: list[WeightFile]) -> None:
    events: list[ProgressEvent] = []
    sample_tensors(files, jobs=2, slow_s=0.0, progress=events.append)
    assert [(event.done, event.total, event.unit) for event in events] == [
        (1, 3, "files"),
        (2, 3, "files"),
        (3, 3, "files"),
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_written_to_meanwhile_is_an_error(files: list[WeightFile], jobs: int) -> None:
    with Path(files[1].file.where).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xaa")
    os.utime(files[1].file.where, ns=(0, 0))  # the change must show even where the clock is coarse
    with pytest.raises(InputError, match=r"1\.safetensors: the file changed while it was read"):
        sample_tensors(files, jobs=jobs, slow_s=0.0)


def test_a_file_cut_off_names_the_tensor(files: list[WeightFile]) -> None:
    """Between the look at the file and the read: the reader meets the end."""
    file = files[0]
    with file.file.open() as reader:
        os.truncate(file.file.where, file.tensors[3].offset + 10)
        with pytest.raises(DamagedFile, match=r"reading tensor 't0.* from .*: the file became shorter"):
            sample_file(file, reader)
