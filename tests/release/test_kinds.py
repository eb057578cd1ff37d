"""Models that no rule for a text decoder fits: each says why, in words of its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.impact import ALL_RULE, rule_for
from kvrelease.release.kinds import why_beyond_rules
from kvrelease.release.loading import load_release
from kvrelease.release.model_config import canonical_config
from tests.release.builders import tensors, write_release

SEES_OR_HEARS = "whose KV also depends on images or sound, and on what encodes them"
HAS_AN_ENCODER = "an encoder-decoder, whose KV also depends on the encoder and on its input"
SHARES_KV = "some of whose layers read the KV of others"

KINDS: dict[str, tuple[str, ...]] = {
    SEES_OR_HEARS: (
        "aria",
        "chameleon",
        "cohere2_vision",
        "deepseek_vl",
        "emu3",
        "gemma3",
        "gemma3n",
        "glm4v",
        "glm4v_moe",
        "idefics3",
        "internvl",
        "kimi_k25",
        "llama4",
        "llava",
        "llava_next",
        "llava_onevision",
        "mistral3",
        "mllama",
        "ovis2",
        "paligemma",
        "phi4_multimodal",
        "qwen2_5_omni",
        "qwen2_5_vl",
        "qwen2_audio",
        "qwen2_vl",
        "qwen3_omni_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
        "smolvlm",
        "voxtral",
    ),
    HAS_AN_ENCODER: ("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "seamless_m4t", "t5", "umt5", "whisper"),
    SHARES_KV: ("gemma3n_text",),
}


def as_saved(model_type: str) -> JsonObject:
    """`config.json` as transformers writes it."""
    import transformers
    from transformers import AutoConfig

    logging: Any = transformers.logging
    make_config: Any = AutoConfig.for_model
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        saved: JsonObject = json.loads(make_config(model_type).to_json_string(use_diff=True))
    finally:
        logging.set_verbosity(verbosity)
    return saved


@pytest.mark.parametrize(
    ("model_type", "why"), [(model_type, why) for why, types in KINDS.items() for model_type in types]
)
def test_a_model_beyond_text_is_unknown_and_says_what_it_is(model_type: str, why: str) -> None:
    rule = rule_for(canonical_config(as_saved(model_type)))
    assert (rule.name, rule.layers) == (ALL_RULE, None)
    assert (
        f"no dependency rule is known for model type {model_type!r}, {why} (docs/kv-validity.md lists those with one)"
        in str(rule.reason)
    )


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"model_type": "llava_llama", "mm_vision_tower": "openai/clip-vit-large-patch14-336"}, SEES_OR_HEARS),
        ({"model_type": "qwen", "visual": {"image_size": 448}}, SEES_OR_HEARS),
        ({"model_type": "internvl_chat", "llm_config": {}, "vision_config": {}}, SEES_OR_HEARS),
        ({"model_type": "x", "text_config": {"vision_config": {}}}, SEES_OR_HEARS),
        ({"model_type": "x", "image_token_index": 7}, SEES_OR_HEARS),
        ({"model_type": "x", "thinker_config": {"audio_token_id": 7}}, SEES_OR_HEARS),
        ({"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2}, SHARES_KV),
        ({"model_type": "x", "text_config": {"num_kv_shared_layers": 4}}, SHARES_KV),
        ({"model_type": "x", "text_config": {"hidden_size": 8}}, "a larger model around the one that answers"),
    ],
)
def test_files_of_models_with_their_own_code_say_it_otherwise(stated: JsonObject, why: str) -> None:
    assert why_beyond_rules(stated) == f", {why}"


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"is_encoder_decoder": False, "num_kv_shared_layers": 0, "use_cla": False},
        {"text_config": "a name", "attn_config": {}, "audio_channels": 1},
        {"vision_config": None, "image_token_id": None, "visual": None},
    ],
)
def test_a_text_decoder_without_a_rule_is_only_of_an_unknown_type(stated: JsonObject) -> None:
    assert why_beyond_rules(stated) == ""


def test_two_releases_that_see_are_unknown_to_each_other_with_the_reason(tmp_path: Path) -> None:
    config = {**as_saved("qwen2_5_vl"), "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    old = load_release(write_release(tmp_path / "old", tensors(0), config=config))
    new = load_release(write_release(tmp_path / "new", tensors(1), config=config))
    kv = diff_fingerprints(old, new).kv
    assert kv.status is KvStatus.UNKNOWN
    assert SEES_OR_HEARS in kv.reasons[0]
