"""`adapter_config.json` in canonical form."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.adapter_config import _DEFAULTS, AdapterConfig, canonical_adapter_config, read_adapter_config
from kvrelease.release.adapter_fit import misfits_inside, misfits_with_base
from kvrelease.release.canonical import same_value
from kvrelease.release.digests import adapter_digest
from tests.release.adapters import ABSENT, RECORDED, adapter_json, adapter_tensors, stored
from tests.release.builders import local_file


def canonical(**changes: object) -> AdapterConfig:
    return canonical_adapter_config(adapter_json(**changes), where="adapter_config.json")


def same(**changes: object) -> bool:
    return same_value(canonical(**changes).entries, canonical().entries)


def test_only_what_counts_is_kept() -> None:
    found = canonical()
    assert found.entries == {"lora_alpha": 4, "peft_type": "LORA", "r": 2, "target_modules": ["q_proj", "v_proj"]}
    assert found.warnings == ()
    assert found.is_lora


def test_what_is_dropped_is_reported() -> None:
    assert canonical(revision=None).uncounted == {
        "auto_mapping": None,
        "base_model_name_or_path": "acme/support",
        "inference_mode": True,
        "lora_dropout": 0.05,
        "peft_version": "0.21.2",
        "revision": None,
        "task_type": "CAUSAL_LM",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"inference_mode": False, "base_model_name_or_path": "/mnt/base", "peft_version": ABSENT, "lora_dropout": 0.5},
        {"task_type": None, "revision": "main", "auto_mapping": {"base_model_class": "LlamaForCausalLM"}},
        {"lora_alpha": 4.0},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva"},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": "mica"},
        {"init_lora_weights": "LoRA_GA"},
        {"runtime_config": {"ephemeral_gpu_offload": True}},
        {"use_rslora": None, "bias": ABSENT, "rank_pattern": None, "alpha_pattern": ABSENT, "peft_type": ABSENT},
        {"exclude_modules": [], "modules_to_save": [], "layers_to_transform": []},
    ],
)
def test_what_every_loader_reads_alike_is_one_configuration(changes: dict[str, object]) -> None:
    assert same(**changes)


def test_an_older_peft_that_knew_fewer_keys_wrote_the_same_configuration() -> None:
    keys = ("peft_type", "r", "lora_alpha", "target_modules", "lora_dropout", "bias", "fan_in_fan_out", "task_type")
    old = {key: value for key, value in adapter_json().items() if key in keys}
    assert canonical_adapter_config(old, where="-").entries == canonical().entries


def test_the_order_of_target_modules_is_that_of_a_set_and_means_nothing() -> None:
    """PEFT saves `list(set(...))`, whose order changes from process to process."""
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"]
    shuffled = random.Random(3).sample(names, k=len(names))
    assert canonical(target_modules=names).entries == canonical(target_modules=[*shuffled, "q_proj"]).entries
    assert canonical(target_modules="q_proj|v_proj").entries["target_modules"] == "q_proj|v_proj"


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 4},
        {"lora_alpha": 32},
        {"lora_alpha": 4.5},
        {"lora_alpha": ABSENT},
        {"use_rslora": True},
        {"use_dora": True},
        {"target_modules": ["q_proj"]},
        {"target_modules": "q_proj|v_proj"},
        {"rank_pattern": {"q_proj": 4}},
        {"alpha_pattern": {"q_proj": 4}},
        {"layers_to_transform": [1]},
        {"modules_to_save": ["lm_head"]},
        {"bias": "lora_only"},
        {"fan_in_fan_out": True},
        {"exclude_modules": ["layers.0.self_attn.q_proj"]},
        {"init_lora_weights": "pissa"},
        {"trainable_token_indices": [1]},
        {"layer_replication": [[0, 2], [1, 3]]},
        {"brand_new_key": None},
        {"peft_type": "LOHA"},
    ],
)
def test_whatever_changes_what_is_computed_is_another_configuration(changes: dict[str, object]) -> None:
    """Strength and place lie in this file, not in the weights: https://github.com/sgl-project/sglang/pull/34359,
    https://github.com/adapter-hub/adapters/pull/770, https://github.com/verl-project/verl/pull/1821; rsLoRA served
    at another scale: https://github.com/sgl-project/sglang/issues/40835
    """
    assert not same(**changes)


def test_the_order_of_overlapping_patterns_counts() -> None:
    """The first key that matches a module wins, in PEFT and in vLLM."""
    pattern: JsonObject = {"q_proj": 8, "layers.0.self_attn.q_proj": 4}
    one, other = canonical(rank_pattern=pattern), canonical(rank_pattern=dict(reversed(pattern.items())))
    assert one.entries != other.entries
    assert one.pattern("rank_pattern") == [("q_proj", 8), ("layers.0.self_attn.q_proj", 4)]


def test_no_target_modules_are_not_the_same_as_none_named() -> None:
    """Where the key is absent, PEFT goes by the model's type."""
    assert canonical(target_modules=[]).entries["target_modules"] == []
    assert canonical(target_modules=[]).entries != canonical(target_modules=ABSENT).entries


