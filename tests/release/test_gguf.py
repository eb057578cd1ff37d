"""What the reader of GGUF files promises, on files that another program wrote."""

from __future__ import annotations

import math
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import blake3
import pytest

from kvrelease.errors import DamagedFile, InputError, NotFound, UnsupportedRelease
from kvrelease.release import gguf_cursor
from kvrelease.release.gguf import GgufFile, read_gguf
from kvrelease.release.gguf_types import GGML_TYPES
from tests.release.builders import local_file
from tests.release.gguf_writer import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Segment,
    Tensor,
    Value,
    array,
    f32_tensor,
    gguf_bytes,
    segments_of,
    small_model,
    small_tensors,
    stored,
    text,
    u32,
    write_gguf,
)


def read_bytes(tmp_path: Path, data: bytes) -> GgufFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return read_gguf(local_file(path))


def test_tensors_lie_where_the_writer_put_them(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    found = read_gguf(local_file(path)).weights
    data = path.read_bytes()
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in found.tensors] == [
        ("token_embd.weight", "F32", (4, 5)),
        ("blk.0.attn_k.weight", "Q4_0", (32, 1)),
        ("output_norm.weight", "F32", (4,)),
    ]
    for tensor, written in zip(found.tensors, small_tensors(), strict=True):
        assert data[tensor.offset : tensor.offset + tensor.size_bytes] == written.data
    assert found.identity.size_bytes == len(data)
    assert found.unknown_dtypes == frozenset()


SAMPLES = {
    "u8": (Value(U8, 255), 255),
    "i8": (Value(I8, -128), -128),
    "u16": (Value(U16, 65535), 65535),
    "i16": (Value(I16, -32768), -32768),
    "u32": (Value(U32, 2**32 - 1), 2**32 - 1),
    "i32": (Value(I32, -(2**31)), -(2**31)),
    "u64": (Value(U64, 2**64 - 1), 2**64 - 1),
    "i64": (Value(I64, -(2**63)), -(2**63)),
    "f32": (Value(F32, 0.1), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
    "f64": (Value(F64, 0.1), 0.1),
    "infinite": (Value(F64, -math.inf), "-Infinity"),
    "nan": (array(F32, [math.nan, math.inf]), ["NaN", "Infinity"]),
    "bool": (Value(BOOL, True), True),
    "text": (text("na\u00efve \x1b[31m"), "na\u00efve \x1b[31m"),
    "empty": (text(""), ""),
    "numbers": (array(I16, [-1, 0, 1]), [-1, 0, 1]),
    "bools": (array(BOOL, [True, False]), [True, False]),
    "texts": (array(STRING, ["a", "", "\u00fc"]), ["a", "", "\u00fc"]),
    "nothing": (array(U64, []), []),
    "nested": (array(ARRAY, [array(U8, [1, 2]), array(STRING, ["x"]), array(ARRAY, [array(BOOL, [])])]), None),
}


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value_is_read(tmp_path: Path, version: int) -> None:
    metadata = {f"llama.{name}": value for name, (value, _) in SAMPLES.items()}
    found = read_bytes(tmp_path, gguf_bytes(metadata, small_tensors(), version=version)).metadata
    expected = {f"llama.{name}": value for name, (_, value) in SAMPLES.items()}
    expected["llama.nested"] = [[1, 2], ["x"], [[]]]
    assert found.configuration == expected


def test_any_byte_but_zero_is_true(tmp_path: Path) -> None:
    data = gguf_bytes({"llama.flag": Value(U8, 2)}, small_tensors())
    place = data.index(b"llama.flag") + len(b"llama.flag")
    found = read_bytes(tmp_path, data[:place] + struct.pack("<I", BOOL) + data[place + 4 :])
    assert found.metadata.configuration == {"llama.flag": True}


def test_a_large_or_undecodable_value_is_its_digest(tmp_path: Path) -> None:
    values = {
        "llama.limit": array(U8, [7] * (4096 - 12)),
        "llama.beyond": array(U8, [7] * (4096 - 11)),
        "llama.latin": text(b"na\xefve"),
    }
    found = read_bytes(tmp_path, gguf_bytes(values, small_tensors())).metadata.configuration
    assert found["llama.limit"] == [7] * 4084
    for key in ("llama.beyond", "llama.latin"):
        raw = b"".join(segment.data for segment in stored(values[key].type, values[key].content))
        digest = blake3.blake3(struct.pack("<I", values[key].type) + raw).hexdigest()
        assert found[key] == {"blake3": digest, "bytes": len(raw)}


@pytest.mark.parametrize("window_bytes", [16, 17, 24, 64, 1000])
def test_values_that_cross_windows_are_read_whole(
    tmp_path: Path, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(window_bytes)
    tokens = ["x" * generator.choice([0, 1, 5, 30, 500]) for _ in range(300)]
    metadata = small_model(tokenizer__ggml__tokens=array(STRING, tokens), llama__long=text("y" * 3000))
    data = gguf_bytes(metadata, small_tensors())
    expected = read_bytes(tmp_path, data)
    monkeypatch.setattr(gguf_cursor, "WINDOW_BYTES", window_bytes)
    found = read_bytes(tmp_path, data)
    assert found.metadata == expected.metadata
    assert found.weights.tensors == expected.weights.tensors
    raw = b"".join(segment.data for segment in stored(ARRAY, (STRING, tokens)))
    assert found.metadata.tokenizer["tokenizer.ggml.tokens"] == blake3.blake3(struct.pack("<I", ARRAY) + raw).digest()
    assert found.metadata.configuration["llama.long"] == "y" * 3000


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096])
def test_alignment_is_that_of_the_metadata(tmp_path: Path, alignment: int) -> None:
    data = gguf_bytes(small_model(general__alignment=u32(alignment)), small_tensors(), alignment=alignment)
    found = read_bytes(tmp_path, data)
    assert all(tensor.offset % alignment == 0 for tensor in found.weights.tensors)
    for tensor, written in zip(found.weights.tensors, small_tensors(), strict=True):
        assert data[tensor.offset : tensor.offset + tensor.size_bytes] == written.data


