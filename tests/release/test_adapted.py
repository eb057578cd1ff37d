"""Releases served with adapters, and adapters without a base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvrelease import artifacts
from kvrelease.errors import InputError, UsageError
from kvrelease.keys import compute_model_fingerprint
from kvrelease.release.adapted import with_adapters
from kvrelease.release.comparison import AdapterChanges, Compared
from kvrelease.release.diff import diff_fingerprints
from kvrelease.release.diff_record import KvStatus
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.loading import load_release
from kvrelease.report.diff import diff_document
from kvrelease.report.terminal import render_text
from tests.release import naive
from tests.release.adapters import RECORDED, adapter_json, adapter_tensors, source_of, write_adapter
from tests.release.builders import config_json, tensors, write_release
from tests.release.oracle import cached, first_change
from tests.release.quantized import write_quantized
from tests.release.tiny_llama import build_tiny


@pytest.fixture
def base(tmp_path: Path) -> Fingerprint:
    return load_release(write_release(tmp_path / "base"))


def served(base: Fingerprint, **directories: Path) -> Fingerprint:
    return with_adapters(base, {name: source_of(directory) for name, directory in directories.items()})


def test_an_adapter_alone_has_a_fingerprint_and_no_kv_name(tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm/issues/42125"""
    directory = write_adapter(tmp_path / "support-v3")
    found = load_release(directory, version="3")
    assert (found.release.name, found.release.version, found.release.kv_name) == ("support-v3", "3", None)
    (adapter,) = found.adapters
    assert found.digests.kv == adapter.digest == adapter.content
    assert found.digests.kv.startswith("kvfp1-adapter:")
    assert found.rule.name == "adapter.1"
    assert (found.tensors, len(found.tensor_digests), found.layers) == (12, 12, ())
    assert found.config == {"lora_alpha": 4, "peft_type": "LORA", "r": 2, "target_modules": ["q_proj", "v_proj"]}
    assert "so there is no kv name" in found.warnings[-1]
    assert load_release(directory / "adapter_model.safetensors").digests == found.digests
    saved = tmp_path / "adapter.json"
    artifacts.write(saved, found)
    assert load_release(saved).adapters == found.adapters
    with pytest.raises(InputError, match="an adapter without its base"):
        compute_model_fingerprint(directory)


def test_each_adapter_has_a_kv_name_of_its_own_and_the_base_keeps_its(tmp_path: Path, base: Fingerprint) -> None:
    """https://github.com/vllm-project/vllm/issues/42125, https://github.com/vllm-project/vllm/pull/48352"""
    one = write_adapter(tmp_path / "one")
    other = write_adapter(tmp_path / "other", adapter_tensors(seed=1))
    found = served(base, support=one, billing=other, copy=one)
    assert [adapter.name for adapter in found.adapters] == ["support", "billing", "copy"]
    support, billing, copy = found.adapters
    names = {base.release.kv_name, support.kv_name, billing.kv_name}
    assert len(names) == 3
    assert None not in names
    assert copy.kv_name == support.kv_name  # the name under which it is served makes no KV
    assert (found.digests.kv, found.release.kv_name) == (base.digests.kv, base.release.kv_name)
    assert found.digests.weights == base.digests.weights
    assert found.digests.release not in (base.digests.release, served(base, support=one).digests.release)
    assert support.content == load_release(one).digests.kv


def test_one_adapter_on_two_bases_makes_two_kinds_of_kv(tmp_path: Path, base: Fingerprint) -> None:
    """https://github.com/amazon-science/chronos-forecasting/pull/432: the base moves, the adapter stays."""
    moved = tensors()
    moved["model.layers.0.mlp.down_proj.weight"] += 1
    directory = write_adapter(tmp_path / "adapter")
    (before,) = served(base, x=directory).adapters
    (after,) = served(load_release(write_release(tmp_path / "moved", moved)), x=directory).adapters
    assert before.content == after.content
    assert before.digest != after.digest
    assert before.kv_name != after.kv_name


def test_a_saved_fingerprint_is_as_good_a_base_as_its_directory(tmp_path: Path, base: Fingerprint) -> None:
    saved = tmp_path / "base.json"
    artifacts.write(saved, base)
    directory = write_adapter(tmp_path / "adapter")
    found = served(load_release(saved), x=directory)
    assert found.adapters == served(base, x=directory).adapters
    artifacts.write(saved, found)
    assert load_release(saved) == found


def test_a_second_implementation_agrees_on_base_and_adapter(tmp_path: Path, base: Fingerprint) -> None:
    for directory in RECORDED.iterdir():
        (adapter,) = served(base, x=directory).adapters
        expected = naive.adapted_kv_digest(base.digests.kv, adapter.content)
        assert (adapter.digest, adapter.kv_name) == (expected, naive.kv_name(expected))


