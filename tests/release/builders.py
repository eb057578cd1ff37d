"""Releases on disk, and their parts, for the tests of `kvrelease.release`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from kvrelease.artifacts import JsonObject
from kvrelease.release.expectation import expected_shapes
from kvrelease.release.impact import Rule, rule_for
from kvrelease.release.local_source import LocalFile
from kvrelease.release.model_config import ModelConfig, canonical_config

Tensors = dict[str, NDArray[np.float32]]

LAYERS = 3
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def config_json(model_type: object = "llama", **changes: object) -> JsonObject:
    """A `config.json` of a model with three small layers; a value of None removes the key."""
    config: JsonObject = {
        "architectures": [ARCHITECTURES.get(str(model_type), "OtherForCausalLM")],
        "model_type": model_type,
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "transformers_version": "4.40.0",
        "tie_word_embeddings": False,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not None}


def config_and_rule(model_type: object = "llama", **changes: object) -> tuple[ModelConfig, Rule]:
    """The same, read."""
    config = canonical_config(config_json(model_type, **changes))
    return config, rule_for(config)


def tensors(seed: int = 0, model_type: str = "llama", *, is_tied: bool = False) -> Tensors:
    """Random weights that fit `config_json(model_type)`."""
    config, rule = config_and_rule(model_type, tie_word_embeddings=is_tied)
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in sorted(expected_shapes(config, rule).items())
    }


def local_file(path: Path) -> LocalFile:
    """A file on its own, as readers of formats take it."""
    return LocalFile(path=path, name=path.name)


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def write_release(
    directory: Path,
    weights: Tensors | None = None,
    *,
    config: JsonObject | None = None,
    shards: int = 1,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """A model directory written by the safetensors library: one file, or shards with an index."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = tensors() if weights is None else weights
    write_json(directory / "config.json", config_json() if config is None else config)
    if shards == 1:
        save_file(weights, directory / "model.safetensors", metadata=dict(metadata or {}) or None)
        return directory
    names = sorted(weights)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        save_file({name: weights[name] for name in part}, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return directory


def write_text_side(directory: Path) -> Path:
    """Tokenizer, chat template and generation files, small and plausible."""
    write_json(directory / "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}})
    write_json(directory / "tokenizer_config.json", {"bos_token": "<s>", "chat_template": "{{ messages }}"})
    write_json(directory / "generation_config.json", {"temperature": 0.6, "transformers_version": "4.40.0"})
    return directory


def hub_cache(model: Path, root: Path) -> Path:
    """The same release as a Hub cache keeps it: blobs, and a snapshot of links to them."""
    repository = root / "models--acme--support"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copy(path, repository / "blobs" / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    return snapshot


def raw_safetensors(header: bytes | JsonObject, data: bytes = b"") -> bytes:
    """The bytes of a safetensors file with whatever header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, *, dtype: str = "U8", shape: Sequence[int] | None = None) -> JsonObject:
    """A header's entry."""
    return {"dtype": dtype, "shape": [end - begin] if shape is None else list(shape), "data_offsets": [begin, end]}


def write_hub_model(directory: Path) -> Path:
    """A release in three shards with everything beside the weights that a model on the Hub has."""
    write_text_side(write_release(directory, shards=3))
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (directory / "README.md").write_text("# Support")
    return directory