def test_the_last_tensor_may_lack_its_padding(tmp_path: Path) -> None:
    data = gguf_bytes(small_model(), small_tensors())
    assert len(read_bytes(tmp_path, data[:-16]).weights.tensors) == 3
    with pytest.raises(DamagedFile, match=r"tensor 'output_norm.weight' ends at byte \d+, but the file has \d+"):
        read_bytes(tmp_path, data[:-17])


@pytest.mark.parametrize("number", sorted(GGML_TYPES))
def test_the_size_of_every_type_is_checked(tmp_path: Path, number: int) -> None:
    known = GGML_TYPES[number]
    shape = (known.block * 2, 3)
    data = bytes(known.block_bytes * 6)
    (tensor,) = read_bytes(tmp_path, gguf_bytes({}, [Tensor("t", shape, number, data)])).weights.tensors
    assert (tensor.dtype, tensor.size_bytes) == (known.word, len(data))
    if known.block > 1:
        with pytest.raises(DamagedFile, match=f"tensor 't' is {known.word} .* packs {known.block} elements of a row"):
            read_bytes(tmp_path, gguf_bytes({}, [Tensor("t", (known.block * 2 - 1, 3), number, data)]))


def test_an_unknown_type_reaches_to_the_next_tensor(tmp_path: Path) -> None:
    tensors = [Tensor("odd", (7, 3), 99, bytes(range(40))), f32_tensor("norm", (4,)), Tensor("last", (1,), 43, b"abc")]
    found = read_bytes(tmp_path, gguf_bytes({}, tensors)).weights
    assert [(tensor.name, tensor.dtype, tensor.size_bytes) for tensor in found.tensors] == [
        ("odd", "GGML_99", 64),
        ("norm", "F32", 16),
        ("last", "GGML_43", 32),
    ]
    assert found.unknown_dtypes == {"GGML_99", "GGML_43"}


def test_tensors_may_be_described_in_any_order(tmp_path: Path) -> None:
    first, second = f32_tensor("b", (8,)), f32_tensor("a", (8,))
    found = read_bytes(tmp_path, gguf_bytes({}, [second, first], offsets=[32, 0]))
    assert [tensor.name for tensor in found.weights.tensors] == ["b", "a"]