def test_a_base_that_names_no_kv_leaves_its_adapters_without_a_name(tmp_path: Path) -> None:
    (write_release(tmp_path / "base") / "config.json").unlink()
    (adapter,) = served(
        load_release(tmp_path / "base" / "model.safetensors"), x=write_adapter(tmp_path / "adapter")
    ).adapters
    assert adapter.kv_name is None
    assert adapter.digest.startswith("kvfp1-full/all.1+adapter:")


def test_misfits_are_warnings_that_name_the_adapter(tmp_path: Path, base: Fingerprint) -> None:
    """https://github.com/vllm-project/vllm/issues/34186"""
    directory = write_adapter(tmp_path / "a", adapter_tensors(prefix="base_model.model.model.language_model"))
    found = served(base, support=directory)
    assert found.warnings[0].startswith("adapter 'support': no module of the adapter is one of the base")


def test_the_packed_tensors_of_a_quantised_base_are_its_modules(tmp_path: Path) -> None:
    base = load_release(write_quantized(tmp_path / "base", "awq"))
    found = served(base, x=write_adapter(tmp_path / "adapter"))
    (warning,) = found.warnings  # the adapter is half as wide as that base
    assert "6 modules of the adapter have other sizes than those of the base" in warning


def test_names_are_taken_once_and_adapters_are_no_bases(tmp_path: Path, base: Fingerprint) -> None:
    directory = write_adapter(tmp_path / "a")
    with pytest.raises(UsageError, match="the adapter 'x' is in the fingerprint already"):
        served(served(base, x=directory), x=directory)
    with pytest.raises(UsageError, match="is an adapter itself"):
        served(load_release(directory), x=directory)
    assert [one.name for one in served(served(base, x=directory), y=directory).adapters] == ["x", "y"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_changes_the_kv_of_base_and_adapter_changes_its_name(tmp_path: Path) -> None:
    """Oracle: K and V of a model with the adapter's product added to its weights, as PEFT and vLLM do."""
    import torch

    config = config_json(torch_dtype=None)
    weights = tensors()
    base = load_release(write_release(tmp_path / "base", weights, config=config))
    model = build_tiny()

    def kv_of(factors: dict[str, Any], *, alpha: float, scale: float) -> list[Any]:
        with torch.no_grad():
            for name, values in weights.items():
                module = name.removesuffix(".weight")
                weight = torch.from_numpy(values)
                down = factors.get(f"base_model.model.{module}.lora_A.weight")
                if down is not None:
                    up = factors[f"base_model.model.{module}.lora_B.weight"]
                    weight = weight + alpha / scale * torch.from_numpy(up @ down)
                model.get_parameter(name).copy_(weight)
        return cached(model)

    factors = adapter_tensors(["self_attn.k_proj", "mlp.up_proj"], layers=[1, 2])
    settings: JsonChanges = {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1, 2]}
    rank = 2
    cases: list[tuple[JsonChanges, dict[str, Any], float, float]] = [
        ({"lora_alpha": 4}, factors, 4, rank),
        ({"lora_alpha": 8}, factors, 8, rank),
        ({"lora_alpha": 4, "use_rslora": True}, factors, 4, rank**0.5),
        ({"lora_alpha": 4}, adapter_tensors(["self_attn.k_proj", "mlp.up_proj"], layers=[1, 2], seed=9), 4, rank),
    ]
    made, names = [], []
    for number, (changes, tensors_of_case, alpha, scale) in enumerate(cases):
        directory = write_adapter(tmp_path / str(number), tensors_of_case, config=adapter_json(**settings, **changes))
        names.append(served(base, x=directory).adapters[0].kv_name)
        made.append(kv_of(tensors_of_case, alpha=alpha, scale=scale))
    plain = kv_of({}, alpha=1, scale=1)
    for one in range(len(cases)):
        assert first_change(plain, made[one]) == 1
        for other in range(one):
            assert first_change(made[one], made[other]) is not None
            assert names[one] != names[other]
    assert base.release.kv_name not in names


JsonChanges = dict[str, object]


# --- diff ---


def test_an_adapter_reloaded_in_place_under_its_old_name_invalidates_what_it_made(
    tmp_path: Path, base: Fingerprint
) -> None:
    """https://github.com/vllm-project/vllm/issues/42125: the key is the name, and the name survives the reload."""
    old = served(base, support=write_adapter(tmp_path / "v1"))
    new = served(base, support=write_adapter(tmp_path / "v2", adapter_tensors(seed=1)))
    found = diff_fingerprints(old, new)
    assert (found.kv.status, found.kv.valid_layers, found.kv.first_invalid_layer) == (KvStatus.INVALID, 0, 0)
    assert found.adapters == AdapterChanges(changed=("support",))
    assert "the adapter 'support' is another one (its weights changed)" in found.kv.reasons[0]
    assert "serve it under a new one" in found.kv.reasons[0]
    assert found.kv.reasons[1] == "KV of the base alone stays valid in every layer"
    assert found.summary == "Old KV is invalid for the adapters 'support', and valid without them: 1 adapter changed."
    assert found.changed == ("release",)
    page = " ".join(render_text(diff_document(found)).split())
    layers = found.kv.layers
    assert f"layers with valid KV, with 'support' 0 of {layers}" in page
    assert f"layers with valid KV, without {layers} of {layers}" in page


