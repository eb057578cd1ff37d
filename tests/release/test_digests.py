"""Digests as pure functions, against test vectors and a second implementation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.adapted import with_adapters
from kvrelease.release.address import open_source
from kvrelease.release.canonical import digest_of, encode_json
from kvrelease.release.digests import (
    config_digest,
    kv_digests,
    release_digest,
    weights_digest,
    without_tied_copy,
)
from kvrelease.release.impact import OUTPUT_LAYER, tensor_impact
from kvrelease.release.loading import load_release
from tests.release import naive, naive_release
from tests.release.builders import config_and_rule, raw_safetensors, tensors, write_json

SPECIFICATION = Path(__file__).parents[2] / "docs" / "fingerprint.md"


def payloads() -> dict[str, str]:
    return {name: digest_of("test", [name.encode()]) for name in tensors()}


def vector_release(directory: Path) -> Path:
    """The release of the test vectors in the specification."""
    directory.mkdir()
    header: JsonObject = {
        "model.embed_tokens.weight": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "model.layers.0.self_attn.k_proj.weight": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [8, 10]},
        "model.norm.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [10, 12]},
    }
    (directory / "model.safetensors").write_bytes(raw_safetensors(header, bytes(range(12))))
    write_json(directory / "config.json", {"model_type": "llama", "num_hidden_layers": 1, "rope_theta": 500000.0})
    return directory


def vector_adapter(directory: Path) -> Path:
    """The adapter of the test vectors in the specification."""
    directory.mkdir()
    module = "base_model.model.model.layers.0.self_attn.k_proj"
    header: JsonObject = {
        f"{module}.lora_A.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]},
        f"{module}.lora_B.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]},
    }
    (directory / "adapter_model.safetensors").write_bytes(raw_safetensors(header, bytes(range(8))))
    config: JsonObject = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["k_proj"], "revision": "x"}
    write_json(directory / "adapter_config.json", config)
    return directory


def test_vectors_of_the_specification(tmp_path: Path) -> None:
    """A change here is a change of the algorithm, and needs another algorithm name. A hash that is specified without
    vectors is not one: https://github.com/Stability-AI/ModelSpec/issues/1
    """
    fingerprint = load_release(vector_release(tmp_path / "vector"))
    adapter = open_source(vector_adapter(tmp_path / "adapter"))
    (adapted,) = with_adapters(fingerprint, {"x": adapter}).adapters
    found = {
        **fingerprint.tensor_digests,
        "weights": fingerprint.digests.weights,
        "config": fingerprint.digests.config,
        "generation": fingerprint.digests.generation,
        "layer 0": fingerprint.layers[0].digest,
        "kv": fingerprint.digests.kv,
        "release": fingerprint.digests.release,
        "fast": fingerprint.fast,
        "kv name": fingerprint.release.kv_name,
        "adapter alone": adapted.content,
        "release and adapter": adapted.digest,
        "kv name of both": adapted.kv_name,
        "encoded value": encode_json({"b": [1, 2.5, None], "a": "é"}).hex(),
    }
    assert found == published_vectors()


def published_vectors() -> dict[str, str]:
    return dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", SPECIFICATION.read_text(), re.MULTILINE))


def test_the_second_implementation_has_the_vectors_too(tmp_path: Path) -> None:
    found = naive_release.release(vector_release(tmp_path / "vector"))
    full, fast = found["kvfp1-full"], found["kvfp1-fast"]
    adapter = naive_release.adapter_alone(vector_adapter(tmp_path / "adapter"))
    both = naive.adapted_kv_digest(full["kv"], adapter["content"])
    assert {
        **full["tensors"],
        **{name: full[name] for name in ("weights", "kv", "release")},
        **{name: found[name] for name in ("config", "generation", "kv name")},
        "layer 0": full["layers"][0],
        "fast": fast["weights"],
        "adapter alone": adapter["content"],
        "release and adapter": both,
        "kv name of both": naive.kv_name(both),
        "encoded value": naive.value({"b": [1, 2.5, None], "a": "é"}).hex(),
    } == published_vectors()


def test_weights_digest_depends_on_names_and_contents_and_not_on_order() -> None:
    found = payloads()
    names = list(found)
    assert weights_digest(dict(reversed(found.items()))) == weights_digest(found)
    swapped = found | {names[0]: found[names[1]], names[1]: found[names[0]]}
    assert weights_digest(swapped) != weights_digest(found)


@pytest.mark.parametrize("name", sorted(tensors()))
def test_a_layers_digest_changes_exactly_when_its_kv_may(name: str) -> None:
    config, rule = config_and_rule()
    kv, layers = kv_digests(payloads(), config.entries, {}, rule)
    changed_kv, changed_layers = kv_digests(payloads() | {name: "ff" * 32}, config.entries, {}, rule)
    first = tensor_impact(name, rule).first_layer
    differs = [before != after for before, after in zip(layers, changed_layers, strict=True)]
    assert differs == [first is not None and layer >= first for layer in range(3)]
    assert (kv != changed_kv) == (first is not None)


def test_added_unknown_tensor_changes_every_layer() -> None:
    config, rule = config_and_rule()
    kv, layers = kv_digests(payloads(), config.entries, {}, rule)
    changed_kv, changed_layers = kv_digests(payloads() | {"model.extra": "ff" * 32}, config.entries, {}, rule)
    assert kv != changed_kv
    assert not set(layers) & set(changed_layers)


def test_a_tensor_of_one_layer_is_not_that_of_another() -> None:
    """A tensor that moves to the next layer keeps its bytes; the digests must still differ."""
    config, rule = config_and_rule()
    found = payloads()
    k0, k1 = "model.layers.0.self_attn.k_proj.weight", "model.layers.1.self_attn.k_proj.weight"
    swapped = found | {k0: found[k1], k1: found[k0]}
    assert kv_digests(found, config.entries, {}, rule)[0] != kv_digests(swapped, config.entries, {}, rule)[0]


def test_tied_copy_of_the_embeddings_does_not_count() -> None:
    _, tied = config_and_rule(tie_word_embeddings=True)
    _, untied = config_and_rule(tie_word_embeddings=False)
    _, unsaid = config_and_rule("gemma9", tie_word_embeddings=None)  # which its type ties by default, or not
    _, said = config_and_rule("gemma9", tie_word_embeddings=False)
    found = payloads()
    copy = found | {OUTPUT_LAYER: found["model.embed_tokens.weight"]}
    assert OUTPUT_LAYER not in without_tied_copy(copy, tied)
    assert without_tied_copy(copy, untied) == copy
    assert OUTPUT_LAYER not in without_tied_copy(copy, unsaid)
    assert without_tied_copy(copy, said) == copy
    assert without_tied_copy(found, tied) == found  # other bytes: not a copy


def test_configuration_changes_kv_unless_harmless() -> None:
    config, rule = config_and_rule()

    def kv(**changes: object) -> str:
        return kv_digests(payloads(), config.entries | changes, {}, rule)[0]

    assert kv() == kv(eos_token_id=7) == kv(use_cache=False)
    assert len({kv(), kv(rms_norm_eps=1e-5), kv(unknown_key=None), kv(unknown_key=1), kv(dtype="float16")}) == 5


def test_no_configuration_is_not_an_empty_one_and_code_counts() -> None:
    _, rule = config_and_rule("mamba")
    assert rule.layers is None
    digests = {
        kv_digests(payloads(), None, {}, rule)[0],
        kv_digests(payloads(), {}, {}, rule)[0],
        kv_digests(payloads(), {}, {"modeling.py": "00" * 32}, rule)[0],
        kv_digests(payloads(), {}, {"modeling.py": "01" * 32}, rule)[0],
    }
    assert len(digests) == 4
    assert all(digest.startswith("kvfp1-full/all.1:") for digest in digests)
    assert config_digest({}, {}, rule) != config_digest({}, {"modeling.py": "00" * 32}, rule)


def test_the_form_of_the_configuration_is_in_the_algorithms_name() -> None:
    """A table for a further model type then changes no digest of a name that exists."""
    canonical, rule = config_and_rule()
    other, unknown = config_and_rule("mamba")
    assert config_digest(canonical.entries, {}, rule).startswith("kvfp1-config/llama.1:")
    assert config_digest(other.entries, {}, unknown).startswith("kvfp1-config/all.1:")


def test_release_digest_covers_every_part() -> None:
    parts: dict[str, str | None] = {"weights": "a:00", "config": "b:00", "tokenizer": None}
    digests = {
        release_digest(parts),
        release_digest(parts | {"weights": "a:01"}),
        release_digest(parts | {"tokenizer": "c:00"}),
        release_digest({"weights": "b:00", "config": "a:00"}),
    }
    assert len(digests) == 4
