"""`diff` of releases whose tensors were laid out anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kv
from tests.release.builders import tensors, write_release
from tests.release.test_relayout import fused

PROVEN = "re-laid-out, proven equal content: 15 tensors as 6"


@pytest.fixture
def pair(workdir: Path) -> tuple[Path, Path]:
    """`old`, and `new` with the same weights in fused tensors."""
    return write_release(workdir / "old", tensors(1)), write_release(workdir / "new", fused(tensors(1)))


def test_the_first_line_says_that_the_weights_are_the_same(kv: Kv, pair: tuple[Path, Path]) -> None:
    result = kv("diff", "old", "new", "--fail-on", "kv")
    assert result.code == 1
    assert f"INVALID  Old KV is invalid from layer 0 on: {PROVEN}." in result.out
    assert "0 renamed, 15 re-laid-out" in result.out


def test_a_saved_fingerprint_on_one_side_is_enough(kv: Kv, pair: tuple[Path, Path]) -> None:
    kv("fingerprint", "old", "-o", "old.json")
    assert PROVEN in kv("diff", "old.json", "new").out
    kv("fingerprint", "new", "-o", "new.json")
    assert "re-laid-out, equality not proven: 15 tensors as 6" in kv("diff", "old.json", "new.json").out


def test_the_artifact_has_every_name(kv: Kv, pair: tuple[Path, Path]) -> None:
    found = json.loads(kv("diff", "old", "new", "--format", "json").out)
    relaid = found["tensors"]["relaid"]
    assert {one["status"] for one in relaid} == {"equal"}
    assert sorted(name for one in relaid for name in one["new"]) == sorted(
        name for name in fused(tensors(1)) if "qkv_proj" in name or "gate_up_proj" in name
    )


def test_drift_leaves_them_out_and_says_so(kv: Kv, pair: tuple[Path, Path]) -> None:
    page = kv("diff", "old", "new", "--drift").out
    assert "re-laid-out tensors are not measured: 15 of the old release" in page


def test_a_release_that_transformers_saved_with_stacked_experts(kv: Kv, workdir: Path) -> None:
    """Mixtral, as the Hub has it and as transformers 5 saves it when asked for its own layout."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=3,
    )
    model = MixtralForCausalLM(config)
    model.save_pretrained("hub")
    model.save_pretrained("stacked", save_original_format=False)
    summary = json.loads(kv("diff", "hub", "stacked", "--format", "json").out)["summary"]
    assert summary.endswith(
        "renamed, proven equal content: 2 tensors; re-laid-out, proven equal content: 18 tensors as 4."
    )