def test_a_changed_strength_is_told_by_its_key(tmp_path: Path, base: Fingerprint) -> None:
    """https://github.com/sgl-project/sglang/pull/34359"""
    old = served(base, support=write_adapter(tmp_path / "v1"))
    new = served(base, support=write_adapter(tmp_path / "v2", config=adapter_json(lora_alpha=64)))
    assert (
        "its weights are the same; its configuration changed in lora_alpha 4 → 64"
        in diff_fingerprints(old, new).kv.reasons[0]
    )


def test_adapters_that_come_or_go_leave_the_rest_valid(tmp_path: Path, base: Fingerprint) -> None:
    directory = write_adapter(tmp_path / "v1")
    with_one = served(base, support=directory)
    came, went = diff_fingerprints(base, with_one), diff_fingerprints(with_one, base)
    assert (came.kv.status, went.kv.status) == (KvStatus.VALID, KvStatus.VALID)
    assert (came.adapters, went.adapters) == (AdapterChanges(added=("support",)), AdapterChanges(removed=("support",)))
    assert came.kv.notes[-1].startswith("new adapters: 'support'")
    assert went.kv.notes == ("adapters that are gone: 'support'",)
    same = diff_fingerprints(with_one, with_one)
    assert (same.kv.status, same.adapters.count, same.kv.reasons, same.kv.notes) == (KvStatus.VALID, 0, (), ())


def test_a_moved_base_invalidates_base_and_adapters(tmp_path: Path, base: Fingerprint) -> None:
    moved = tensors()
    moved["model.layers.1.self_attn.k_proj.weight"] += 1
    directory = write_adapter(tmp_path / "a")
    old, new = served(base, x=directory), served(load_release(write_release(tmp_path / "moved", moved)), x=directory)
    found = diff_fingerprints(old, new)
    assert (found.kv.status, found.kv.first_invalid_layer) == (KvStatus.INVALID, 1)
    assert found.adapters.changed == ("x",)


def test_a_base_and_an_adapter_have_nothing_in_common_that_could_change(tmp_path: Path, base: Fingerprint) -> None:
    alone = load_release(write_adapter(tmp_path / "v1"))
    for pair, files in (((base, alone), "BASE.json WITH.json"), ((alone, base), "WITH.json BASE.json")):
        found = diff_fingerprints(*pair)
        assert (found.kv.status, found.changed, found.config, found.tokenizer) == (KvStatus.UNKNOWN, (), (), None)
        assert (found.adapters, found.kv.notes, found.generation, found.templates) == (AdapterChanges(), (), (), ())
        assert found.tensors.compared is Compared.NOTHING
        assert {"release", "weights", "config", "adapters"} <= {*found.unknown}
        assert "no change was seen; not known: the weights" in found.summary
        assert found.advice[0].endswith(f"then kvrelease diff {files}")


def test_an_adapter_alone_says_nothing_about_kv_even_if_it_did_not_change(tmp_path: Path) -> None:
    found = load_release(write_adapter(tmp_path / "a"))
    kv = diff_fingerprints(found, found).kv
    assert kv.status is KvStatus.UNKNOWN
    assert "an adapter without its base" in kv.reasons[0]
    other = load_release(write_adapter(tmp_path / "b", config=adapter_json(lora_alpha=8)))
    changes = diff_fingerprints(found, other)
    assert [change.key for change in changes.config] == ["lora_alpha"]
    assert set(changes.changed) == {"release", "kv", "config"}
    assert changes.kv.notes[-1] == (
        "the adapter 'b' is another one (its weights are the same; its configuration changed in lora_alpha 4 → 8)"
    )


def test_terminal_escapes_in_names_stay_data(tmp_path: Path, base: Fingerprint) -> None:
    evil = {f"base_model.model.\x1b[31m{name}": value for name, value in adapter_tensors(layers=[0]).items()}
    directory = write_adapter(tmp_path / "a", evil, config=adapter_json(target_modules=["q\x1b[31m"]))
    found = with_adapters(base, {"x\x1b[31m": source_of(directory)})
    assert found.warnings
    assert not any("\x1b" in warning for warning in found.warnings)
    assert json.loads(artifacts.to_json(found))["adapters"][0]["name"] == "x\x1b[31m"