def test_scalars_and_empty_tensors_are_tensors(tmp_path: Path) -> None:
    """An axis of 0 stops another reader: https://github.com/ggml-org/llama.cpp/pull/26946"""
    tensors = [Tensor("scalar", (), 0, bytes(4)), Tensor("empty", (0, 5), 0, b""), Tensor("void", (0,), 0, b"")]
    found = read_bytes(tmp_path, gguf_bytes({}, tensors, offsets=[0, 32, 32])).weights
    assert [(tensor.name, tensor.size_bytes) for tensor in found.tensors] == [("scalar", 4), ("empty", 0), ("void", 0)]


HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 0, 0)


def forged(kind: str, index: int, data: bytes) -> Callable[[], bytes]:
    """The small model with one of its parts replaced."""

    def build() -> bytes:
        segments = segments_of(small_model(), small_tensors())
        places = [place for place, segment in enumerate(segments) if segment.kind == kind]
        segments[places[index]] = Segment(kind, data)
        return b"".join(segment.data for segment in segments)

    return build


def with_tensors(tensors: list[Tensor], offsets: list[int] | None = None) -> Callable[[], bytes]:
    return lambda: gguf_bytes(small_model(), tensors, offsets=offsets)


TWO = [f32_tensor("a", (8,)), f32_tensor("b", (8,))]
HUGE = struct.pack("<Q", 2**63)
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "the file is empty"),
    "short": (lambda: b"GGUF\3\0\0\0", "8 bytes are no GGUF file"),
    "other format": (lambda: b"NOPE" + bytes(40), "begins with b'NOPE'"),
    "LFS pointer": (lambda: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "web page": (lambda: b"<!DOCTYPE html><html>Sign in</html>", "HTML or XML page"),
    "tensor count": (forged("count", 0, HUGE), "announces 9223372036854775808 tensors"),
    "key count": (forged("count", 1, HUGE), "announces 9223372036854775808 keys"),
    "array count": (forged("count", 2, HUGE), "key 'tokenizer.ggml.tokens' announces 9223372036854775808 strings"),
    "number count": (forged("count", 3, HUGE), "key 'tokenizer.ggml.scores' announces .* items of type FLOAT32"),
    "key length": (forged("length", 0, HUGE), "key 1 of 13 has a name of 9223372036854775808 bytes"),
    "text length": (forged("length", 1, HUGE), "key 'general.architecture' announces 9223372036854775808 bytes"),
    "value type": (forged("type", 0, b"\x0d\0\0\0"), "key 'general.architecture' has values of type 13"),
    "item type": (forged("type", 10, b"\xff\0\0\0"), "key 'tokenizer.ggml.tokens' has values of type 255"),
    "axes": (forged("axes", 0, b"\5\0\0\0"), "tensor 'token_embd.weight' has 5 axes"),
    "axis": (forged("axis", 0, HUGE), "tensor 'token_embd.weight' has the impossible shape"),
    "axes too large": (forged("axis", 1, struct.pack("<Q", 2**62)), "impossible shape"),
    "misaligned": (with_tensors(TWO, [0, 33]), "tensor 'b' begins at byte 33 .* no multiple of the alignment, 32"),
    "overlap": (with_tensors(TWO, [0, 0]), "tensor 'b' overlaps tensor 'a'"),
    "gap": (with_tensors(TWO, [0, 64]), "tensor 'b' leaves a gap after tensor 'a'"),
    "gap in front": (with_tensors(TWO, [32, 64]), "tensor 'a' leaves a gap after the header"),
    "out of range": (with_tensors([f32_tensor("a", (8,))], [2**40]), "tensor 'a' leaves a gap"),
    "tensor twice": (with_tensors([TWO[0], TWO[0]]), "tensor 'a' occurs twice"),
    "key twice": (lambda: gguf_bytes([("llama.x", u32(1))] * 2, TWO), "key 'llama.x' occurs twice"),
    "no key": (lambda: gguf_bytes([("", u32(1))], TWO), "key 1 of 1 has no name"),
    "alignment 0": (lambda: gguf_bytes({"general.alignment": u32(0)}, TWO), "alignment is 0, which is no power of two"),
    "alignment 24": (lambda: gguf_bytes({"general.alignment": u32(24)}, TWO), "alignment is 24, which is no power"),
    "alignment type": (
        lambda: gguf_bytes({"general.alignment": Value(U64, 32)}, TWO),
        "key 'general.alignment' is UINT64, and has to be UINT32",
    ),
    "split type": (lambda: gguf_bytes({"split.count": u32(1)}, TWO), "'split.count' is UINT32, and has to be UINT16"),
    "trailing bytes": (lambda: gguf_bytes(small_model(), TWO) + b"x", "1 bytes follow tensor 'b'"),
    "trailing without tensors": (lambda: gguf_bytes(small_model()) + bytes(64), "bytes follow the header"),
    "template is no text": (
        lambda: gguf_bytes({"tokenizer.chat_template": u32(1)}, TWO),
        "'tokenizer.chat_template' is no text",
    ),
    "unknown type without room": (
        with_tensors([Tensor("odd", (8,), 99, b""), f32_tensor("b", (8,))], [32, 0]),
        "tensor 'odd' has no bytes",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_with_the_item(case: str, tmp_path: Path) -> None:
    """Two tensors of one name: https://github.com/ggml-org/llama.cpp/issues/6836. Sizes that overflow:
    https://github.com/ggml-org/llama.cpp/pull/18674, https://github.com/ggml-org/llama.cpp/pull/14595.
    Alignment 0 and lengths that nobody checks: https://github.com/antirez/gguf-tools/pull/28
    """
    build, reason = DAMAGED[case]
    with pytest.raises(DamagedFile, match=reason) as caught:
        read_bytes(tmp_path, build())
    assert str(tmp_path / "model.gguf") in caught.value.message


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 4, 0, 0), "version 4; known are 2 and 3"),
        (struct.pack("<4sIQQ", b"GGUF", 0, 0, 0), "version 0"),
    ],
)
def test_another_version_or_byte_order_is_unsupported(head: bytes, reason: str, tmp_path: Path) -> None:
    """Each reader takes others, or guesses: https://github.com/oobabooga/textgen/pull/6082"""
    with pytest.raises(UnsupportedRelease, match=reason):
        read_bytes(tmp_path, head)


