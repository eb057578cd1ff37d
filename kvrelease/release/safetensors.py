"""The header of a safetensors file: which tensor lies where, checked before a byte of it is believed.

Source: github.com/huggingface/safetensors, safetensors/src/tensor.rs (`read_metadata`, `Metadata::validate`, `Dtype`),
0.8.0: an 8-byte little-endian length, a JSON object, then the tensors without gaps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import msgspec

from kvrelease.errors import DamagedFile, UnsupportedRelease
from kvrelease.release.source import SourceFile, read_range
from kvrelease.release.stand_in import refuse_stand_in_for_weights
from kvrelease.release.weights import StoredTensor, WeightFile

# The reference implementation, and so every engine, refuses headers above this. The most expensive one that we accept,
# 1.8 million empty tensors, takes 1.4 GB of memory.
MAX_HEADER_BYTES = 100_000_000
_MAX_OFFSET = 2**63 - 1
# What torch can hold; the format has no limit of its own.
_MAX_AXES = 64
_LENGTH_BYTES = 8
_SNIFF_BYTES = 64
_METADATA = "__metadata__"

# Bits of one element. Other dtypes are digested too, their size taken from the offsets.
_DTYPE_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
        8,
    ),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Stricter than the reference implementation, which skips further fields: a digest would not cover them.

    The fields stand in the order in which that implementation writes them: `_is_plain` depends on it.
    """

    dtype: str
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=_MAX_AXES)]
    data_offsets: tuple[int, int]


def read_safetensors(file: SourceFile, *, max_header_bytes: int = MAX_HEADER_BYTES) -> WeightFile:
    """The tensors of a safetensors file, every range checked against the file's size.

    Raises:
        NotFound: no such file.
        DamagedFile: the bytes are not a sound safetensors file; the message names the tensor.
        UnsupportedRelease: they are a pickle or GGUF, or the header is larger than the limit.
        InputError: the file cannot be read.
        ServiceError: the store did not answer properly.
    """
    with file.open() as reader:
        identity = reader.identity
        length = _header_length(bytes(read_range(reader, 0, _SNIFF_BYTES)), file.where, identity.size_bytes)
        if length > max_header_bytes:
            raise UnsupportedRelease(
                f"reading {file.where}: its header of {length} bytes is over the limit of {max_header_bytes}, "
                "which the engines' own reader shares"
            )
        header = read_range(reader, _LENGTH_BYTES, length)
    if len(header) != length:
        raise DamagedFile(f"reading {file.where}: the file ends inside its header", hint="copy or download it again")
    entries, metadata = _parse_header(header, file.where)
    tensors = _locate(entries, file.where, first_byte=_LENGTH_BYTES + length, file_bytes=identity.size_bytes)
    unknown = frozenset(tensor.dtype for tensor in tensors) - _DTYPE_BITS.keys()
    return WeightFile(file=file, identity=identity, tensors=tensors, unknown_dtypes=unknown, metadata=metadata)


