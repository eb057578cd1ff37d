"""A second implementation of docs/fingerprint.md, written from the document: short, slow, and sharing no code.

Its tables are the published ones: docs/rules/*.json and those of the document.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import blake3
from safetensors import deserialize

DOCS = Path(__file__).parents[2] / "docs"
NAMES: Any = json.loads((DOCS / "rules" / "names.json").read_text())


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


def pairs(named: dict[str, bytes]) -> list[bytes]:
    return [field for name in sorted(named, key=str.encode) for field in (name.encode(), named[name])]


def stored(directory: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Name → dtype, shape and bytes of every tensor; no index, no adapter beside a model."""
    parse: Any = deserialize  # untyped
    return {
        name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"]))
        for path in sorted(directory.glob("*.safetensors"))
        for name, tensor in parse(path.read_bytes())
    }


def metadata(directory: Path) -> list[dict[str, object]]:
    """`__metadata__` of each file."""
    found = []
    for path in directory.glob("*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
        found.append(header.get("__metadata__", {}))
    return found


def payloads(directory: Path) -> dict[str, bytes]:
    found = {}
    for name, (dtype, shape, data) in stored(directory).items():
        head = framed(b"kvfp1 payload") + framed(dtype.encode()) + framed(b"".join(u64(axis) for axis in shape))
        found[name] = blake3.blake3(head + framed(data)).digest()
    return found


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
    found = {}
    for name, (dtype, shape, data) in stored(directory).items():
        head = framed(b"kvfp1-fast payload") + framed(dtype.encode()) + framed(b"".join(u64(axis) for axis in shape))
        read = b"".join(data[begin : begin + length] for begin, length in places(name, dtype, shape, len(data)))
        found[name] = blake3.blake3(head + u64(len(data)) + read).digest()
    return found


def rule_table(rule: str) -> Any:
    return json.loads((DOCS / "rules" / f"{rule}.json").read_text())


def first_layer(
    name: str, table: Any, *, layers: int, is_quantized: bool, is_tied: bool = False, has_head: bool = False
) -> int | None:
    """The first layer whose KV the tensor may touch under a published rule; None for none."""
    if has_head and table["outside"].get(name) == "none" and name.rpartition(".")[0] not in table["output_layer"]:
        return layers
    stems = "|".join(re.escape(stem.removesuffix(".N")) for stem in table["layers"])
    found = re.fullmatch(rf"(?:{stems})\.(0|[1-9][0-9]*)\.(.*)", name, re.DOTALL)
    if found and int(found[1]) < layers:
        layer = int(found[1])
        reach = "its own layer" if found[2] in NAMES["kv_scales"] else inside(found[2], table, is_quantized)
    else:
        layer, reach = 0, outside(name, table, is_quantized, is_tied)
    match reach:
        case "its own layer":
            return layer
        case "the next layer":
            return layer + 1 if layer + 1 < layers or has_head else None
        case "none":
            return None
        case _:  # every layer, and whatever is not known
            return 0


def is_head(name: str, table: Any, entries: Any, *, layers: int, is_quantized: bool, is_tied: bool) -> bool:
    """Whether the tensor lies in no layer, is none that the rule knows, and is one of a draft head."""
    lists, number = NAMES["draft_heads"], re.match(r"(?:[^.]+\.)*?(?:layers|h|blocks)\.(0|[1-9][0-9]{0,5})\.", name)
    is_behind = number is not None and int(number[1]) >= entries.get("num_hidden_layers", math.inf)
    is_named = any(word in name.casefold() for word in lists["words"])
    if not is_named and not (is_behind and any(entries.get(key) for key in lists["keys"])):
        return False
    parts = [name.removeprefix(stem.removesuffix("N")) for stem in table["layers"] if name.startswith(stem[:-1])]
    if any(part.partition(".")[0] in map(str, range(layers)) and "." in part for part in parts):
        return False
    parameters = ["weight", *(NAMES["parameters"] if is_quantized else [])]
    embeddings = [f"{module}.{parameter}" for module in table["embeddings"] for parameter in parameters]
    return name not in embeddings and outside(name, table, is_quantized, is_tied) is None


def outside(name: str, table: Any, is_quantized: bool, is_tied: bool) -> str | None:
    if name in table["outside"]:
        return str(table["outside"][name])
    parameters = ["weight", *(NAMES["parameters"] if is_quantized else [])]
    if name in [f"{module}.{parameter}" for module in table["output_layer"] for parameter in parameters]:
        return "every layer" if is_tied else "none"
    return None  # the embeddings too touch every layer


def inside(rest: str, table: Any, is_quantized: bool) -> str | None:
    words = ["*" if re.fullmatch("0|[1-9][0-9]{0,5}", word) else word for word in rest.split(".")]
    if ".".join(words) in table["parameters"]:
        return str(table["parameters"][".".join(words)])
    for cut in range(len(words) - 1, 0, -1):
        module, parameter = ".".join(words[:cut]), ".".join(words[cut:])
        reach = table["norms"].get(module, table["projections"].get(module))
        if reach is None:
            continue
        is_stored = is_quantized and module in table["projections"] and parameter in NAMES["parameters"]
        if parameter not in ("weight", "bias") and not is_stored:
            return None
        return "its own layer" if is_quantized and module in table["own_layer_if_quantized"] else str(reach)
    return None


def weights_digest(found: dict[str, bytes], *, algorithm: str = "kvfp1-full") -> str:
    """Of payloads, or of samples under `kvfp1-fast`."""
    return f"{algorithm}:" + digest(f"{algorithm} weights", pairs(found)).hex()


def fast_digest(directory: Path, *, tied: bool = False) -> str:
    found = samples(directory)
    if tied and found.get("lm_head.weight") == found["model.embed_tokens.weight"]:
        del found["lm_head.weight"]
    return weights_digest(found, algorithm="kvfp1-fast")


def release_digest(parts: dict[str, str | None], *, algorithm: str = "kvfp1-full") -> str:
    known = {name: part for name, part in parts.items() if part is not None}
    return f"{algorithm}:" + digest(f"{algorithm} release", [value(known)]).hex()


def adapter_digest(directory: Path, *, canonical: dict[str, object]) -> str:
    fields = [value(canonical), *pairs(payloads(directory))]
    return "kvfp1-adapter:" + digest("kvfp1-adapter", fields).hex()


def adapted_kv_digest(base_kv: str, adapter: str) -> str:
    rule, base = base_kv.split(":")
    purpose = f"{rule}+adapter kv"
    return f"{rule}+adapter:" + digest(purpose, [bytes.fromhex(base), bytes.fromhex(adapter.split(":")[1])]).hex()


def kv_name(kv: str) -> str:
    return "kv1-" + base64.b32encode(bytes.fromhex(kv.split(":")[1])[:20]).decode().lower()
