"""Model directories of a given shape: dense ones of random bytes, and sparse ones that only look like large models."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

BYTES_OF = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
MIB = 1024 * 1024


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of a shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of its data."""
        return math.prod(self.shape) * BYTES_OF[self.dtype]


def llama(
    *, layers: int, hidden: int, inner: int, kv: int, vocabulary: int, is_tied: bool, dtype: str = "BF16"
) -> list[Tensor]:
    """The tensors of a Llama, without their bytes."""
    found = [
        Tensor("model.embed_tokens.weight", dtype, (vocabulary, hidden)),
        Tensor("model.norm.weight", dtype, (hidden,)),
    ]
    if not is_tied:
        found.append(Tensor("lm_head.weight", dtype, (vocabulary, hidden)))
    for layer in range(layers):
        parts = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        found += [Tensor(f"model.layers.{layer}.{part}.weight", dtype, shape) for part, shape in parts.items()]
    return found


def llama_config(*, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocabulary: int) -> str:
    """The `config.json` that fits."""
    return json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocabulary,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
    )


def deepseek_v3() -> list[Tensor]:
    """About 92,000 tensors: 61 layers and one for prediction, 256 experts each, FP8 with a scale for each block."""
    hidden, inner, dense = 7168, 2048, 18432
    found = [
        Tensor("model.embed_tokens.weight", "BF16", (129280, hidden)),
        Tensor("model.norm.weight", "BF16", (hidden,)),
        Tensor("lm_head.weight", "BF16", (129280, hidden)),
    ]

    def quantised(name: str, rows: int, columns: int) -> None:
        found.append(Tensor(f"{name}.weight", "F8_E4M3", (rows, columns)))
        found.append(Tensor(f"{name}.weight_scale_inv", "F32", (-(-rows // 128), -(-columns // 128))))

    for layer in range(62):
        prefix = f"model.layers.{layer}"
        for norm, size in (
            ("input_layernorm", hidden),
            ("post_attention_layernorm", hidden),
            ("self_attn.q_a_layernorm", 1536),
            ("self_attn.kv_a_layernorm", 512),
        ):
            found.append(Tensor(f"{prefix}.{norm}.weight", "BF16", (size,)))
        for part, rows, columns in (
            ("q_a_proj", 1536, hidden),
            ("q_b_proj", 24576, 1536),
            ("kv_a_proj_with_mqa", 576, hidden),
            ("kv_b_proj", 32768, 512),
            ("o_proj", hidden, 16384),
        ):
            quantised(f"{prefix}.self_attn.{part}", rows, columns)
        if layer >= 3:
            found.append(Tensor(f"{prefix}.mlp.gate.weight", "BF16", (256, hidden)))
            found.append(Tensor(f"{prefix}.mlp.gate.e_score_correction_bias", "F32", (256,)))
        experts = ["mlp"] if layer < 3 else [*(f"mlp.experts.{expert}" for expert in range(256)), "mlp.shared_experts"]
        width = dense if layer < 3 else inner
        for expert in experts:
            quantised(f"{prefix}.{expert}.gate_proj", width, hidden)
            quantised(f"{prefix}.{expert}.up_proj", width, hidden)
            quantised(f"{prefix}.{expert}.down_proj", hidden, width)
    return found


def write_model(
    directory: Path, tensors: Iterable[Tensor], *, shards: int, config: str, seed: int | None = None
) -> Path:
    """A sharded model directory with its index; files of holes where there is no seed for their bytes."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(config)
    weight_map = {}
    for number, part in enumerate(_split(list(tensors), shards), start=1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        _write_shard(directory / name, part, seed=None if seed is None else seed + number)
        weight_map.update(dict.fromkeys((tensor.name for tensor in part), name))
    index = {"metadata": {"total_size": 0}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return directory


def _split(tensors: Sequence[Tensor], shards: int) -> list[list[Tensor]]:
    """Consecutive tensors, about as many bytes in each part."""
    total = sum(tensor.size_bytes for tensor in tensors)
    parts: list[list[Tensor]] = [[] for _ in range(shards)]
    done = 0
    for tensor in tensors:
        parts[min(done * shards // total, shards - 1)].append(tensor)
        done += tensor.size_bytes
    return parts


def _write_shard(path: Path, tensors: Iterable[Tensor], *, seed: int | None) -> None:
    """As the safetensors library writes it: wide dtypes first, then by name, a compact header padded to 8 bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: (-BYTES_OF[tensor.dtype], tensor.name)):
        begin, end = end, end + tensor.size_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if seed is None:
            file.truncate(8 + len(text) + end)
            return
        block = random.Random(seed).randbytes(MIB)  # noqa: S311 - bytes to hash, no secret
        for number in range(-(-end // MIB)):
            # Different bytes everywhere, without drawing two gigabytes of them.
            chunk = number.to_bytes(8, "little") + block[8:]
            file.write(chunk[: min(MIB, end - number * MIB)])
