"""One metadata value of a GGUF file: passed over and digested as it is stored, decoded only where it is small.

Source: llama.cpp b11434, ggml/include/gguf.h (`enum gguf_type` and the layout in its comment); arrays of arrays, which
llama.cpp refuses, as gguf-py writes them (convert/gguf-py/gguf/gguf_writer.py, `_pack_val`).
"""

from __future__ import annotations

import enum
import math
import struct

from blake3 import blake3

from kvrelease.artifacts import JsonObject
from kvrelease.release.gguf_cursor import HeaderCursor

# Nothing writes arrays of arrays today; the format allows them.
MAX_ARRAY_DEPTH = 4
MAX_INNER_ARRAYS = 65_536
# Settings are numbers, words and arrays with one item per layer. Of more than this only the digest is kept.
MAX_INLINE_BYTES = 4096

_U32 = struct.Struct("<I")
_ARRAY_HEAD = struct.Struct("<IQ")
_LENGTH_BYTES = 8


class ValueType(enum.IntEnum):
    """The types by their numbers in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# Of one number, as `struct` calls it. A BOOL is a byte, and any but 0 is true (ggml/src/gguf.cpp, `read(bool &)`).
_CODES = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_SIZES = {value_type: struct.calcsize(f"<{code}") for value_type, code in _CODES.items()}


class StoredValue:
    """A value as it lies in the file: its type, 4 bytes, and what follows it.

    Attributes:
        value_type: of the value.
        size_bytes: of the stored form.
        raw: the stored form, without its type; cut after `max_kept_bytes`.
    """

    def __init__(self, value_type: ValueType, *, max_kept_bytes: int) -> None:
        self.value_type = value_type
        self.size_bytes = 0
        self.raw = bytearray()
        self._max_kept_bytes = max_kept_bytes
        self._hasher = blake3(_U32.pack(value_type))

    @property
    def digest(self) -> bytes:
        """BLAKE3 of type and stored form, 32 bytes."""
        return self._hasher.digest()

    @property
    def is_whole(self) -> bool:
        """Whether all of it was kept."""
        return self.size_bytes == len(self.raw)

    def update(self, data: bytes | memoryview) -> None:
        """Takes the next stored bytes."""
        self._hasher.update(data)
        self.size_bytes += len(data)
        room = self._max_kept_bytes - len(self.raw)
        if room > 0:
            self.raw += data[:room]

    def as_json(self) -> object:
        """The value where all of it was kept and its texts are UTF-8; else `{"blake3": …, "bytes": …}`.

        FLOAT32 becomes the double of the same value; numbers that are not finite become their names.
        """
        if self.is_whole:
            try:
                return _decode(self.value_type, memoryview(self.raw), 0)[0]
            except UnicodeDecodeError:
                pass
        summary: JsonObject = {"blake3": self.digest.hex(), "bytes": self.size_bytes}
        return summary


def read_value(cursor: HeaderCursor, *, max_kept_bytes: int = MAX_INLINE_BYTES) -> StoredValue:
    """The value at the cursor.

    Raises:
        DamagedFile: it has a type that does not exist, or more items than the file has bytes for.
        UnsupportedRelease: its arrays nest deeper than anything known.
    """
    (number,) = cursor.read(_U32)
    value = StoredValue(_known_type(cursor, number), max_kept_bytes=max_kept_bytes)
    _Walk(cursor, value).skim(value.value_type, depth=0)
    return value


def _known_type(cursor: HeaderCursor, number: int) -> ValueType:
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.damaged(f"has values of type {number}, which does not exist") from None


class _Walk:
    """Passes over one value; arrays inside arrays are counted."""

    def __init__(self, cursor: HeaderCursor, value: StoredValue) -> None:
        self._cursor = cursor
        self._value = value
        self._inner_arrays = 0

    def skim(self, value_type: ValueType, *, depth: int) -> None:
        if value_type is ValueType.ARRAY:
            self._skim_array(depth=depth + 1)
        elif value_type is ValueType.STRING:
            self._cursor.skim_strings(1, self._value)
        else:
            self._cursor.skim(_SIZES[value_type], self._value)

    def _skim_array(self, *, depth: int) -> None:
        if depth > MAX_ARRAY_DEPTH:
            raise self._cursor.unsupported(f"nests arrays more than {MAX_ARRAY_DEPTH} deep")
        number, count = self._cursor.read(_ARRAY_HEAD, self._value)
        item_type = _known_type(self._cursor, number)
        if item_type is ValueType.STRING:
            self._cursor.skim_strings(count, self._value)
        elif item_type is not ValueType.ARRAY:
            self._cursor.require(count, _SIZES[item_type], what=f"items of type {item_type.name}")
            self._cursor.skim(count * _SIZES[item_type], self._value)
        else:
            self._cursor.require(count, _ARRAY_HEAD.size, what="arrays")
            self._inner_arrays += count
            if self._inner_arrays > MAX_INNER_ARRAYS:
                raise self._cursor.unsupported(f"has more than {MAX_INNER_ARRAYS} arrays inside arrays")
            for _ in range(count):
                self.skim(item_type, depth=depth)


def _decode(value_type: ValueType, data: memoryview, place: int) -> tuple[object, int]:
    """The value at a place of stored bytes that were walked before, and the place behind it."""
    if value_type is ValueType.STRING:
        start = place + _LENGTH_BYTES
        end = start + int.from_bytes(data[place:start], "little")
        return str(data[start:end], "utf-8"), end
    if value_type is not ValueType.ARRAY:
        items, end = _decode_numbers(value_type, 1, data, place)
        return items[0], end
    number, count = _ARRAY_HEAD.unpack_from(data, place)
    item_type, place = ValueType(number), place + _ARRAY_HEAD.size
    if item_type in _CODES:
        return _decode_numbers(item_type, count, data, place)
    items = []
    for _ in range(count):
        item, place = _decode(item_type, data, place)
        items.append(item)
    return items, place


def _decode_numbers(value_type: ValueType, count: int, data: memoryview, place: int) -> tuple[list[object], int]:
    numbers = struct.unpack_from(f"<{count}{_CODES[value_type]}", data, place)
    end = place + count * _SIZES[value_type]
    if value_type is ValueType.BOOL:
        return [number != 0 for number in numbers], end
    if value_type in (ValueType.FLOAT32, ValueType.FLOAT64):
        return [_finite_or_name(number) for number in numbers], end
    return list(numbers), end


def _finite_or_name(number: float) -> float | str:
    """JSON has no word for the others; these are the names that the reader of JSON files gives them too."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