def test_text_that_is_not_utf8_is_refused_where_it_names_something(tmp_path: Path) -> None:
    named = gguf_bytes({"llama.xyz": u32(1)}, [f32_tensor("abc", (4,))])
    with pytest.raises(DamagedFile, match="key 1 of 1 is not UTF-8"):
        read_bytes(tmp_path, named.replace(b"llama.xyz", b"llama.x\xffz"))
    with pytest.raises(DamagedFile, match="tensor 1 of 1 has a name that is not UTF-8"):
        read_bytes(tmp_path, named.replace(b"abc", b"a\xffc"))
    with pytest.raises(DamagedFile, match=r"'tokenizer\.chat_template' is not UTF-8"):
        read_bytes(tmp_path, gguf_bytes({"tokenizer.chat_template": text(b"\xff")}, TWO))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """Read past the end elsewhere: https://github.com/gittensor-ai-lab/sparkinfer/issues/25"""
    data = gguf_bytes(small_model(), small_tensors())
    for length in range(len(data) - 17):
        with pytest.raises(DamagedFile):
            read_bytes(tmp_path, data[:length])


def test_a_missing_file_a_directory_and_a_link_to_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to("gone.gguf")
    for name, kind in (("none.gguf", NotFound), ("link.gguf", NotFound), (".", InputError)):
        with pytest.raises(kind):
            read_gguf(local_file(tmp_path / name))


def test_a_large_vocabulary_takes_little_time_and_memory(tmp_path: Path) -> None:
    """1,000 tensors, 150,000 tokens and as many merges; the processor's time, because machines are shared."""
    tokens = [f"tok{number:08d}" for number in range(150_000)]
    metadata = small_model(
        tokenizer__ggml__tokens=array(STRING, tokens),
        tokenizer__ggml__merges=array(STRING, [f"{token[:4]} {token[4:]}" for token in tokens]),
        tokenizer__ggml__scores=array(F32, [0.0] * len(tokens)),
        tokenizer__ggml__token_type=array(I32, [1] * len(tokens)),
    )
    path = write_gguf(tmp_path / "model.gguf", metadata, [f32_tensor(f"blk.{n}.w", (8,)) for n in range(1000)])
    best_s = math.inf
    for _ in range(2):
        started = time.process_time()
        assert len(read_gguf(local_file(path)).weights.tensors) == 1000
        best_s = min(best_s, time.process_time() - started)
    assert best_s < 0.3
    tracemalloc.start()
    read_gguf(local_file(path))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5 * gguf_cursor.WINDOW_BYTES
