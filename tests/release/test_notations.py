"""Two files have one canonical form only where transformers reads them alike: every family's notations, at random."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import encode_json
from kvrelease.release.families import FAMILY_OF_TYPE
from kvrelease.release.model_config import canonical_config

FILES = 40

_BLOCKS: tuple[object, ...] = (
    None,
    {"rope_type": "default"},
    {"type": "linear", "factor": 2.0},
    {"rope_type": "linear", "factor": 2},
    {"rope_type": "linear", "factor": 2, "rope_theta": 77},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    {"type": "su", "short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 32},
)
_LAYERED: tuple[object, ...] = (
    {"full_attention": {"rope_type": "default", "rope_theta": 77}},
    {"full_attention": {"rope_type": "default", "rope_theta": 77}, "sliding_attention": {"rope_type": "default"}},
    {"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 77}},
)
# Key → what a file may say of it.
STATEMENTS: dict[str, tuple[object, ...]] = {
    "rope_parameters": (*_BLOCKS, *_LAYERED),
    "rope_scaling": _BLOCKS,
    "rope_theta": (77, 10000.0, 500000),
    "partial_rotary_factor": (None, 0.25, 0.5, 1.0),
    "original_max_position_embeddings": (None, 32, 4096),
    "rotary_emb_base": (77, 10000),
    "rotary_pct": (None, 0.25, 0.5),
    "rope_local_base_freq": (77, 10000),
    "sliding_window_pattern": (2, 6),
    "layer_types": (None, ["full_attention"] * 2, ["sliding_attention", "full_attention"]),
    "num_key_value_heads": (2, 4),
    "num_kv_heads": (2, 4),
    "head_dim": (8, 16),
    "n_layer": (2, 4),
    "tie_word_embeddings": (True, False),
}
SIZES: JsonObject = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0}


def files(model_type: str, *, count: int) -> Iterator[JsonObject]:
    """Small files of the type, each with a few statements that its family or any other one knows."""
    draw = random.Random(model_type)
    for _ in range(count):
        keys = draw.sample(sorted(STATEMENTS), draw.randint(0, 3))
        yield {"model_type": model_type, **SIZES, **{key: draw.choice(STATEMENTS[key]) for key in keys}}


def as_transformers_reads(raw: JsonObject) -> JsonObject | None:
    """What the library makes of a file, without what only repeats something else; None where it refuses the file."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    make_config: Any = AutoConfig.for_model
    with contextlib.suppress(StrictDataclassError, AttributeError, KeyError, TypeError, ValueError):
        read: Any = json.loads(make_config(**json.loads(json.dumps(raw))).to_json_string(use_diff=False))
        rope = read.get("rope_parameters") or {}
        for block in (rope, *(block for block in rope.values() if isinstance(block, dict))):
            if block.get("type") == block.get("rope_type"):
                block.pop("type", None)
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
            if read.get(key) is not None and key in rope and read[key] == rope[key]:
                del read[key]
        if read.get("layer_types") is not None:
            read.pop("sliding_window_pattern", None)
            read.pop("_sliding_window_pattern", None)
        return {key: value for key, value in read.items() if value is not None}
    return None


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("model_type", FAMILY_OF_TYPE)
def test_equal_forms_are_read_alike(model_type: str) -> None:
    readings: dict[bytes, set[bytes]] = {}
    for raw in files(model_type, count=FILES):
        if (reading := as_transformers_reads(raw)) is not None:
            readings.setdefault(encode_json(canonical_config(raw).entries), set()).add(encode_json(reading))
    assert [form for form, alike in readings.items() if len(alike) > 1] == []
