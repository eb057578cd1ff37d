from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.errors import DamagedFile, InputError
from kvrelease.progress import ProgressEvent
from kvrelease.release.hashing import default_jobs, hash_tensors
from kvrelease.release.local_source import CHUNK_BYTES
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.weights import WeightFile
from kvrelease.release.workers import Stopped, pause
from tests.release import naive
from tests.release.builders import local_file


@pytest.fixture
def large(tmp_path: Path) -> WeightFile:
    """Sizes around the chunk: below, exactly, one more, several."""
    generator = np.random.default_rng(3)
    sizes = {"a": 10, "b": CHUNK_BYTES, "c": CHUNK_BYTES + 1, "d": 3 * CHUNK_BYTES - 1, "e": 0}
    path = tmp_path / "model.safetensors"
    save_file({name: generator.integers(0, 255, size, np.uint8) for name, size in sizes.items()}, path)
    return read_safetensors(local_file(path))


def path_of(file: WeightFile) -> Path:
    return Path(file.file.where)


def digests(file: WeightFile, jobs: int = 2) -> dict[str, str]:
    payloads = hash_tensors([file], jobs=jobs)
    return {tensor.name: payload.digest for tensor, payload in zip(file.tensors, payloads, strict=True)}


def test_streamed_digest_is_that_of_the_whole_bytes(large: WeightFile) -> None:
    expected = {name: digest.hex() for name, digest in naive.payloads(path_of(large).parent).items()}
    assert digests(large, jobs=1) == expected
    assert digests(large, jobs=4) == expected


def test_dtype_and_shape_are_part_of_the_digest(tmp_path: Path) -> None:
    """https://github.com/sgl-project/sglang/issues/25462"""
    values = np.arange(6, dtype=np.int16)
    same_bytes = {"a": values, "b": values.reshape(2, 3), "c": values.view(np.uint16), "d": values.reshape(3, 2)}
    save_file(same_bytes, tmp_path / "model.safetensors")
    assert len(set(digests(read_safetensors(local_file(tmp_path / "model.safetensors"))).values())) == 4


def test_where_one_tensor_ends_and_the_next_begins_is_part_of_the_digest(tmp_path: Path) -> None:
    """The same bytes, split elsewhere: https://github.com/sgl-project/sglang/issues/25462"""
    values = np.arange(12, dtype=np.uint8)
    found = []
    for cut in (4, 8):
        path = tmp_path / f"{cut}.safetensors"
        save_file({"a": values[:cut].copy(), "b": values[cut:].copy()}, path)
        found.append(digests(read_safetensors(local_file(path))))
    assert not set(found[0].values()) & set(found[1].values())


def test_progress_counts_every_byte_once(large: WeightFile) -> None:
    events: list[ProgressEvent] = []
    hash_tensors([large], jobs=3, progress=events.append)
    total = sum(tensor.size_bytes for tensor in large.tensors)
    done = [event.done for event in events]
    assert done == sorted(set(done))
    assert events[-1] == ProgressEvent(stage="hashing", done=total, total=total, unit="bytes")


def test_zero_is_told_from_almost_zero(tmp_path: Path) -> None:
    almost = np.zeros(2 * CHUNK_BYTES, np.uint8)
    almost[-1] = 1
    tensors = {"a": np.zeros(2 * CHUNK_BYTES, np.uint8), "b": almost, "nothing": np.zeros((0, 4), np.uint8)}
    save_file(tensors, tmp_path / "m.safetensors")
    file = read_safetensors(local_file(tmp_path / "m.safetensors"))
    payloads = zip(file.tensors, hash_tensors([file], jobs=2), strict=True)
    assert {tensor.name: payload.is_zero for tensor, payload in payloads} == {"a": True, "b": False, "nothing": False}


def test_file_written_to_while_it_is_read_is_an_error(large: WeightFile) -> None:
    done = threading.Event()

    def write_once(_: ProgressEvent) -> None:
        if not done.is_set():
            done.set()
            with path_of(large).open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\xaa")
            os.utime(path_of(large), ns=(0, 0))  # the change must show even where the clock is coarse

    with pytest.raises(InputError, match="changed while it was read"):
        hash_tensors([large], jobs=1, progress=write_once)


def test_file_replaced_since_its_header_was_read_is_an_error_before_a_byte_is_hashed(large: WeightFile) -> None:
    events: list[ProgressEvent] = []
    copy = path_of(large).with_suffix(".copy")
    copy.write_bytes(path_of(large).read_bytes())
    copy.replace(path_of(large))
    with pytest.raises(InputError, match="changed while it was read"):
        hash_tensors([large], jobs=1, progress=events.append)
    assert events == []


def test_file_cut_off_while_it_is_read_names_the_tensor(large: WeightFile) -> None:
    def cut(_: ProgressEvent) -> None:
        os.truncate(path_of(large), 1000)

    with pytest.raises(DamagedFile, match=r"reading tensor '.' from .*: the file became shorter"):
        hash_tensors([large], jobs=1, progress=cut)


def test_an_interrupt_in_the_callback_ends_all_threads(large: WeightFile) -> None:
    """The other thread is told while it waits in its own call, and hashes nothing more."""
    calls: list[ProgressEvent] = []

    def interrupt(event: ProgressEvent) -> None:
        calls.append(event)
        if len(calls) == 1:
            raise KeyboardInterrupt
        with contextlib.suppress(Stopped):
            pause(600.0)

    with pytest.raises(KeyboardInterrupt):
        hash_tensors([large], jobs=2, progress=interrupt)
    assert not [thread for thread in threading.enumerate() if thread.name == "kvrelease-worker"]
    assert len(calls) <= 2


def test_who_asks_for_no_number_of_threads_gets_one_for_each_core_and_eight_for_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store is waited for, not computed; and not every system tells the cores that a process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert (default_jobs(), default_jobs(is_remote=True)) == (3, 8)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert default_jobs() == 8
    for count, expected in ((4, 4), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert default_jobs() == expected


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    """A shell allows 256 on some systems, and a release has hundreds of shards."""
    files = []
    for number in range(40):
        path = tmp_path / f"{number}.safetensors"
        save_file({"a": np.full(9, number, np.uint8), "b": np.full(99, number, np.uint8)}, path)
        files.append(read_safetensors(local_file(path)))
    with descriptors_left(4):  # three that are read, and one that was
        payloads = hash_tensors(files, jobs=3)
    assert payloads == tuple(payload for file in files for payload in hash_tensors([file], jobs=1))


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """The system refuses this process one more open file than `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(link.name) for link in Path("/proc/self/fd").iterdir()}
    free = [number for number in range(max(used) + count + 2) if not Path(f"/proc/self/fd/{number}").exists()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
