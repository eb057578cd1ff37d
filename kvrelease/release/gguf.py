"""A GGUF file: which tensor lies where, and what the metadata in front of them say.

Nothing is believed before it is checked against the file's size, and no tensor may overlap another or leave a gap that
alignment does not explain. Source: llama.cpp b11434, ggml/include/gguf.h (layout) and ggml/src/gguf.cpp
(`gguf_init_from_reader`, the checks); docs/gguf.md of github.com/ggml-org/ggml. Little endian, versions 2 and 3, which
share their layout. Big-endian files and version 1 are refused: the engines of these machines refuse them too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from kvrelease.errors import DamagedFile, UnsupportedRelease
from kvrelease.release.gguf_cursor import HeaderCursor
from kvrelease.release.gguf_metadata import Metadata, read_metadata
from kvrelease.release.gguf_types import GGML_TYPES, type_word
from kvrelease.release.source import Reader, SourceFile
from kvrelease.release.stand_in import refuse_stand_in_for_weights
from kvrelease.release.weights import StoredTensor, WeightFile

# A GGUF of DeepSeek-V3 has 1,025 tensors, because experts are stacked; 92,000 if they were not.
MAX_TENSORS = 131_072
_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_AXES = 4  # GGML_MAX_DIMS
_MAX_NAME_BYTES = 255  # ggml ends names at 63, or 127 as stable-diffusion.cpp builds it
_MAX_ELEMENTS = 2**63 - 1
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8

_HEAD = struct.Struct("<4sI")
_COUNTS = struct.Struct("<QQ")
_U32 = struct.Struct("<I")
_TYPE_AND_OFFSET = struct.Struct("<IQ")
_AXES = tuple(struct.Struct(f"<{count}Q") for count in range(_MAX_AXES + 1))


class GgufFile(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file whose header is sound.

    Attributes:
        weights: the file and its tensors. The dtype of a tensor is ggml's name of the type, its shape is in the order
            of the file, the row's length first.
        metadata: what the keys say.
    """

    weights: WeightFile
    metadata: Metadata


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor as the header describes it; `size_bytes` is None where the type is not known."""

    name: str
    type_number: int
    shape: tuple[int, ...]
    offset: int
    size_bytes: int | None


def read_gguf(file: SourceFile) -> GgufFile:
    """Tensors and metadata of a GGUF file, every range checked against the file's size.

    Raises:
        NotFound: no such file.
        DamagedFile: the bytes are not a sound GGUF file; the message names the tensor or the key.
        UnsupportedRelease: another version or byte order, or larger than any model's header.
        InputError: the file cannot be read.
        ServiceError: the store did not answer properly.
    """
    with file.open() as reader:
        return _read(file, reader)


def _read(file: SourceFile, reader: Reader) -> GgufFile:
    cursor = HeaderCursor(reader, where=file.where)
    _check_head(cursor, file.where, reader.identity.size_bytes)
    tensor_count, key_count = cursor.read(_COUNTS)
    metadata = read_metadata(cursor, key_count)
    alignment = _DEFAULT_ALIGNMENT if metadata.alignment is None else metadata.alignment
    if alignment < 1 or alignment & (alignment - 1):
        raise DamagedFile(f"reading {file.where}: general.alignment is {alignment}, which is no power of two")
    entries = _read_entries(cursor, tensor_count, alignment)
    tensors = _locate(
        entries,
        file.where,
        alignment=alignment,
        first_byte=_aligned(cursor.position, alignment),
        file_bytes=reader.identity.size_bytes,
    )
    unknown = frozenset(type_word(entry.type_number) for entry in entries if entry.size_bytes is None)
    weights = WeightFile(file=file, identity=reader.identity, tensors=tensors, unknown_dtypes=unknown)
    return GgufFile(weights=weights, metadata=metadata)


def _check_head(cursor: HeaderCursor, where: str, file_bytes: int) -> None:
    """Magic and version, after a look at what else the file could be."""
    if file_bytes == 0:
        raise DamagedFile(f"reading {where}: the file is empty", hint="copy or download it again")
    if file_bytes < _HEAD.size + _COUNTS.size:
        raise DamagedFile(f"reading {where}: {file_bytes} bytes are no GGUF file", hint="copy or download it again")
    head = cursor.take(_HEAD.size)
    refuse_stand_in_for_weights(head, where=where)
    if not head.startswith(_MAGIC):
        raise DamagedFile(f"reading {where}: not a GGUF file: it begins with {head[:4]!r}, not with {_MAGIC!r}")
    version = int.from_bytes(head[4:], "little")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedRelease(
            f"reading {where}: it is a big-endian GGUF file, which engines on this kind of machine refuse",
            hint="convert it with gguf-py's gguf_convert_endian.py, or give the little-endian file",
        )
    if version == 1:
        raise UnsupportedRelease(
            f"reading {where}: it is GGUF version 1, which llama.cpp refuses since 2023", hint="convert the model again"
        )
    if version not in (2, 3):
        raise UnsupportedRelease(f"reading {where}: it is GGUF version {version}; known are 2 and 3")


def _read_entries(cursor: HeaderCursor, count: int, alignment: int) -> list[_Entry]:
    cursor.item = "its header"
    cursor.require(count, _LEAST_TENSOR_BYTES, what="tensors")
    if count > MAX_TENSORS:
        raise cursor.unsupported(f"announces {count} tensors; the limit is {MAX_TENSORS}")
    entries, seen = [], set()
    for number in range(count):
        cursor.item = f"tensor {number + 1} of {count}"
        raw = cursor.string(max_bytes=_MAX_NAME_BYTES)
        try:
            name = raw.decode()
        except UnicodeDecodeError as error:
            raise cursor.damaged(f"has a name that is not UTF-8 (byte {error.start})") from error
        cursor.item = f"tensor {name!r}"
        if name in seen:
            raise cursor.damaged("occurs twice")
        seen.add(name)
        entries.append(_read_entry(cursor, name, alignment))
    return entries


def _read_entry(cursor: HeaderCursor, name: str, alignment: int) -> _Entry:
    (axes,) = cursor.read(_U32)
    if axes > _MAX_AXES:
        raise cursor.damaged(f"has {axes} axes; the most is {_MAX_AXES}")
    shape = cursor.read(_AXES[axes])
    type_number, offset = cursor.read(_TYPE_AND_OFFSET)
    elements = 1
    for axis in shape:
        elements *= axis
    if elements > _MAX_ELEMENTS or max(shape, default=0) > _MAX_ELEMENTS:
        raise cursor.damaged(f"has the impossible shape {list(shape)}")
    if offset % alignment:
        raise cursor.damaged(f"begins at byte {offset} of the data, which is no multiple of the alignment, {alignment}")
    known = GGML_TYPES.get(type_number)
    size_bytes = None
    if known is not None:
        row = shape[0] if shape else 1
        if row % known.block:
            raise cursor.damaged(
                f"is {known.word} {list(shape)}, and {known.word} packs {known.block} elements of a row"
            )
        size_bytes = elements // known.block * known.block_bytes
    return _Entry(name=name, type_number=type_number, shape=shape, offset=offset, size_bytes=size_bytes)


def _locate(
    entries: Sequence[_Entry], where: str, *, alignment: int, first_byte: int, file_bytes: int
) -> tuple[StoredTensor, ...]:
    """The tensors in the order of their bytes, which must cover the file but for the padding between them.

    Where the type is not known, a tensor ends where the next one begins, and its padding counts.
    """
    ordered = sorted(entries, key=lambda entry: (entry.offset, entry.size_bytes or 0, entry.name))
    begins = [*(entry.offset for entry in ordered), max(file_bytes - first_byte, 0)]
    end_of_data, previous = 0, "the header"
    tensors = []
    for entry, next_begin in zip(ordered, begins[1:], strict=True):
        item = f"reading {where}: tensor {entry.name!r}"
        size_bytes = next_begin - entry.offset if entry.size_bytes is None else entry.size_bytes
        end = entry.offset + size_bytes
        if entry.offset < end_of_data:
            raise DamagedFile(f"{item} overlaps {previous} (bytes {entry.offset} to {end_of_data} of the data)")
        if entry.offset > _aligned(end_of_data, alignment):
            raise DamagedFile(
                f"{item} leaves a gap after {previous} (bytes {end_of_data} to {entry.offset} of the data)"
            )
        if first_byte + end > file_bytes or size_bytes < 0:
            raise DamagedFile(
                f"{item} ends at byte {first_byte + max(end, entry.offset)}, but the file has {file_bytes}: it is cut "
                "off",
                hint="copy or download it again",
            )
        if size_bytes == 0 and 0 not in entry.shape:
            raise DamagedFile(f"{item} has no bytes, and the shape {list(entry.shape)}")
        end_of_data, previous = end, f"tensor {entry.name!r}"
        tensors.append(
            StoredTensor(
                name=entry.name,
                dtype=type_word(entry.type_number),
                shape=entry.shape,
                where=where,
                offset=first_byte + entry.offset,
                size_bytes=size_bytes,
            )
        )
    left = file_bytes - first_byte - _aligned(end_of_data, alignment)
    if left > 0:
        raise DamagedFile(f"reading {where}: {left} bytes follow {previous} and belong to no tensor")
    return tuple(tensors)


def _aligned(place: int, alignment: int) -> int:
    return (place + alignment - 1) // alignment * alignment
