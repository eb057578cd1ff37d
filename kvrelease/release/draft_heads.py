"""Heads that draft tokens for a model: their KV lies under the model's own block hashes. Pure.

A draft head reads the hidden states of the model that it drafts for, so KV of the two belongs together: another head or
another target makes the head's old KV wrong. Sources: vllm 0.32.0, model_executor/models/deepseek_mtp.py (layers beyond
num_hidden_layers), qwen3_next_mtp.py (`mtp.`), llama_eagle.py and llama_eagle3.py (`fc`, `midlayer`, `d2t`), medusa.py;
transformers_utils/configs/eagle.py and speculators/base.py (their configurations).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kvrelease.artifacts import JsonObject

PREDICTION = "multi-token prediction"
_LAYER = re.compile(r"(?:[^.]+\.)*?(?:layers|h|blocks)\.(0|[1-9][0-9]{0,5})\.")
# How many layers beyond the last one predict further tokens.
PREDICTION_KEYS = ("mtp_num_hidden_layers", "mtp_num_layers", "num_mtp_layers", "num_nextn_predict_layers")
# In names of tensors, whatever stands around them.
HEAD_WORDS = {
    "dflash": "DFlash",
    "draft": "a draft",
    "eagle": "EAGLE",
    "eh_proj": PREDICTION,
    "enorm": PREDICTION,
    "hnorm": PREDICTION,
    "hydra": "Hydra",
    "medusa": "Medusa",
    "midlayer": "EAGLE",
    "mtp": PREDICTION,
    "nextn": PREDICTION,
    "specul": "a speculator",
}
_DRAFT_WORDS = {
    "eagle": "EAGLE",
    "medusa": "Medusa",
    "mtp": PREDICTION,
    "speculator": "a speculator",
    "draft": "a draft",
    "dflash": "DFlash",
}
_DRAFT_KEYS = ("draft_vocab_size", "speculators_config", "speculators_model_type", "eagle_config")
# An EAGLE head joins the target's hidden state with the embedding of the next token.
_EAGLE_TENSORS = ("d2t", "midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight")


def draft_head_of(tensor: str, config: JsonObject) -> str | None:
    """What kind of draft head a tensor belongs to; None where it belongs to the model itself.

    Args:
        tensor: name of it.
        config: canonical entries of `config.json`.
    """
    match = _LAYER.match(tensor)
    layers = config.get("num_hidden_layers")
    if match is not None and isinstance(layers, int):
        if int(match[1]) >= layers and any(config.get(key) for key in PREDICTION_KEYS):
            return PREDICTION
        if int(match[1]) < layers and tensor.startswith("model.layers."):
            return None
    words = tensor.casefold()
    return next((kind for word, kind in HEAD_WORDS.items() if word in words), None)


def draft_model(config: JsonObject, tensors: Mapping[str, str]) -> str | None:
    """What kind of draft model a whole release is; None where it is a model of its own.

    Args:
        config: canonical entries of `config.json`.
        tensors: by their names.
    """
    architectures = config.get("architectures")
    words = [str(name) for name in architectures] if isinstance(architectures, list) else []
    words.append(str(config.get("model_type", "")))
    for word, kind in _DRAFT_WORDS.items():
        if any(word in text.casefold() for text in words) and not (word == "eagle" and _sees(config, words, tensors)):
            return kind
    if any(config.get(key) is not None for key in _DRAFT_KEYS) or _are_eagles(tensors):
        return "EAGLE"
    return None


def _sees(config: JsonObject, architectures: Iterable[str], tensors: Iterable[str]) -> bool:
    """Whether a model is one of NVIDIA's Eagle that see, not a draft: those store no tower and generate by a head.

    Source: vllm 0.32.0, model_executor/models/registry.py (`Eagle2_5_VLForConditionalGeneration`; every draft model's
    architecture ends in `ForCausalLM`, `Model` or `MTP`).
    """
    is_named = any(name.endswith("ForConditionalGeneration") for name in architectures)
    return isinstance(config.get("vision_config"), dict) and (is_named or any("vision" in name for name in tensors))


def _are_eagles(tensors: Iterable[str]) -> bool:
    names = set(tensors)
    return "fc.weight" in names and any(name in names for name in _EAGLE_TENSORS)
