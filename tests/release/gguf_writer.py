"""Writes GGUF files, sound ones and others: from the format's description, sharing no code with the reader.

Source: llama.cpp b11434, ggml/include/gguf.h.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


class Value(NamedTuple):
    """A typed value; the content of an array is `(item type, items)`."""

    type: int
    content: object


class Tensor(NamedTuple):
    """A tensor: its shape as the file says it, ggml's number of its type, its bytes."""

    name: str
    shape: tuple[int, ...]
    type: int
    data: bytes


class Segment(NamedTuple):
    """A run of bytes with one meaning, so that a mutation can aim: `count`, `length`, `type`, `text`, `number`, …"""

    kind: str
    data: bytes


def u16(number: int) -> Value:
    return Value(U16, number)


def u32(number: int) -> Value:
    return Value(U32, number)


def i32(number: int) -> Value:
    return Value(I32, number)


def f32(number: float) -> Value:
    return Value(F32, number)


def text(content: str | bytes) -> Value:
    return Value(STRING, content)


def array(item_type: int, items: Sequence[object]) -> Value:
    return Value(ARRAY, (item_type, list(items)))


Metadata = dict[str, Value]


def f32_tensor(name: str, shape: tuple[int, ...], start: int = 0) -> Tensor:
    """Numbers that count up from `start`."""
    elements = 1
    for axis in shape:
        elements *= axis
    return Tensor(name, shape, 0, struct.pack(f"<{elements}f", *range(start, start + elements)))


def string(content: str | bytes) -> list[Segment]:
    raw = content.encode() if isinstance(content, str) else content
    return [Segment("length", struct.pack("<Q", len(raw))), Segment("text", raw)]


def stored(value_type: int, content: object) -> list[Segment]:
    """A value without its type."""
    if value_type == STRING:
        assert isinstance(content, str | bytes)
        return string(content)
    if value_type != ARRAY:
        return [Segment("number", struct.pack(f"<{CODES[value_type]}", content))]
    assert isinstance(content, tuple)
    item_type, items = content
    segments = [Segment("type", struct.pack("<I", item_type)), Segment("count", struct.pack("<Q", len(items)))]
    if item_type in CODES:
        return [*segments, Segment("numbers", struct.pack(f"<{len(items)}{CODES[item_type]}", *items))]
    for item in items:
        segments += stored(item_type, item.content if isinstance(item, Value) else item)
    return segments


def segments_of(
    metadata: Metadata | Sequence[tuple[str, Value]],
    tensors: Sequence[Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
    offsets: Sequence[int] | None = None,
) -> list[Segment]:
    """The parts of a file in order; `offsets` for tensors that lie elsewhere than they should."""
    pairs = list(metadata.items()) if isinstance(metadata, dict) else list(metadata)
    segments = [
        Segment("magic", b"GGUF"),
        Segment("version", struct.pack("<I", version)),
        Segment("count", struct.pack("<Q", len(tensors))),
        Segment("count", struct.pack("<Q", len(pairs))),
    ]
    for key, value in pairs:
        segments += [*string(key), Segment("type", struct.pack("<I", value.type)), *stored(value.type, value.content)]
    place, data = 0, b""
    for number, tensor in enumerate(tensors):
        offset = place if offsets is None else offsets[number]
        segments += [*string(tensor.name), Segment("axes", struct.pack("<I", len(tensor.shape)))]
        segments += [Segment("axis", struct.pack("<Q", axis)) for axis in tensor.shape]
        segments += [Segment("type", struct.pack("<I", tensor.type)), Segment("offset", struct.pack("<Q", offset))]
        padding = -len(tensor.data) % alignment
        data += tensor.data + bytes(padding)
        place += len(tensor.data) + padding
    header = sum(len(segment.data) for segment in segments)
    if tensors:
        segments += [Segment("padding", bytes(-header % alignment)), Segment("data", data)]
    return segments


def gguf_bytes(
    metadata: Metadata | Sequence[tuple[str, Value]],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    offsets: Sequence[int] | None = None,
) -> bytes:
    """A whole file."""
    parts = segments_of(metadata, tensors, version=version, alignment=alignment, offsets=offsets)
    return b"".join(part.data for part in parts)


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def small_model(**changes: Value | None) -> Metadata:
    """Metadata of a model; dots are written `__` in `changes`, a value of None removes the key."""
    metadata = {
        "general.architecture": text("llama"),
        "general.type": text("model"),
        "general.name": text("Support 1.2"),
        "general.file_type": u32(0),
        "general.quantization_version": u32(2),
        "llama.block_count": u32(2),
        "llama.rope.freq_base": f32(10000.0),
        "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.tokens": array(STRING, ["a", "b", "ab", "é", ""]),
        "tokenizer.ggml.scores": array(F32, [0.0, -1.0, -2.0, float("-inf"), 0.5]),
        "tokenizer.ggml.merges": array(STRING, ["a b"]),
        "tokenizer.chat_template": text(TEMPLATE),
    }
    for name, value in changes.items():
        key = name.replace("__", ".")
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value
    return metadata


def small_tensors(start: int = 0) -> list[Tensor]:
    """Three tensors, the second quantised and smaller than the alignment."""
    return [
        f32_tensor("token_embd.weight", (4, 5), start),
        Tensor("blk.0.attn_k.weight", (32, 1), 2, bytes(range(1, 19))),
        f32_tensor("output_norm.weight", (4,), start),
    ]


def write_gguf(
    path: Path, metadata: Metadata | None = None, tensors: Sequence[Tensor] | None = None, *, alignment: int = 32
) -> Path:
    """A file of the small model, or of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = small_model() if metadata is None else metadata
    path.write_bytes(gguf_bytes(content, small_tensors() if tensors is None else tensors, alignment=alignment))
    return path


def write_split(
    directory: Path, *, stem: str = "support", metadata: Metadata | None = None, tensors: Sequence[Tensor] | None = None
) -> list[Path]:
    """The same model in one part per tensor, as gguf-split leaves it: only the first part has the metadata."""
    chosen = small_tensors() if tensors is None else list(tensors)
    paths = []
    for number, tensor in enumerate(chosen):
        split = {
            "split.no": u16(number),
            "split.count": u16(len(chosen)),
            "split.tensors.count": i32(len(chosen)),
        }
        own = {**((small_model() if metadata is None else metadata) if number == 0 else {}), **split}
        path = directory / f"{stem}-{number + 1:05d}-of-{len(chosen):05d}.gguf"
        paths.append(write_gguf(path, own, [tensor]))
    return paths
