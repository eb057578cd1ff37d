"""What headers say beside their tensors (`__metadata__`): notes, but of TorchAO what the tensors mean. Pure.

A quantised tensor of TorchAO is stored as several plain ones, and the metadata say of which kind it is and how they go
together. Source: vllm 0.32.0, model_executor/model_loader/default_loader.py and weight_utils.py (load strategy
`torchao`); transformers 5.24.0, quantizers/quantizer_torchao.py (`set_metadata`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.release.canonical import encode_json
from kvrelease.release.model_config import ModelConfig
from kvrelease.release.quantization import quantization_methods
from kvrelease.release.weights import WeightFile

# The entry of the configuration in which they count; no configuration has a key of that name.
KEY = "__metadata__"
_METHOD = "torchao"
# Which library wrote the file.
_DROPPED = frozenset({"format"})


def with_metadata(config: ModelConfig, files: Sequence[WeightFile]) -> ModelConfig:
    """The configuration with the metadata of the weight files, where they decide what the tensors mean.

    Each file's are one object, because its tensors are rebuilt by them; sorted, so that file names do not count.
    """
    if _METHOD not in quantization_methods(config.stated):
        return config
    objects = [{key: text for key, text in (file.metadata or {}).items() if key not in _DROPPED} for file in files]
    entry = {KEY: sorted((found for found in objects if found), key=encode_json)}
    return msgspec.structs.replace(
        config,
        entries=dict(sorted((config.entries | entry).items())),
        stated=dict(sorted((config.stated | entry).items())),
    )
