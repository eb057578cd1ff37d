from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.errors import UnexpectedReply
from kvrelease.release.hashing import hash_tensors
from kvrelease.release.range_reader import HEAD_BYTES, REMOTE_CHUNK_BYTES
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.source import read_range
from tests.release.builders import local_file
from tests.release.remote_file import Remote


def test_the_front_is_fetched_once() -> None:
    remote = Remote(bytes(range(256)) * 8000)
    with remote.open() as reader:
        assert read_range(reader, 0, 64) == remote.data[:64]
        assert read_range(reader, 8, 5000) == remote.data[8:5008]
        assert read_range(reader, HEAD_BYTES - 10, 20) == remote.data[HEAD_BYTES - 10 : HEAD_BYTES + 10]
    assert remote.asked == [(0, HEAD_BYTES), (HEAD_BYTES - 10, HEAD_BYTES + 10)]


def test_nothing_behind_the_end_is_asked_for() -> None:
    remote = Remote(b"abc")
    with remote.open() as reader:
        assert read_range(reader, 1, 100) == b"bc"
        assert read_range(reader, 3, 1) == b""
    assert remote.asked == [(0, 3)]


def test_a_short_answer_is_an_error_and_not_the_end() -> None:
    with Remote(b"abcdef", served=4).open() as reader, pytest.raises(UnexpectedReply, match="4 of 6 bytes came"):
        read_range(reader, 0, 6)


def test_a_tensor_of_any_size_is_read_in_ranges_of_one_size(tmp_path: Path) -> None:
    """Memory does not grow with the model: https://github.com/run-ai/runai-model-streamer/issues/34"""
    path = tmp_path / "model.safetensors"
    save_file({"big": np.arange(3 * REMOTE_CHUNK_BYTES + 5, dtype=np.uint8), "small": np.ones(3, np.uint8)}, path)
    remote = Remote(path.read_bytes())
    far = read_safetensors(remote)
    near = read_safetensors(local_file(path))
    assert hash_tensors([far], jobs=2) == hash_tensors([near], jobs=2)
    assert max(end - offset for offset, end in remote.asked) == REMOTE_CHUNK_BYTES
    header = json.loads(remote.data[8 : 8 + int.from_bytes(remote.data[:8], "little")])
    total = sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in header.values())
    assert sum(end - offset for offset, end in remote.asked) <= total + 2 * HEAD_BYTES
