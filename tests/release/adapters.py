"""LoRA adapters on disk, for the tests of `kvrelease.release`: what PEFT 0.21.2 writes, and variations of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from kvrelease.artifacts import JsonObject
from kvrelease.release.local_source import open_directory
from kvrelease.release.source import Source
from kvrelease.release.weights import StoredTensor
from tests.release.builders import LAYERS, write_json

RECORDED = Path(__file__).parent / "recorded" / "peft-0.21.2"
ABSENT = object()

# [out, in] of the modules of `builders.config_json()`.
SHAPES = {
    "self_attn.q_proj": (8, 8),
    "self_attn.k_proj": (4, 8),
    "self_attn.v_proj": (4, 8),
    "self_attn.o_proj": (8, 8),
    "mlp.up_proj": (16, 8),
    "mlp.down_proj": (8, 16),
}
AdapterTensors = dict[str, NDArray[np.float32]]


def adapter_json(**changes: object) -> JsonObject:
    """An `adapter_config.json` with all keys; `ABSENT` removes one."""
    config: JsonObject = {
        "alora_invocation_tokens": None,
        "alpha_pattern": {},
        "arrow_config": None,
        "auto_mapping": None,
        "base_model_name_or_path": "acme/support",
        "bias": "none",
        "corda_config": None,
        "ensure_weight_tying": False,
        "eva_config": None,
        "exclude_modules": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "kasa_config": None,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_alpha": 4,
        "lora_bias": False,
        "lora_dropout": 0.05,
        "lora_ga_config": None,
        "megatron_config": None,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "monteclora_config": None,
        "peft_type": "LORA",
        "peft_version": "0.21.2",
        "qalora_group_size": 16,
        "r": 2,
        "rank_pattern": {},
        "revision": "0123abcd",
        "target_modules": ["v_proj", "q_proj"],
        "target_parameters": None,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": None,
        "use_bdlora": None,
        "use_dora": False,
        "use_qalora": False,
        "use_rslora": False,
        "velora_config": None,
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not ABSENT}


def adapter_tensors(
    parts: Sequence[str] = ("self_attn.q_proj", "self_attn.v_proj"),
    *,
    layers: Sequence[int] = tuple(range(LAYERS)),
    rank: int = 2,
    seed: int = 0,
    prefix: str = "base_model.model.model",
) -> AdapterTensors:
    """Random factors of some modules of each layer."""
    generator = np.random.default_rng(seed)
    found: AdapterTensors = {}
    for layer in layers:
        for part in parts:
            rows, columns = SHAPES[part]
            module = f"{prefix}.layers.{layer}.{part}"
            found[f"{module}.lora_A.weight"] = generator.standard_normal((rank, columns)).astype(np.float32)
            found[f"{module}.lora_B.weight"] = generator.standard_normal((rows, rank)).astype(np.float32)
    return found


def write_adapter(
    directory: Path,
    tensors: AdapterTensors | None = None,
    *,
    config: JsonObject | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """A directory as PEFT writes it."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(
        adapter_tensors() if tensors is None else tensors,
        directory / "adapter_model.safetensors",
        metadata=dict(metadata or {"format": "pt"}),
    )
    write_json(directory / "adapter_config.json", adapter_json() if config is None else config)
    return directory


def source_of(directory: Path) -> Source:
    """The directory, opened."""
    return open_directory(directory)


def stored(tensors: AdapterTensors) -> list[StoredTensor]:
    """The same tensors as a reader would find them."""
    return [
        StoredTensor(name=name, dtype="F32", shape=array.shape, where="a", offset=0, size_bytes=array.nbytes)
        for name, array in tensors.items()
    ]
