"""Draft heads are named as such, and a draft model's KV is never valid by itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.draft_heads import draft_head_of, draft_model
from kvrelease.release.families import FAMILIES
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.impact import Rule, tensor_impact, with_heads
from kvrelease.release.loading import load_release
from kvrelease.release.pair import load_pair
from tests.release.builders import LAYERS, config_json, tensors, write_release

EAGLE_THAT_SEES = {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "vision_config": {"hidden_size": 8}}
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
        (f"gpt_neox.layers.{LAYERS}.mlp.weight", PREDICTS, "multi-token prediction"),
        (f"model.layers.{LAYERS}.eh_proj.weight", {}, "multi-token prediction"),
        ("model.layers.0.draft.layers.9.weight", PREDICTS, None),
        ("model.nextn.0.weight", {}, "multi-token prediction"),
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
        ({"architectures": ["DFlashModel"]}, [], "DFlash"),
        (EAGLE_THAT_SEES, ["language_model.model.embed_tokens.weight"], None),
        ({"model_type": "eagle_chat", "vision_config": {}}, ["vision_model.x.weight"], None),
        ({"model_type": "eagle_chat", "vision_config": {}}, ["fc.weight", "d2t"], "EAGLE"),
        (EAGLE_THAT_SEES, ["fc.weight", "d2t"], "EAGLE"),
        ({"architectures": ["Eagle3Qwen2_5vlForCausalLM"], "vision_config": {}}, ["fc.weight"], "EAGLE"),
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


def test_what_makes_the_last_hidden_state_counts_where_a_head_is_stored(tmp_path: Path) -> None:
    """The head is fed the model's last hidden state, behind the final norm (vllm 0.32.0, deepseek_v2.py)."""
    head = {f"model.layers.{LAYERS}.eh_proj.weight": np.ones((8, 16), np.float32)}
    config = config_json(num_nextn_predict_layers=1)
    old = write_release(tmp_path / "old", tensors() | head, config=config)
    last = f"model.layers.{LAYERS - 1}"
    for name in ("model.norm.weight", f"{last}.self_attn.o_proj.weight", f"{last}.mlp.up_proj.weight"):
        weights = tensors() | head
        weights[name] = weights[name] * 2
        new = write_release(tmp_path / name, weights, config=config)
        pair = load_pair(old, new)
        kv = diff_fingerprints(pair.old, pair.new).kv
        assert (kv.status, kv.layers, kv.first_invalid_layer) == (KvStatus.INVALID, LAYERS + 1, LAYERS)
        assert kv.reasons[0] == (
            "1 tensor changed that the last hidden state is made by, and of that the release's draft head makes its "
            f"KV, under the same block hashes: from layer {LAYERS} on, '{name}'"
        )
        assert pair.old.release.kv_name != pair.new.release.kv_name
        without = {key: value for key, value in weights.items() if key not in head}
        bare = load_pair(
            write_release(tmp_path / f"{name}-a", tensors(), config=config),
            write_release(tmp_path / f"{name}-b", without, config=config),
        )
        assert diff_fingerprints(bare.old, bare.new).kv.status is KvStatus.VALID
    weights = tensors() | head
    weights["lm_head.weight"] = weights["lm_head.weight"] * 2  # behind it
    pair = load_pair(old, write_release(tmp_path / "output", weights, config=config))
    assert diff_fingerprints(pair.old, pair.new).kv.status is KvStatus.VALID


def test_a_head_that_comes_or_goes_makes_old_kv_invalid(tmp_path: Path) -> None:
    head = {"mtp.fc.weight": np.ones((8, 16), np.float32)}
    sides = [write_release(tmp_path / name, tensors() | extra) for name, extra in (("with", head), ("without", {}))]
    for old, new in (sides, reversed(sides)):
        pair = load_pair(old, new)
        kv = diff_fingerprints(pair.old, pair.new).kv
        assert (kv.status, kv.first_invalid_layer) == (KvStatus.INVALID, 0)
        assert "of a draft head (multi-token prediction) changed" in kv.reasons[0]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
def test_every_family_knows_what_reaches_a_head(family: Family) -> None:
    plain = Rule(name=family.rule, layers=4, ties_embeddings=False, is_quantized=False, reason=None)
    predicts: JsonObject = {"num_hidden_layers": 4, "num_nextn_predict_layers": 1}
    heads: dict[str, JsonObject] = {
        f"{family.stems[0]}.4.self_attn.x.weight": predicts,
        "mtp.fc.weight": {},
        "model.nextn.0.proj.weight": {},
        "medusa_head.0.0.linear.weight": {},
    }
    for name, entries in heads.items():
        rule = with_heads(plain, [name], entries)
        assert (rule.name, rule.layers, rule.cached_layers) == (f"{family.rule}+head", 4, 5)
    inside = f"{family.stems[0]}.3."
    known = [*family.outside, *(f"{output}.weight" for output in family.outputs), f"{inside}x.y.weight"]
    assert with_heads(plain, [*known, f"{inside}mtp.weight"], predicts) == plain
    last = [f"{inside}{part}.weight" for part, reach in family.projections.items() if reach is Reach.NEXT]
    last += [name for name, reach in family.outside.items() if reach is Reach.NOTHING and "lm_head" not in name]
    for name in (part.replace("*", "0") for part in last):
        assert (tensor_impact(name, plain).first_layer, tensor_impact(name, rule).first_layer) == (None, 4)
    for output in family.outputs:
        for parameter in ("weight", "bias"):
            if tensor_impact(f"{output}.{parameter}", plain).is_known:
                assert tensor_impact(f"{output}.{parameter}", rule).first_layer is None


def test_a_fingerprint_from_before_heads_counted_proves_nothing(tmp_path: Path) -> None:
    found = load_release(write_release(tmp_path / "model", tensors() | {"mtp.fc.weight": np.ones((2, 2), np.float32)}))
    older = msgspec.structs.replace(found, rule=msgspec.structs.replace(found.rule, name="llama.1"))
    kv = diff_fingerprints(older, older).kv
    assert kv.status is KvStatus.UNKNOWN
    assert kv.reasons[0].endswith("and the release stores one; fingerprint it again")
