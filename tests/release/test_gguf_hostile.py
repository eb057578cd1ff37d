"""The reader of GGUF files against files that somebody made to break it.

The loop over numbered cases, and how to let it run for ten minutes: `tests/release/hostile.py`.
"""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kvrelease import artifacts
from kvrelease.errors import DamagedFile, InputError, UnsupportedRelease
from kvrelease.release import gguf, gguf_cursor
from kvrelease.release.address import open_source
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.gguf import read_gguf
from kvrelease.release.gguf_model import read_gguf_model
from kvrelease.release.loading import load_release
from kvrelease.release.weights import WeightFile
from tests.release.builders import local_file
from tests.release.gguf_writer import (
    ARRAY,
    STRING,
    U64,
    f32_tensor,
    gguf_bytes,
    text,
    u32,
    write_gguf,
)
from tests.release.hostile import run_cases
from tests.release.hostile_gguf import mutate, random_file

# No fault of the reader: the loop had counted earlier cases too. The first few hundred run every time besides.
KEPT_SEEDS: tuple[int, ...] = (135_507,)
UNIT_CASES = 400

# The files have some KB, and hashing takes a window of its own; more was allocated because a file said so.
MAX_PEAK_BYTES = 3 * gguf_cursor.WINDOW_BYTES


def assert_sound(weights: WeightFile, data: bytes) -> None:
    """What is accepted keeps every promise of the reader."""
    end = 0
    for tensor in weights.tensors:
        assert end <= tensor.offset <= tensor.offset + tensor.size_bytes <= len(data), tensor
        assert len(tensor.shape) <= 4
        end = tensor.offset + tensor.size_bytes
    assert len({tensor.name for tensor in weights.tensors}) == len(weights.tensors)


def test_whatever_a_file_claims_it_is_sound_or_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"

    def run_case(seed: int) -> str:
        generator = random.Random(seed)
        data = mutate(random_file(generator), generator)
        path.write_bytes(data)
        assert_sound(read_gguf(local_file(path)).weights, data)
        try:
            found = load_release(path, jobs=1)
        except InputError:
            return "sound"
        assert artifacts.from_json(artifacts.to_json(found).encode(), Fingerprint, source="memory") == found
        return "release"

    outcomes = run_cases(run_case, kept=KEPT_SEEDS, unit_cases=UNIT_CASES, max_peak_bytes=MAX_PEAK_BYTES)
    # Else the mutations miss the format, or nothing gets past the first check.
    assert min(outcomes[word] for word in ("release", "damaged", "unsupported")) > 0.01 * UNIT_CASES


def huge(path: Path, head: bytes) -> Path:
    """A file of a terabyte, of which only the head takes space."""
    path.write_bytes(head)
    os.truncate(path, 2**40)
    return path


def head_of(*, tensors: int = 0, keys: int = 0, pairs: bytes = b"") -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, keys) + pairs


def array_head(item_type: int, count: int) -> bytes:
    key = b"tokenizer.ggml.tokens"
    return struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", ARRAY, item_type, count)


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "strings": (lambda: head_of(keys=1, pairs=array_head(STRING, 2**36)), "beyond the first 2000000 bytes"),
    "numbers": (lambda: head_of(keys=1, pairs=array_head(U64, 2**36)), "beyond the first 2000000 bytes"),
    "one string": (lambda: head_of(keys=1, pairs=array_head(STRING, 1) + struct.pack("<Q", 2**39)), "beyond the first"),
    "arrays": (lambda: head_of(keys=1, pairs=array_head(ARRAY, 2**36)), "more than 65536 arrays inside arrays"),
    "keys": (lambda: head_of(keys=2**36), "announces 68719476736 keys"),
    "tensors": (lambda: head_of(tensors=2**35), "announces 34359738368 tensors"),
    "names": (lambda: head_of(keys=60_000, pairs=struct.pack("<Q", 2**20)), "has a name of 1048576 bytes"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_terabyte_that_claims_much_takes_little(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that nobody bounds ask for gigabytes: https://github.com/ggml-org/llama.cpp/issues/25378"""
    build, reason = BOMBS[case]
    path = huge(tmp_path / "bomb.gguf", build())
    monkeypatch.setattr(gguf_cursor, "MAX_HEADER_BYTES", 2_000_000)
    tracemalloc.start()
    try:
        with pytest.raises((DamagedFile, UnsupportedRelease), match=reason):
            read_gguf(local_file(path))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5 * gguf_cursor.WINDOW_BYTES


def test_memory_is_bounded_by_the_number_of_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty ones with the longest names: what costs most. As many as are allowed take less than 200 MiB."""
    count = 4096
    monkeypatch.setattr(gguf, "MAX_TENSORS", count)
    empty = struct.pack("<IQIQ", 1, 0, 0, 0)
    entries = b"".join(struct.pack("<Q", 255) + f"{n:0255d}".encode() + empty for n in range(count + 1))
    path = tmp_path / "many.gguf"
    path.write_bytes(head_of(tensors=count) + entries[: count * 287] + bytes(-(24 + count * 287) % 32))
    tracemalloc.start()
    try:
        assert len(read_gguf(local_file(path)).weights.tensors) == count
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (peak_bytes - 3 * gguf_cursor.WINDOW_BYTES) / count * 131_072 < 200 * 2**20
    path.write_bytes(head_of(tensors=count + 1) + entries)
    with pytest.raises(UnsupportedRelease, match="announces 4097 tensors; the limit is 4096"):
        read_gguf(local_file(path))


def test_as_many_tensors_as_unmerged_experts_need_are_allowed() -> None:
    assert gguf.MAX_TENSORS == 131_072


def test_a_name_with_terminal_codes_is_quoted_in_messages(tmp_path: Path) -> None:
    tensors = [f32_tensor("\x1b[2J\x1b[31mowned", (8,)), f32_tensor("b", (8,))]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes({}, tensors, offsets=[0, 0]))
    with pytest.raises(DamagedFile) as caught:
        read_gguf(local_file(path))
    assert caught.value.message.isprintable()
    path = write_gguf(tmp_path / "model.gguf", {"\x1b[2J": u32(1), "general.type": text("\x1b[2J")}, tensors)
    with pytest.raises(UnsupportedRelease) as refused:
        read_gguf_model(open_source(path))
    assert refused.value.message.isprintable()
