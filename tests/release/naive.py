"""A second implementation of docs/fingerprint.md, written from the document: short, slow, and sharing no code."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import blake3
from safetensors import deserialize


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def framed(field: bytes) -> bytes:
    return u64(len(field)) + field


def digest(purpose: str, fields: list[bytes]) -> bytes:
    return blake3.blake3(framed(purpose.encode()) + b"".join(framed(field) for field in fields)).digest()


def value(item: object) -> bytes:
    if isinstance(item, float) and item == int(item) and abs(item) < 2**53:
        item = int(item)
    match item:
        case None:
            encoded = b"n"
        case bool():
            encoded = b"t" if item else b"f"
        case int():
            encoded = b"i" + framed(str(item).encode())
        case float():
            encoded = b"d" + struct.pack(">d", item)
        case str():
            encoded = b"s" + framed(item.encode())
        case list():
            encoded = b"l" + u64(len(item)) + b"".join(value(child) for child in item)
        case dict():
            pairs = sorted((key.encode(), child) for key, child in item.items())
            encoded = b"o" + u64(len(pairs)) + b"".join(framed(key) + value(child) for key, child in pairs)
        case _:
            raise AssertionError(item)
    return encoded


def payloads(directory: Path) -> dict[str, bytes]:
    parse: Any = deserialize  # untyped
    found = {}
    for path in directory.glob("*.safetensors"):
        for name, tensor in parse(path.read_bytes()):
            head = framed(b"kvfp0 payload") + framed(tensor["dtype"].encode())
            head += framed(b"".join(u64(axis) for axis in tensor["shape"]))
            found[name] = blake3.blake3(head + framed(bytes(tensor["data"]))).digest()
    return found


def pairs(named: dict[str, bytes]) -> list[bytes]:
    return [field for name in sorted(named, key=str.encode) for field in (name.encode(), named[name])]


def weights_digest(directory: Path) -> str:
    return "kvfp0-full:" + digest("kvfp0-full weights", pairs(payloads(directory))).hex()


def kv_digest(directory: Path, *, layers: int, harmless: set[str], canonical: dict[str, object]) -> str:
    """For an untied, unquantised llama without code of its own."""
    counted = {key: item for key, item in canonical.items() if key not in harmless}
    running = digest("kvfp0-full/llama.1 configuration", [value(counted)])
    touched: dict[int, dict[str, bytes]] = {}
    for name, payload in payloads(directory).items():
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.weight", name)
        if found:
            reads_kv = found[2] in ("input_layernorm", "self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")
            layer = int(found[1]) + (0 if reads_kv else 1)
        elif name == "model.embed_tokens.weight":
            layer = 0
        else:
            continue
        touched.setdefault(layer, {})[name] = payload
    for layer in range(layers):
        running = digest("kvfp0-full/llama.1 layer", [running, *pairs(touched.get(layer, {}))])
    return "kvfp0-full/llama.1:" + digest("kvfp0-full/llama.1 kv", [running]).hex()


def places(name: str, dtype: str, shape: list[int], size: int) -> list[tuple[int, int]]:
    """Where the fast digest looks: offset and length."""
    if size <= 4096:
        return [(0, size)]
    placed_as = "model.embed_tokens.weight" if name == "lm_head.weight" else name
    axes = b"".join(u64(axis) for axis in shape)
    seed = digest("kvfp1-fast positions", [dtype.encode(), axes, placed_as.encode()])
    blocks = (size + 1023) // 1024
    found = []
    for quarter in range(4):
        begin, end = quarter * blocks // 4, (quarter + 1) * blocks // 4
        block = begin + int.from_bytes(seed[8 * quarter : 8 * quarter + 8], "little") % (end - begin)
        found.append((1024 * block, min(1024, size - 1024 * block)))
    return found


def samples(directory: Path) -> dict[str, bytes]:
    parse: Any = deserialize  # untyped
    found = {}
    for path in directory.glob("*.safetensors"):
        for name, tensor in parse(path.read_bytes()):
            data, dtype, shape = bytes(tensor["data"]), tensor["dtype"], tensor["shape"]
            head = framed(b"kvfp1-fast payload") + framed(dtype.encode()) + framed(b"".join(u64(n) for n in shape))
            read = b"".join(data[begin : begin + length] for begin, length in places(name, dtype, shape, len(data)))
            found[name] = blake3.blake3(head + u64(len(data)) + read).digest()
    return found


def fast_digest(directory: Path, *, tied: bool = False) -> str:
    found = samples(directory)
    if tied and found.get("lm_head.weight") == found["model.embed_tokens.weight"]:
        del found["lm_head.weight"]
    return "kvfp1-fast:" + digest("kvfp1-fast weights", pairs(found)).hex()


def canonical_of(path: Path) -> dict[str, object]:
    """`config` of a saved fingerprint: the canonical form itself is specified by tables, not repeated here."""
    entries = json.loads(path.read_text())["config"]
    assert isinstance(entries, dict)
    return entries
