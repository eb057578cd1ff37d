"""One stored value: digested as it lies, decoded only where it is small and says something that JSON can say."""

from __future__ import annotations

import math
import struct

import pytest
from blake3 import blake3

from kvrelease.errors import DamagedFile, UnsupportedRelease
from kvrelease.release.gguf_cursor import HeaderCursor
from kvrelease.release.gguf_values import (
    MAX_ARRAY_DEPTH,
    MAX_INLINE_BYTES,
    MAX_INNER_ARRAYS,
    StoredValue,
    ValueType,
    read_value,
)
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
    Value,
    array,
    stored,
)
from tests.release.remote_file import Remote


def bytes_of(value: Value) -> bytes:
    return struct.pack("<I", value.type) + b"".join(part.data for part in stored(value.type, value.content))


def read(data: bytes, *, max_kept_bytes: int = MAX_INLINE_BYTES) -> tuple[StoredValue, HeaderCursor]:
    with Remote(data).open() as reader:
        cursor = HeaderCursor(reader, where="m.gguf")
        return read_value(cursor, max_kept_bytes=max_kept_bytes), cursor


SOUND: list[tuple[Value, object]] = [
    (Value(U8, 255), 255),
    (Value(I8, -128), -128),
    (Value(U16, 65535), 65535),
    (Value(I16, -32768), -32768),
    (Value(U32, 2**32 - 1), 2**32 - 1),
    (Value(I32, -(2**31)), -(2**31)),
    (Value(U64, 2**64 - 1), 2**64 - 1),
    (Value(I64, -(2**63)), -(2**63)),
    (Value(F32, 0.5), 0.5),
    (Value(F64, 0.1), 0.1),
    (Value(F64, math.inf), "Infinity"),
    (Value(F32, -math.inf), "-Infinity"),
    (Value(F32, math.nan), "NaN"),
    (Value(BOOL, True), True),
    (Value(STRING, "é"), "é"),
    (array(STRING, ["a", ""]), ["a", ""]),
    (array(I16, [1, -1]), [1, -1]),
    (array(ARRAY, [array(F32, [0.25]), array(STRING, [])]), [[0.25], []]),
]


@pytest.mark.parametrize(("value", "expected"), SOUND)
def test_a_value_is_read_to_its_end_digested_with_its_type_and_decoded(value: Value, expected: object) -> None:
    data = bytes_of(value)
    found, cursor = read(data + b"next")
    assert cursor.position == len(data)
    assert found.value_type is ValueType(value.type)
    assert found.digest == blake3(data).digest()
    assert (bytes(found.raw), found.size_bytes, found.is_whole) == (data[4:], len(data) - 4, True)
    assert found.as_json() == expected
    assert type(found.as_json()) is type(expected)


def test_of_a_large_value_or_one_that_is_no_text_only_the_digest_is_told() -> None:
    large, nonsense = bytes_of(Value(STRING, "x" * 100)), bytes_of(array(STRING, [b"\xff"]))
    found, _ = read(large, max_kept_bytes=50)
    assert (len(found.raw), found.size_bytes, found.is_whole) == (50, 108, False)
    assert found.as_json() == {"blake3": blake3(large).hexdigest(), "bytes": 108}
    assert read(nonsense)[0].as_json() == {"blake3": blake3(nonsense).hexdigest(), "bytes": len(nonsense) - 4}


def test_the_type_counts_where_the_bytes_are_the_same() -> None:
    assert read(bytes_of(Value(U32, 1)))[0].digest != read(bytes_of(Value(I32, 1)))[0].digest


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack("<I", 13), "type 13, which does not exist"),
        (struct.pack("<IIQ", ARRAY, 99, 0), "type 99, which does not exist"),
        (struct.pack("<IIQ", ARRAY, U64, 2**60), "announces 1152921504606846976 items of type UINT64"),
        (struct.pack("<IIQ", ARRAY, STRING, 2), "announces 2 strings"),
        (struct.pack("<IIQ", ARRAY, ARRAY, 2), "announces 2 arrays"),
        (struct.pack("<IQ", STRING, 5) + b"abcd", "announces 5 bytes"),
        (struct.pack("<IB", U16, 1), "announces 2 bytes"),
    ],
)
def test_a_value_that_the_file_cannot_hold_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        read(data)


def test_arrays_nest_as_deep_and_are_as_many_as_anything_known() -> None:
    deep = array(U8, [1])
    for _ in range(MAX_ARRAY_DEPTH - 1):
        deep = array(ARRAY, [deep])
    assert read(bytes_of(deep))[0].as_json() == [[[[1]]]]
    with pytest.raises(UnsupportedRelease, match=f"nests arrays more than {MAX_ARRAY_DEPTH} deep"):
        read(bytes_of(array(ARRAY, [deep])))
    empty = struct.pack("<IQ", U8, 0)
    with pytest.raises(UnsupportedRelease, match=f"more than {MAX_INNER_ARRAYS} arrays inside arrays"):
        read(struct.pack("<IIQ", ARRAY, ARRAY, MAX_INNER_ARRAYS + 1) + empty * (MAX_INNER_ARRAYS + 1))
