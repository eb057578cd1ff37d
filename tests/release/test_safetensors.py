from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, InputError, NotFound, UnsupportedRelease
from kvrelease.release.safetensors import read_safetensors
from tests.release.builders import entry, local_file, raw_safetensors

GOOD = raw_safetensors({"a": entry(0, 4), "b": entry(4, 6)}, b"abcdef")

DAMAGED = {
    "empty": (b"", "the file is empty"),
    "short": (b"abc", "3 bytes are no safetensors file"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    "html": (b"\n<!DOCTYPE html><html>not found</html>", "HTML or XML page"),
    "xml error": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "HTML or XML page"),
    "json error": (b'{"error": "gated repository, please log in"}', "no JSON header"),
    "truncated header": (GOOD[:20], "announces a header of"),
    "huge header": ((2**63).to_bytes(8, "little") + b"{", "announces a header of 9223372036854775808"),
    "no json": (raw_safetensors(b"{nonsense}"), "not valid JSON"),
    "deep json": (raw_safetensors(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), "header"),
    "not utf-8": (raw_safetensors(b'{"\xff":{}}'), "not valid JSON"),
    "entry is a number": (raw_safetensors({"k\x1b[2J": 1}), r"tensor 'k\x1b[2J'"),
    "entry without shape": (raw_safetensors({"a": {"dtype": "U8", "data_offsets": [0, 0]}}), "tensor 'a'"),
    "further field": (raw_safetensors({"a": entry(0, 0) | {"extra": []}}), "tensor 'a'"),
    "65 axes": (raw_safetensors({"a": entry(0, 1, shape=[1] * 65)}, b"x"), "tensor 'a'"),
    "three offsets": (raw_safetensors({"a": entry(0, 0) | {"data_offsets": [0, 0, 0]}}), "tensor 'a'"),
    "float offset": (raw_safetensors({"a": entry(0, 0) | {"data_offsets": [0.5, 1.5]}}), "tensor 'a'"),
    "metadata of numbers": (raw_safetensors({"__metadata__": {"a": 1}}), "header"),
    "duplicate": (
        raw_safetensors(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
            b"x",
        ),
        "names 'a' twice",
    ),
    "duplicate field": (
        raw_safetensors(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        "names 'dtype' twice",
    ),
    "duplicate in a padded header": (
        raw_safetensors(
            b'{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}    ',
            b"x",
        ),
        "names 'a' twice",
    ),
    "duplicate under another spelling": (
        raw_safetensors(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
            b"x",
        ),
        "names 'a' twice",
    ),
    "duplicate in the metadata": (
        raw_safetensors(
            b'{"__metadata__":{"a":"1","a":"1"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"
        ),
        "names 'a' twice",
    ),
    "two metadata": (
        raw_safetensors(
            b'{"__metadata__":{},"__metadata__":{},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"
        ),
        "names '__metadata__' twice",
    ),
    "overflowing shape of nothing": (
        raw_safetensors({"a": entry(0, 0, shape=[2**40, 2**40, 0])}),
        "more elements",
    ),
    "overflowing axis of nothing": (raw_safetensors({"a": entry(0, 0, shape=[0, 2**63])}), "impossible shape"),
    "overflowing axis of an unknown dtype": (
        raw_safetensors({"a": entry(0, 1, dtype="X", shape=[2**63])}, b"x"),
        "impossible shape",
    ),
    "second of two alike does not fit": (
        raw_safetensors(
            {"a": entry(0, 4, dtype="F32", shape=[1]), "b": entry(4, 6, dtype="F32", shape=[1])}, b"abcdef"
        ),
        "tensor 'b' is F32 [1], 4 bytes, but its range has 2",
    ),
    "negative offset": (
        raw_safetensors({"a": entry(-1, 1, shape=[2])}, b"xx"),
        "tensor 'a' has the impossible byte range",
    ),
    "reversed": (raw_safetensors({"a": entry(2, 0, shape=[2])}, b"xx"), "tensor 'a' has the impossible byte range"),
    "overflowing offset": (raw_safetensors({"a": entry(0, 2**70, shape=[2])}, b"xx"), "impossible byte range"),
    "overflowing shape": (raw_safetensors({"a": entry(0, 2, shape=[2**40, 2**40])}, b"xx"), "more elements"),
    "negative shape": (raw_safetensors({"a": entry(0, 2, shape=[-1, -2])}, b"xx"), "impossible shape"),
    "overlap": (raw_safetensors({"a": entry(0, 4), "b": entry(2, 6)}, b"abcdef"), "tensor 'b' overlaps tensor 'a'"),
    "alias": (raw_safetensors({"a": entry(0, 4), "b": entry(0, 4)}, b"abcd"), "tensor 'b' overlaps tensor 'a'"),
    "gap": (
        raw_safetensors({"a": entry(0, 2), "b": entry(4, 6)}, b"abcdef"),
        "tensor 'b' leaves a gap after tensor 'a'",
    ),
    "gap at the start": (raw_safetensors({"a": entry(2, 4)}, b"abcd"), "leaves a gap after the header"),
    "truncated data": (GOOD[:-1], "tensor 'b' ends at byte"),
    "trailing bytes": (GOOD + b"x", "1 bytes follow tensor 'b'"),
    "wrong size": (
        raw_safetensors({"a": entry(0, 6, dtype="F32", shape=[2])}, b"abcdef"),
        "tensor 'a' is F32 [2], 8 bytes",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file_is_refused_with_file_and_reason(case: str, tmp_path: Path) -> None:
    """Pointers and pages: https://github.com/microsoft/OmniParser/issues/34,
    https://github.com/huggingface/transformers/issues/27923, https://github.com/safetensors/safetensors/issues/414.
    Cut off, trailing bytes, aliases: https://github.com/paiml/aprender/issues/275,
    https://github.com/Comfy-Org/ComfyUI/issues/15602, https://github.com/ohdearquant/lattice/issues/752,
    https://github.com/ml-explore/mlx/issues/3363, https://github.com/lyogavin/airllm/issues/137. Names and fields
    twice: https://github.com/ggml-org/llama.cpp/issues/1603, https://github.com/safetensors/safetensors/issues/401.
    """
    data, reason = DAMAGED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(DamagedFile) as caught:
        read_safetensors(local_file(path))
    assert str(path) in caught.value.message
    assert reason in caught.value.message
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04archive/data.pkl", "a pickle"),
        (b"\x80\x02}q\x00(X\x01\x00", "a pickle"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
    ],
)
def test_other_formats_under_this_name_are_named(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(UnsupportedRelease, match=reason):
        read_safetensors(local_file(path))


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580, 0x093C])
def test_a_header_whose_length_looks_like_another_formats_magic_is_read(length: int, tmp_path: Path) -> None:
    """A header of 896 bytes begins with the bytes 80 03, as a pickle of protocol 3 does."""
    path = tmp_path / "model.safetensors"
    header = json.dumps({"x": entry(0, 2)}).encode()
    path.write_bytes(raw_safetensors(header.ljust(length), b"\0\0"))
    assert [tensor.name for tensor in read_safetensors(local_file(path)).tensors] == ["x"]


def test_header_over_the_limit_is_told_apart_from_damage(tmp_path: Path) -> None:
    """https://github.com/safetensors/safetensors/issues/668"""
    path = tmp_path / "model.safetensors"
    path.write_bytes(GOOD)
    with pytest.raises(UnsupportedRelease, match="over the limit of 10"):
        read_safetensors(local_file(path), max_header_bytes=10)


def test_missing_file_directory_and_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_safetensors(local_file(tmp_path / "absent.safetensors"))
    with pytest.raises(InputError, match="not a regular file"):
        read_safetensors(local_file(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read_safetensors(local_file(tmp_path / "pipe"))


def test_what_the_library_writes_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(
        {"x": np.zeros((2, 3), np.float16), "scalar": np.array(1.0), "none": np.zeros((0, 4), np.int8)},
        path,
        metadata={"format": "pt"},
    )
    found = {
        tensor.name: (tensor.dtype, tensor.shape, tensor.size_bytes)
        for tensor in read_safetensors(local_file(path)).tensors
    }
    assert found == {"x": ("F16", (2, 3), 12), "scalar": ("F64", (), 8), "none": ("I8", (0, 4), 0)}


def test_unknown_dtype_is_an_opaque_word_and_half_byte_ones_are_checked(tmp_path: Path) -> None:
    """https://github.com/alvarobartt/hf-mem/issues/56, https://github.com/safetensors/safetensors/issues/839,
    https://github.com/foundation-model-stack/fastsafetensors/pull/79
    """
    path = tmp_path / "model.safetensors"
    path.write_bytes(
        raw_safetensors(
            {"a": entry(0, 3, dtype="F3_NEW", shape=[8]), "b": entry(3, 5, dtype="F4", shape=[4])}, b"abcde"
        )
    )
    assert read_safetensors(local_file(path)).unknown_dtypes == {"F3_NEW"}


BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@pytest.mark.parametrize("dtype", BITS)
def test_the_size_of_every_dtype_of_the_format_is_checked(dtype: str, tmp_path: Path) -> None:
    """github.com/huggingface/safetensors, safetensors/src/tensor.rs (`Dtype::bitsize`), 0.8.0."""
    path = tmp_path / "model.safetensors"
    size = 4 * BITS[dtype] // 8
    path.write_bytes(raw_safetensors({"a": entry(0, size, dtype=dtype, shape=[4])}, bytes(size)))
    found = read_safetensors(local_file(path))
    assert (found.tensors[0].size_bytes, found.unknown_dtypes) == (size, frozenset())
    path.write_bytes(raw_safetensors({"a": entry(0, size + 1, dtype=dtype, shape=[4])}, bytes(size + 1)))
    with pytest.raises(DamagedFile, match=rf"tensor 'a' is {dtype} \[4\], {size} bytes"):
        read_safetensors(local_file(path))


def test_as_many_axes_as_torch_allows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw_safetensors({"a": entry(0, 1, shape=[1] * 64)}, b"x"))
    assert len(read_safetensors(local_file(path)).tensors[0].shape) == 64


def test_a_header_in_any_order_is_read_in_the_order_of_the_bytes(tmp_path: Path) -> None:
    """An empty tensor lies before the one that begins where it does, whatever the two are called."""
    path = tmp_path / "model.safetensors"
    header: JsonObject = {"b": entry(4, 8), "z": entry(4, 4), "y": entry(8, 8), "a": entry(0, 4)}
    path.write_bytes(raw_safetensors(header, b"abcdefgh"))
    assert [tensor.name for tensor in read_safetensors(local_file(path)).tensors] == ["a", "z", "b", "y"]


def test_random_bytes_are_an_input_error_or_a_sound_file(tmp_path: Path) -> None:
    """No mutation of a good file may end in anything but our own error."""
    path = tmp_path / "model.safetensors"
    generator = random.Random(7)
    outcomes = set()
    for _ in range(400):
        data = bytearray(GOOD)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(data[: generator.randint(0, len(data))] if generator.random() < 0.2 else data)
        try:
            read_safetensors(local_file(path))
            outcomes.add("read")
        except InputError as error:
            outcomes.add(type(error).__name__)
    assert {"read", "DamagedFile"} <= outcomes
