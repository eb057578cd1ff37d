"""Tensors of every dtype as bytes, and what they stand for in float64: written from the formats, without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvrelease.artifacts import JsonObject
from tests.release.builders import config_json, write_json

Array = NDArray[np.float64]
PLAIN = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.uint8,
}


class Stored:
    """The bytes of one tensor, and the numbers that they are."""

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        self.dtype, self.shape, self.data = dtype, shape, data

    @property
    def numbers(self) -> Array:
        """[shape] float64."""
        return decode(self.dtype, self.data).reshape(self.shape)


def encode(values: Array, dtype: str) -> Stored:
    """Numbers as stored: rounded to the nearest even in bfloat16, to the nearest in float8."""
    shape = tuple(values.shape)
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        return Stored(dtype, shape, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes())
    if dtype.startswith("F8_"):
        table = np.array([_float8(code, dtype) for code in range(256)])
        finite = np.flatnonzero(np.isfinite(table))
        nearest = np.abs(values.reshape(-1, 1) - table[finite]).argmin(axis=1)
        return Stored(dtype, shape, finite[nearest].astype(np.uint8).tobytes())
    return Stored(dtype, shape, values.astype(PLAIN[dtype]).tobytes())


def decode(dtype: str, data: bytes) -> Array:
    """[elements] float64."""
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype.startswith("F8_"):
        return np.array([_float8(code, dtype) for code in data])
    return np.frombuffer(data, PLAIN[dtype]).astype(np.float64)


def _float8(code: int, dtype: str) -> float:
    """OCP 8-bit floating point specification, tables 1 and 2."""
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if dtype == "F8_E4M3" and code & 0x7F == 0x7F:
        return math.nan
    if dtype == "F8_E5M2" and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    fraction = mantissa / (1 << mantissa_bits)
    return sign * (fraction * 2 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))


def write_tensors(directory: Path, tensors: Mapping[str, Stored], *, config: JsonObject | None = None) -> Path:
    """A model directory with these tensors in one file."""
    directory.mkdir(parents=True)
    write_json(directory / "config.json", config_json() if config is None else config)
    header: JsonObject = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    data = b"".join(tensor.data for tensor in tensors.values())
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return directory
