"""The names that decide digests whatever the rule: published as they are, and consistent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release import (
    adapter_config,
    draft_heads,
    gguf_metadata,
    model_config,
    quantization,
    side_files,
    tensor_metadata,
    tokenizer,
)

NAMES = Path(__file__).parents[2] / "docs" / "rules" / "names.json"


def published() -> JsonObject:
    """What docs/rules/names.json gives to other implementations; docs/fingerprint.md says what each list is for."""
    return {
        "configuration": {"dropped": sorted(model_config._DROPPED)},
        "files_beside": {
            "counted": sorted(side_files.COUNTED),
            "not_counted": sorted(side_files.HARMLESS),
            "dropped": sorted(side_files._DROPPED),
            "quantization_ends": sorted(quantization._SIDE_FILE_ENDS),
        },
        "quantization": {
            "dropped": {method: sorted(keys) for method, keys in sorted(quantization._DROPPED.items())},
            "aliases": {method: dict(aliases) for method, aliases in sorted(quantization._ALIASES.items())},
            "sets": sorted(quantization._SETS),
            "absent_if_empty": sorted(quantization._EMPTY_IS_ABSENT),
            "ordered": sorted(quantization._ORDERED),
        },
        "parameters": sorted(quantization.PARAMETERS),
        "draft_heads": {"words": sorted(draft_heads.HEAD_WORDS), "keys": sorted(draft_heads.PREDICTION_KEYS)},
        "kv_scales": sorted(quantization.KV_SCALES),
        "metadata": {"dropped": sorted(tensor_metadata._DROPPED)},
        "tokenizer": {
            "settings": sorted({tokenizer.TOKENIZER_CONFIG_NAME, *tokenizer._JSON_FILES}),
            "vocabularies": sorted(tokenizer._RAW_FILES),
            "dropped": sorted(tokenizer._TOKENIZER_DROPPED),
        },
        "generation": {
            "inherited": sorted(tokenizer._INHERITED),
            "dropped": sorted(tokenizer._GENERATION_DROPPED),
        },
        "gguf": {
            "layout": sorted(gguf_metadata._LAYOUT),
            "labels": sorted(gguf_metadata._LABELS),
            "label_prefixes": sorted(gguf_metadata._LABEL_FAMILIES),
        },
        "adapter": {
            "dropped": sorted(adapter_config._UNCOUNTED),
            "without_default": sorted(adapter_config._REQUIRED),
            "sets": sorted(adapter_config._SETS),
            "ordered": sorted(adapter_config._PATTERNS),
            "harmless_inits": sorted(adapter_config._HARMLESS_INITS),
        },
    }


def test_the_names_are_frozen_as_they_are_published(request: pytest.FixtureRequest) -> None:
    """Whatever changes this file renames digests that people hold: it needs another edition than `kvfp1`."""
    text = json.dumps(published(), indent=1) + "\n"
    if request.config.getoption("--update-golden"):
        NAMES.write_text(text, encoding="utf-8")
    assert NAMES.read_text(encoding="utf-8") == text


def test_a_name_is_in_one_list() -> None:
    assert not quantization.PARAMETERS & {"weight", "bias"}
    assert not quantization._SETS & quantization._ORDERED
    assert not set(adapter_config._SETS) & set(adapter_config._PATTERNS)
    assert not adapter_config._UNCOUNTED & adapter_config._DEFAULTS.keys()
    assert not set(adapter_config._REQUIRED) & adapter_config._DEFAULTS.keys()
    assert not gguf_metadata._LAYOUT & gguf_metadata._LABELS