def test_one_layer_and_a_list_of_it_are_one() -> None:
    assert canonical(layers_to_transform=1).entries == canonical(layers_to_transform=[1, 1]).entries
    assert canonical(layers_pattern="layers").entries == canonical(layers_pattern=["layers"]).entries


@pytest.mark.parametrize("key", ["lora_alpha", "r", "target_modules"])
def test_an_adapter_whose_strength_loaders_guess_is_a_warning(key: str) -> None:
    """https://github.com/sgl-project/sglang/pull/34359; a loader that guesses zero:
    https://github.com/invergent-ai/surogate/issues/173
    """
    for value in (ABSENT, None):
        (warning,) = canonical(**{key: value}).warnings
        assert f"has no {key}: PEFT" in warning
        assert key not in canonical(**{key: value}).entries


def test_alpha_zero_is_a_warning_and_target_parameters_replace_modules() -> None:
    """https://github.com/sgl-project/sglang/pull/34359"""
    (warning,) = canonical(lora_alpha=0).warnings
    assert "scaled to nothing" in warning
    assert canonical(target_modules=ABSENT, target_parameters=["mlp.down_proj.weight"]).warnings == ()


def test_an_adapter_that_changes_its_base_when_loaded_is_a_warning() -> None:
    """https://github.com/huggingface/transformers/issues/34468: KV of the base and of every other adapter changes with
    it.
    """
    for init in ("pissa", "pissa_niter_16", "olora", "corda", "loftq"):
        (warning,) = canonical(init_lora_weights=init).warnings
        assert f"init_lora_weights is {init!r}: PEFT changes the base's own weights" in warning


@pytest.mark.parametrize("revision", [None, "", "main", ABSENT])
def test_a_base_without_a_commit_is_a_warning(revision: object) -> None:
    """https://github.com/amazon-science/chronos-forecasting/pull/432: loaded again on a base that had moved."""
    (warning,) = canonical(revision=revision).warnings
    assert "was made for 'acme/support', and records no commit of it" in warning
    assert canonical(base_model_name_or_path=None, revision=revision).warnings == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"r": 0}, "the rank 'r' is 0"),
        ({"r": 2.5}, "the rank 'r' is 2.5"),
        ({"r": True}, "the rank 'r' is True"),
        ({"rank_pattern": {"q_proj": -1}}, "the rank 'rank_pattern q_proj' is -1"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern is no object"),
        ({"lora_alpha": "16"}, "the alpha 'lora_alpha' is '16'"),
        ({"lora_alpha": "NaN"}, "no number"),
        ({"alpha_pattern": {"q\x1b_proj": None}}, None),
        ({"alpha_pattern": {"q\x1b_proj": []}}, r"q\\x1b_proj' is []"),
        ({"target_modules": 7}, "target_modules is neither a list nor a pattern"),
        ({"target_modules": ["q_proj", 7]}, "target_modules holds something else than str"),
        ({"layers_to_transform": ["1"]}, "layers_to_transform holds something else than int"),
    ],
)
def test_a_strength_that_is_none_is_refused(changes: dict[str, object], reason: str | None) -> None:
    if reason is None:
        canonical(**changes)
        return
    with pytest.raises(DamagedFile) as caught:
        canonical(**changes)
    assert reason.replace("\\\\", "\\") in caught.value.message
    assert "\x1b" not in caught.value.message