def _header_length(head: bytes, where: str, file_bytes: int) -> int:
    """The header's length in bytes, after a look at what else the file could be."""
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    first = head[_LENGTH_BYTES : _LENGTH_BYTES + 1]
    if first == b"{" and 2 <= length <= file_bytes - _LENGTH_BYTES:
        return length  # first of all: a length can begin with the magic of another format (896: 80 03, a pickle's)
    if not head:
        raise DamagedFile(f"reading {where}: the file is empty", hint="copy or download it again")
    refuse_stand_in_for_weights(head, where=where)
    if head.startswith(b"GGUF"):
        raise UnsupportedRelease(f"reading {where}: it is a GGUF file, not safetensors")
    if head.startswith(b"PK\x03\x04") or (head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        raise UnsupportedRelease(
            f"reading {where}: it is a pickle (a PyTorch checkpoint), not safetensors; nothing is ever unpickled",
            hint="convert it: load it with transformers where you trust it, and save_pretrained() the model",
        )
    if len(head) < _LENGTH_BYTES:
        raise DamagedFile(
            f"reading {where}: {len(head)} bytes are no safetensors file", hint="copy or download it again"
        )
    if first not in (b"{", b""):
        raise DamagedFile(f"reading {where}: not a safetensors file: no JSON header after the first 8 bytes")
    raise DamagedFile(
        f"reading {where}: not a safetensors file, or cut off: it announces a header of {length} bytes and has "
        f"{file_bytes} bytes in all",
        hint="copy or download it again",
    )


def _parse_header(header: bytes | bytearray, where: str) -> tuple[dict[str, _Entry], dict[str, str] | None]:
    """The header's entries, and what it says beside them.

    Typed decoding first, so that hostile JSON is refused before it becomes objects.
    """
    metadata: dict[str, str] | None = None
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        if _METADATA in raw:
            metadata = msgspec.json.decode(raw.pop(_METADATA), type=dict[str, str] | None)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DamagedFile(f"reading {where}: the header is not valid JSON of the format: {error}") from error
    entries: dict[str, _Entry] = {}
    decode = msgspec.json.Decoder(_Entry).decode
    for name, value in raw.items():
        try:
            entries[name] = decode(value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise DamagedFile(f"reading {where}: the header's entry of tensor {name!r}: {error}") from error
    if not _is_plain(header, metadata, entries):
        _refuse_duplicates(header, where)
    return entries, metadata


def _is_plain(header: bytes | bytearray, metadata: dict[str, str] | None, entries: dict[str, _Entry]) -> bool:
    """Whether the header is, byte for byte, what its parse would be written as: then no key of it occurs twice.

    What the reference implementation writes is; it takes a tenth of the time of the second pass that others need.
    """
    text = msgspec.json.encode(entries)
    if metadata is not None:
        comma = b"," if entries else b""
        text = b'{"__metadata__":' + msgspec.json.encode(metadata) + comma + text[1:]
    return header.rstrip(b" ") == text


def _refuse_duplicates(header: bytes | bytearray, where: str) -> None:
    """JSON readers keep the last of two equal keys, so a second pass counts them."""

    def count(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            name, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise DamagedFile(f"reading {where}: the header names {name!r} twice")

    try:
        json.loads(header, object_pairs_hook=count)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"reading {where}: the header is not valid JSON: {error}") from error


def _locate(entries: dict[str, _Entry], where: str, *, first_byte: int, file_bytes: int) -> tuple[StoredTensor, ...]:
    """The tensors in the order of their bytes, which must cover the file exactly."""
    end_of_data = 0
    data_bytes = file_bytes - first_byte
    previous: str | None = None
    fitting: set[tuple[str, tuple[int, ...], int]] = set()  # a layer's tensors are like the next one's
    tensors = []
    for name, entry in _by_offset(entries):
        begin, end = entry.data_offsets
        size = (entry.dtype, entry.shape, end - begin)
        if begin != end_of_data or not begin <= end <= data_bytes or not (size in fitting or _fits(*size)):
            what = f"reading {where}: tensor {name!r}"
            _refuse_range(what, (begin, end), _called(previous), end_of_data=end_of_data, data_bytes=data_bytes)
            _refuse_size(what, entry)
        fitting.add(size)
        end_of_data, previous = end, name
        tensors.append(
            StoredTensor(
                name=name,
                dtype=entry.dtype,
                shape=entry.shape,
                where=where,
                offset=first_byte + begin,
                size_bytes=end - begin,
            )
        )
    if end_of_data != data_bytes:
        raise DamagedFile(
            f"reading {where}: {data_bytes - end_of_data} bytes follow {_called(previous)} and belong to no tensor"
        )
    return tuple(tensors)


def _by_offset(entries: dict[str, _Entry]) -> Iterable[tuple[str, _Entry]]:
    """The entries in the order of their bytes, in which the reference implementation writes them already."""
    begins = [entry.data_offsets for entry in entries.values()]
    if begins == sorted(begins):
        return entries.items()
    return sorted(entries.items(), key=lambda item: (item[1].data_offsets, item[0]))


def _called(name: str | None) -> str:
    return "the header" if name is None else f"tensor {name!r}"


def _refuse_range(what: str, offsets: tuple[int, int], before: str, *, end_of_data: int, data_bytes: int) -> None:
    """Tells what is wrong with a byte range, if anything."""
    begin, end = offsets
    if begin < 0 or end < begin or end > _MAX_OFFSET:
        raise DamagedFile(f"{what} has the impossible byte range {begin} to {end}")
    if begin < end_of_data:
        raise DamagedFile(f"{what} overlaps {before} (bytes {begin} to {end_of_data})")
    if begin > end_of_data:
        raise DamagedFile(f"{what} leaves a gap after {before} (bytes {end_of_data} to {begin})")
    if end > data_bytes:
        raise DamagedFile(
            f"{what} ends at byte {end} of the data, but the file has {data_bytes}: it is cut off",
            hint="copy or download it again",
        )


def _refuse_size(what: str, entry: _Entry) -> None:
    """Tells what is wrong with a shape that does not fit."""
    elements = 1
    for axis in entry.shape:
        if axis < 0 or axis > _MAX_OFFSET:
            raise DamagedFile(f"{what} has the impossible shape {list(entry.shape)}")
        elements *= axis
        if elements > _MAX_OFFSET:
            raise DamagedFile(f"{what} has a shape of more elements than 64 bits can count")
    begin, end = entry.data_offsets
    promised = f"{entry.dtype} {list(entry.shape)}, {elements * _DTYPE_BITS[entry.dtype] / 8:g} bytes"
    raise DamagedFile(f"{what} is {promised}, but its range has {end - begin}")


def _fits(dtype: str, shape: tuple[int, ...], size_bytes: int) -> bool:
    """Whether the shape is possible, and of that size where the dtype tells it."""
    elements = 1
    for axis in shape:
        elements *= axis
        if not 0 <= axis <= _MAX_OFFSET or elements > _MAX_OFFSET:
            return False
    bits = _DTYPE_BITS.get(dtype)
    return bits is None or elements * bits == size_bytes * 8
