"""Draft heads are named as such, and a draft model's KV is never valid by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.draft_heads import draft_head_of, draft_model
from kvrelease.release.pair import load_pair
from tests.release.builders import LAYERS, config_json, tensors, write_release

PREDICTS = {"num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("tensor", "config", "kind"),
    [
        (f"model.layers.{LAYERS}.eh_proj.weight", PREDICTS, "multi-token prediction"),
        (f"model.layers.{LAYERS}.self_attn.q_proj.weight", PREDICTS, "multi-token prediction"),
        ("mtp.layers.0.self_attn.q_proj.weight", {}, "multi-token prediction"),
        ("model.mtp_layers.0.mlp.up_proj.weight", {}, "multi-token prediction"),
        ("medusa_head.0.0.linear.weight", {}, "Medusa"),
        ("eagle.fc.weight", {}, "EAGLE"),
        (f"model.layers.{LAYERS - 1}.self_attn.q_proj.weight", PREDICTS, None),
        (f"model.layers.{LAYERS}.self_attn.q_proj.weight", {"num_hidden_layers": LAYERS}, None),
        (f"model.layers.{LAYERS}.mlp.weight", PREDICTS | {"num_nextn_predict_layers": 0}, None),
        (f"model.layers.{LAYERS}.mlp.weight", PREDICTS | {"num_hidden_layers": "x"}, None),
        ("model.embed_tokens.weight", PREDICTS, None),
    ],
)
def test_a_tensor_belongs_to_a_draft_head_or_to_the_model(tensor: str, config: JsonObject, kind: str | None) -> None:
    assert draft_head_of(tensor, config) == kind


@pytest.mark.parametrize(
    ("config", "names", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, [], "EAGLE"),
        ({"model_type": "eagle"}, [], "EAGLE"),
        ({"model_type": "medusa"}, [], "Medusa"),
        ({"model_type": "llama", "draft_vocab_size": 32000}, [], "EAGLE"),
        ({"model_type": "llama"}, ["fc.weight", "layers.0.self_attn.q_proj.weight"], "EAGLE"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, ["model.norm.weight"], None),
        ({"model_type": "bert"}, ["fc.weight"], None),
        ({}, [], None),
    ],
)
def test_a_release_is_a_draft_model_or_one_of_its_own(config: JsonObject, names: list[str], kind: str | None) -> None:
    assert draft_model(config, dict.fromkeys(names, "")) == kind


def test_a_changed_draft_head_is_named_in_the_reason(tmp_path: Path) -> None:
    config = config_json(num_nextn_predict_layers=1)
    head = f"model.layers.{LAYERS}.eh_proj.weight"
    old = write_release(tmp_path / "old", tensors() | {head: np.zeros((2, 2), np.float32) + 1}, config=config)
    new = write_release(tmp_path / "new", tensors() | {head: np.zeros((2, 2), np.float32) + 2}, config=config)
    pair = load_pair(old, new)
    found = diff_fingerprints(pair.old, pair.new)
    assert found.kv.status is KvStatus.INVALID
    assert found.kv.reasons[0] == (
        "1 tensor of a draft head (multi-token prediction) changed, whose KV is made from the model's hidden states "
        f"and lies under the same block hashes, so old KV counts as invalid from layer 0 on: '{head}'"
    )


def test_equal_draft_models_are_valid_only_with_the_model_that_they_draft_for(tmp_path: Path) -> None:
    config = config_json(draft_vocab_size=32)
    pair = load_pair(*(write_release(tmp_path / name, config=config) for name in ("old", "new")))
    found = diff_fingerprints(pair.old, pair.new)
    assert found.kv.status is KvStatus.UNKNOWN
    assert "the release drafts for another model (EAGLE)" in found.summary