def test_other_kinds_of_adapters_count_whole() -> None:
    found = canonical(peft_type="IA3", lora_alpha="whatever")
    assert not found.is_lora
    assert found.entries["lora_alpha"] == "whatever"
    assert "of type 'IA3': all its keys count, none is checked" in found.warnings[0]


@pytest.mark.parametrize("name", ["plain", "patterns", "dora", "tokens", "embeddings"])
def test_files_of_the_real_peft_are_canonical_and_complete(name: str) -> None:
    """A key of PEFT 0.21.2 with a default that we do not know would stay in the entries."""
    path = RECORDED / name / "adapter_config.json"
    expected: dict[str, JsonObject] = {
        "plain": {"target_modules": ["k_proj", "q_proj", "v_proj"]},
        "patterns": {
            "target_modules": ["q_proj", "v_proj"],
            "rank_pattern": [["q_proj", 4]],
            "alpha_pattern": [["layers.1.self_attn.v_proj", 2]],
            "use_rslora": True,
        },
        "dora": {"target_modules": r".*\.(k|v)_proj", "use_dora": True},
        "tokens": {"target_modules": ["k_proj"], "trainable_token_indices": [1, 2]},
        "embeddings": {"target_modules": ["embed_tokens", "k_proj"], "modules_to_save": ["lm_head"]},
    }
    found = read_adapter_config(local_file(path))
    assert found.entries == {"peft_type": "LORA", "r": 2, "lora_alpha": 4} | expected[name]
    assert set(json.loads(path.read_text())) == set(adapter_json()), "the builder and PEFT know the same keys"


def test_whatever_the_values_are_it_is_read_or_refused() -> None:
    """Seeded: any JSON value under any key, and what is read goes through every check and into a digest."""
    rng = random.Random(11)
    leaves: list[object] = [None, True, 0, -1, 7, 2.5, 1e300, "", "q_proj", "NaN", "(a+)+$", "\x1b[31m", "é", 2**63]

    def anything(depth: int = 0) -> object:
        kind = rng.randrange(5) if depth < 3 else 0
        if kind == 1:
            return [anything(depth + 1) for _ in range(rng.randrange(3))]
        if kind == 2:
            return {str(rng.choice(leaves)): anything(depth + 1) for _ in range(rng.randrange(3))}
        return rng.choice(leaves)

    tensors = stored(adapter_tensors())
    refusals: list[str] = []
    for _ in range(3000):
        changes = {key: anything() for key in rng.sample(sorted(adapter_json()), k=rng.randint(1, 4))}
        try:
            found = canonical(**changes)
        except DamagedFile as error:
            refusals.append(error.message)
            continue
        adapter_digest({"x": "00" * 32}, found.entries)
        notes = misfits_inside(found, tensors)
        notes += misfits_with_base(found, tensors, base_names=["lm_head.weight"], base_shapes={}, is_tied=False)
        assert not any("\x1b" in note for note in (*found.warnings, *notes))
    assert 300 < len(refusals) < 2700
    assert not any("\x1b" in refusal for refusal in refusals)


def test_the_table_of_the_specification_is_that_of_the_program() -> None:
    text = (Path(__file__).parents[2] / "docs" / "fingerprint.md").read_text()
    line = re.search(r"^What an absent key of a LoRA `adapter_config.json` means: (.*)\.$", text, re.MULTILINE)
    assert line is not None
    assert {key: json.loads(value) for key, value in re.findall(r"`([^`]+)` `([^`]+)`", line[1])} == _DEFAULTS
