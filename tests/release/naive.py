"""A second implementation of docs/fingerprint.md, written from the document: short, slow, and sharing no code."""

from __future__ import annotations

import base64
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
            head = framed(b"kvfp1 payload") + framed(tensor["dtype"].encode())
            head += framed(b"".join(u64(axis) for axis in tensor["shape"]))
            found[name] = blake3.blake3(head + framed(bytes(tensor["data"]))).digest()
    return found


def pairs(named: dict[str, bytes]) -> list[bytes]:
    return [field for name in sorted(named, key=str.encode) for field in (name.encode(), named[name])]


def weights_digest(directory: Path) -> str:
    return "kvfp1-full:" + digest("kvfp1-full weights", pairs(payloads(directory))).hex()


# docs/kv-validity.md: what is stored of a quantised projection, and what scales the cached K and V of a layer.
STORED = [
    r"qweight",
    r"qzeros",
    r"scales",
    r"g_idx",
    r"act_global_scale",
    r"weight_scale",
    r"weight_scale_inv",
    r"input_scale",
    r"activation_scale",
    r"input_scale_ub",
    r"weight_packed",
    r"weight_shape",
    r"weight_zero_point",
    r"weight_g_idx",
    r"weight_global_scale",
    r"weight_scale_2",
    r"input_zero_point",
    r"input_global_scale",
    r"input_scale_2",
    r"pre_quant_scale",
    r"output_scale",
    r"output_zero_point",
    r"SCB",
    r"weight_format",
    r"weight\.absmax",
    r"weight\.quant_map",
    r"weight\.nested_absmax",
    r"weight\.nested_quant_map",
    r"weight\.quant_state\.bitsandbytes__(?:nf4|fp4)",
]
KV_SCALE = r"self_attn\.(?:attn\.)?(?:[qkv]_scale|[qkv]_zero_point|kv_scale|prob_scale|prob_output_scale)"
KV_SCALE += r"|self_attn\.(?:k_proj\.k_scale|v_proj\.v_scale|qkv_proj\.[kv]_scale)"
NORM = r"input_layernorm|post_attention_layernorm|self_attn\.[qk]_norm"
PROJECTION = r"self_attn\.(?:[qkvo]|qkv|kv)_proj|mlp\.(?:gate|up|down|gate_up)_proj"


def first_layer(name: str, *, is_quantized: bool) -> int | None:
    """The first layer whose KV the tensor may touch, for an untied llama; None for none. Unknown names touch all."""
    more = f"|{'|'.join(STORED)}" if is_quantized else ""
    if re.fullmatch(rf"model\.norm\.weight|lm_head\.(?:weight{more})", name):
        return None
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    if not found:
        return 0
    layer, rest = int(found[1]), found[2]
    if rest == "self_attn.rotary_emb.inv_freq":
        return None
    if re.fullmatch(KV_SCALE, rest):
        return layer
    part = re.fullmatch(rf"(?:({NORM})\.(?:weight|bias))|(?:({PROJECTION})\.(?:weight|bias{more}))", rest)
    if not part:
        return 0
    own = r"input_layernorm|self_attn\.(?:k_norm|k_proj|v_proj|qkv_proj|kv_proj)"
    own += r"|self_attn\.(?:q_proj|q_norm)" if is_quantized else ""
    return layer if re.fullmatch(own, part[1] or part[2]) else layer + 1


def kv_digest(
    directory: Path, *, layers: int, harmless: set[str], canonical: dict[str, object], is_quantized: bool = False
) -> str:
    """For an untied llama without code of its own."""
    counted = {key: item for key, item in canonical.items() if key not in harmless}
    running = digest("kvfp1-full/llama.1 configuration", [value(counted)])
    touched: dict[int | None, dict[str, bytes]] = {}
    for name, payload in payloads(directory).items():
        touched.setdefault(first_layer(name, is_quantized=is_quantized), {})[name] = payload
    for layer in range(layers):
        running = digest("kvfp1-full/llama.1 layer", [running, *pairs(touched.get(layer, {}))])
    return "kvfp1-full/llama.1:" + digest("kvfp1-full/llama.1 kv", [running]).hex()


def config_digest(canonical: dict[str, object], *, rule: str) -> str:
    """Without code of its own."""
    return f"kvfp1-config/{rule}:" + digest(f"kvfp1-config/{rule}", [value(canonical)]).hex()


def generation_digest(effective: dict[str, object]) -> str:
    return "kvfp1-generation:" + digest("kvfp1-generation", [value(effective)]).hex()


def release_digest(parts: dict[str, str | None]) -> str:
    known = {name: part for name, part in parts.items() if part is not None}
    return "kvfp1-full:" + digest("kvfp1-full release", [value(known)]).hex()


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


def adapter_digest(directory: Path, *, canonical: dict[str, object]) -> str:
    fields = [value(canonical), *pairs(payloads(directory))]
    return "kvfp1-adapter:" + digest("kvfp1-adapter", fields).hex()


def adapted_kv_digest(base_kv: str, adapter: str) -> str:
    rule, base = base_kv.split(":")
    purpose = f"{rule}+adapter kv"
    return f"{rule}+adapter:" + digest(purpose, [bytes.fromhex(base), bytes.fromhex(adapter.split(":")[1])]).hex()


def kv_name(kv: str) -> str:
    return "kv1-" + base64.b32encode(bytes.fromhex(kv.split(":")[1])[:20]).decode().lower()


def canonical_of(path: Path) -> dict[str, object]:
    """`config` of a saved fingerprint: the canonical form itself is specified by tables, not repeated here."""
    entries = json.loads(path.read_text())["config"]
    assert isinstance(entries, dict)
    return entries
