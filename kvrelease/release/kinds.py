"""Kinds of models whose KV no rule for a text decoder could tell, by their configuration. Pure.

Sources: transformers 5.24.0, models/*/configuration_*.py (`sub_configs`, `is_encoder_decoder`, `num_kv_shared_layers`);
vllm 0.32.0, model_executor/models (`kv_sharing_target_layer_name`), hy_v3_mtp.py (`use_cla`). Files of models that
bring their own code say `mm_vision_tower` (LLaVA), `visual` (Qwen-VL), `vit_config`.
"""

from __future__ import annotations

from kvrelease.artifacts import JsonObject

# Keys that only models of images, video or sound have: parts that read them, and what stands for them among the tokens.
_OTHER_INPUTS = frozenset(
    {
        "mm_vision_tower",
        "vision_tower",
        "visual",
        "vq_config",
        "codec_config",
        "detectron2_config",
        "image_token_id",
        "image_token_index",
        "video_token_id",
        "audio_token_id",
        "audio_token_index",
    }
)
# Words in the names of nested configurations, for the same.
_SENSES = ("audio", "image", "speech", "video", "vision", "vit_")
# The configuration of the text decoder inside a larger model.
_INNER = ("text_config", "language_config", "llm_config", "thinker_config")
# Layers that read K and V of an earlier one: of that layer the rules do not know what touches it.
_SHARED_KV = ("num_kv_shared_layers", "use_cla")


def why_beyond_rules(stated: JsonObject) -> str:
    """What about a model makes KV depend on more than a rule for text could say: a clause, or nothing.

    Args:
        stated: the canonical configuration as it is stated.
    """
    inner = _inner(stated)
    if stated.get("is_encoder_decoder") is True:
        return ", an encoder-decoder, whose KV also depends on the encoder and on its input"
    if takes_other_inputs(stated):
        return ", whose KV also depends on images or sound, and on what encodes them"
    if any(part.get(key) for part in (stated, *inner) for key in _SHARED_KV):
        return ", some of whose layers read the KV of others"
    if inner:
        return ", a larger model around the one that answers"
    return ""


def takes_other_inputs(stated: JsonObject) -> bool:
    """Whether a configuration says that the model takes images, video or sound; a key that is null says nothing.

    Args:
        stated: its entries, in whichever form.
    """
    return any(
        value is not None and _is_of_other_inputs(key)
        for part in (stated, *_inner(stated))
        for key, value in part.items()
    )


def _is_of_other_inputs(key: str) -> bool:
    return key in _OTHER_INPUTS or (key.endswith("_config") and any(sense in key for sense in _SENSES))


def _inner(stated: JsonObject) -> list[JsonObject]:
    """The configurations of text decoders inside a larger model."""
    return [part for name in _INNER if isinstance(part := stated.get(name), dict)]
