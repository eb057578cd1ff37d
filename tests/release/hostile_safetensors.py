"""Random model directories, and changes to them that aim at header, index and configuration; the same for one seed."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

Json = object

NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.1.input_layernorm.weight",
    "model.norm.weight",
    "lm_head.weight",
)
STRANGE_TEXTS = (
    "",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\u202eabc",
    "a\nb",
    "\ud800",
    "../../etc/passwd",
    "/etc/passwd",
    "C:\\weights",
    "x" * 5000,
    "[/bold]",
    "nul\0byte",
)
NUMBERS = (-1, 0, 1, 2, 3, 7, 64, 65, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 2**200, -(2**63) - 1)
DTYPES = ("F32", "BF16", "F8_E4M3", "F4", "F6_E2M3", "U8", "I64", "BOOL", "C64", "X9", "f32", "")
FIRST_BYTES = (b"", b"version https://git-lfs", b"PK\x03\x04", b"\x80\x02}q", b"GGUF", b"<html>")
CONFIG: dict[str, Json] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "vocab_size": 6,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]},
    "auto_map": {"AutoModel": "modeling.Model"},
}


def write_hostile(directory: Path, generator: random.Random) -> None:
    """Writes a directory of one or two shards, with or without an index, and spoils some of it."""
    for path in directory.iterdir():
        path.unlink()
    names = generator.sample(NAMES, generator.randint(1, len(NAMES)))
    cut = generator.randint(1, len(names)) if generator.random() < 0.5 else len(names)
    shards = [part for part in (names[:cut], names[cut:]) if part]
    files = ["model.safetensors"] if len(shards) == 1 else [f"model-{n + 1:05}-of-00002.safetensors" for n in range(2)]
    for name, part in zip(files, shards, strict=True):
        (directory / name).write_bytes(_shard(part, generator))
    if len(shards) > 1 or generator.random() < 0.2:
        weight_map = {tensor: name for name, part in zip(files, shards, strict=True) for tensor in part}
        index: Json = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        _write_json(directory / "model.safetensors.index.json", index, generator, spoilt=0.4)
    if generator.random() < 0.95:
        keys = generator.sample(sorted(CONFIG), generator.randint(3, len(CONFIG)))
        config: Json = {key: CONFIG[key] for key in (*keys, "model_type", "num_hidden_layers", "architectures")}
        _write_json(directory / "config.json", config, generator, spoilt=0.6)
    if generator.random() < 0.3:
        _write_json(directory / "tokenizer_config.json", {"chat_template": "{{ x }}"}, generator, spoilt=0.5)


def _shard(names: list[str], generator: random.Random) -> bytes:
    header: dict[str, Json] = {}
    end = 0
    for name in names:
        shape = [generator.randint(0, 4) for _ in range(generator.randint(0, 3))]
        size = 4
        for axis in shape:
            size *= axis
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    if generator.random() < 0.3:
        header["__metadata__"] = {"format": "pt"}
    data = generator.randbytes(end)
    spoilt: Json = header
    if generator.random() < 0.5:
        spoilt = _spoil(spoilt, generator)
    text = _spelt(spoilt, generator)
    length = len(text) if generator.random() < 0.9 else generator.choice(NUMBERS) % 2**64
    content = struct.pack("<Q", length) + text + data
    return _spoil_bytes(content, generator) if generator.random() < 0.3 else content


def _write_json(path: Path, value: Json, generator: random.Random, *, spoilt: float) -> None:
    if generator.random() < spoilt:
        value = _spoil(value, generator)
    content = _spelt(value, generator)
    path.write_bytes(_spoil_bytes(content, generator) if generator.random() < spoilt / 4 else content)


def _spelt(value: Json, generator: random.Random) -> bytes:
    text = json.dumps(value, ensure_ascii=True, indent=generator.choice((None, 1)))
    if generator.random() < 0.1:  # a key twice
        place = text.find("{")
        text = f'{text[: place + 1]}"model.norm.weight": {{}}, "model_type": "llama", {text[place + 1 :]}'
    if generator.random() < 0.05:  # nested deeper than any reader should follow
        depth = generator.choice((65, 1000, 100_000))
        text = text.replace("{", '{"deep": ' + "[" * depth + "]" * depth + ", ", 1)
    return text.encode()


def _spoil(value: Json, generator: random.Random) -> Json:
    """The value with one to three of its parts replaced, removed or renamed, at any depth."""
    for _ in range(generator.randint(1, 3)):
        value = _spoil_once(value, generator)
    return value


def _spoil_once(value: Json, generator: random.Random) -> Json:
    if isinstance(value, dict) and value and generator.random() < 0.85:
        key = generator.choice(sorted(value, key=str))
        if generator.random() < 0.15:
            return {name: part for name, part in value.items() if name != key}
        if generator.random() < 0.2:
            return {generator.choice(STRANGE_TEXTS) if name == key else name: part for name, part in value.items()}
        return {**value, key: _spoil_once(value[key], generator)}
    if isinstance(value, list) and value and generator.random() < 0.7:
        place = generator.randrange(len(value))
        return [_spoil_once(part, generator) if n == place else part for n, part in enumerate(value)]
    return generator.choice(_REPLACEMENTS)(generator)


_REPLACEMENTS: tuple[Callable[[random.Random], Json], ...] = (
    lambda generator: generator.choice(NUMBERS),
    lambda generator: generator.choice(STRANGE_TEXTS),
    lambda generator: generator.choice(DTYPES),
    lambda generator: generator.choice((True, False, None, 0.5, 1e308, float("nan"), float("inf"))),
    lambda generator: [generator.choice(NUMBERS) for _ in range(generator.choice((0, 1, 2, 65, 300)))],
    lambda generator: {generator.choice(STRANGE_TEXTS): generator.choice(NUMBERS)},
)


def _spoil_bytes(content: bytes, generator: random.Random) -> bytes:
    place = generator.randrange(len(content) + 1)
    match generator.randrange(5):
        case 0:
            return content[:place]
        case 1:
            return content + generator.randbytes(generator.randint(1, 40))
        case 2:
            return content[:place] + generator.randbytes(1) + content[place + 1 :]
        case 3:
            return content[:place] + content[place // 2 :]
        case _:
            return generator.choice(FIRST_BYTES) + content
