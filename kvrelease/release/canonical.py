"""Canonical bytes: the one way in which facts become input of a hash.

Everything is length-prefixed, so that no two different lists of fields share an encoding. Source: docs/fingerprint.md,
which fixes it to the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from blake3 import blake3

# Integral floats below this are written as integers: `10000.0` and `10000` are one number to every reader of JSON.
_EXACT_FLOAT_LIMIT = 2**53


def frame(*fields: bytes) -> bytes:
    """Each field behind its length: 8 bytes, unsigned, little endian."""
    parts: list[bytes] = []
    for field in fields:
        parts += (len(field).to_bytes(8, "little"), field)
    return b"".join(parts)


def digest_of(purpose: str, fields: Iterable[bytes], *, framed: bytes = b"") -> str:
    """BLAKE3-256 of the framed purpose and fields, lower-case hex.

    Args:
        purpose: names the digest and every parameter of how it is made; two purposes never share a digest.
        fields: what is digested, in this order.
        framed: further fields, framed already.
    """
    return blake3(frame(purpose.encode(), *fields) + framed).hexdigest()


def encode_json(value: object) -> bytes:
    """Canonical bytes of a JSON value: object keys sorted by UTF-8 bytes, integral floats as integers.

    Raises:
        UnicodeEncodeError: a text holds a lone surrogate, which UTF-8 cannot say.
    """
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def same_value(left: object, right: object) -> bool:
    """Whether two JSON values are one canonical value (`1` and `1.0` are, `1` and `true` are not)."""
    return encode_json(left) == encode_json(right)


def _encode(value: object, parts: list[bytes]) -> None:
    if value is None:
        parts.append(b"n")
    elif isinstance(value, bool):
        parts.append(b"t" if value else b"f")
    elif isinstance(value, int):
        parts += (b"i", frame(str(value).encode()))
    elif isinstance(value, float):
        if value.is_integer() and abs(value) < _EXACT_FLOAT_LIMIT:
            parts += (b"i", frame(str(int(value)).encode()))
        else:
            parts += (b"d", struct.pack(">d", value))
    elif isinstance(value, str):
        parts += (b"s", frame(value.encode()))
    elif isinstance(value, list | tuple):
        parts += (b"l", len(value).to_bytes(8, "little"))
        for item in value:
            _encode(item, parts)
    elif isinstance(value, dict):
        parts += (b"o", len(value).to_bytes(8, "little"))
        for key, item in sorted((str(key).encode(), item) for key, item in value.items()):
            parts.append(frame(key))
            _encode(item, parts)
    else:
        raise AssertionError(f"{type(value).__name__} is no JSON value")
