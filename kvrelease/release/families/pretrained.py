"""What every configuration of transformers has, whatever its model type. Pure, and frozen with every rule that uses it.

Source: transformers 5.24.0, configuration_utils.py (`PreTrainedConfig`); tests hold it against the installed version.
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.quantization import SIDE_FILES

# What an absent key means.
CONFIG_DEFAULTS: JsonObject = {
    "bos_token_id": None,
    "chunk_size_feed_forward": 0,
    "dtype": None,
    "eos_token_id": None,
    "is_encoder_decoder": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "pad_token_id": None,
    "problem_type": None,
    "quantization_config": None,
    "return_dict": True,
    "use_cache": True,
}

# Read in training, in sampling, by other tools, or for the output layer only.
HARMLESS_KEYS = frozenset(
    {
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tie_word_embeddings",  # decides which tensors count (family.py); KV reads the input embeddings either way
        "torchscript",
        "transformers.js_config",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)
# They choose what is computed, or how the weights are stored; known beyond the defaults' keys.
AFFECTING_KEYS = frozenset({"auto_map", "model_type", "rope_theta", *SIDE_FILES})
