"""The specification (docs/fingerprint.md and its files), and two implementations of it that agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile
from kvrelease.release.adapter_config import canonical_adapter_config
from kvrelease.release.canonical import encode_json, same_value
from kvrelease.release.families import FAMILIES
from kvrelease.release.families.family import Family
from kvrelease.release.impact import Rule, rule_for, tensor_impact
from kvrelease.release.loading import load_release
from kvrelease.release.mode import Mode
from kvrelease.release.model_config import canonical_config
from kvrelease.release.quantization import canonical_quantization
from tests.release import naive, naive_config, naive_release
from tests.release.adapters import adapter_json
from tests.release.builders import config_json, tensors, write_release, write_text_side
from tests.release.quantized import CONFIGURATIONS, write_quantized
from tests.release.vectors import published, write_case

CASES = published()
RELEASES = [case for case in CASES if "adapter_config.json" not in case["files"]]
ADAPTERS = [case for case in CASES if "adapter_config.json" in case["files"]]


def name_of(case: dict[str, Any]) -> str:
    return str(case["name"])


def release_of(directory: Path) -> JsonObject:
    """Every digest of a release, in both modes."""
    found: JsonObject = {}
    for mode, algorithm in ((Mode.FULL, "kvfp1-full"), (Mode.FAST, "kvfp1-fast")):
        read = load_release(directory, mode=mode)
        digests = read.digests
        found[algorithm] = {
            "tensors": read.tensor_digests,
            "weights": digests.weights,
            "layers": [layer.digest for layer in read.layers],
            "kv": digests.kv,
            "release": digests.release,
        }
        assert read.fast == found.setdefault("fast", read.fast)
        small = ("config", "tokenizer", "template", "generation")
        found |= {"canonical": read.config, **{name: getattr(digests, name) for name in small}}
        if mode is Mode.FULL:
            found["kv name"] = read.release.kv_name
    assert found.pop("fast") == found["kvfp1-fast"]["weights"]  # type: ignore[index]
    return found


def adapter_of(directory: Path) -> JsonObject:
    read = load_release(directory)
    digests = read.digests
    assert read.adapters[0].content == digests.kv
    return {
        "canonical": read.config,
        **{name: getattr(digests, name) for name in ("config", "tokenizer", "template", "generation", "weights")},
        "tensors": read.tensor_digests,
        "content": digests.kv,
        "release": digests.release,
        "fast": read.fast,
    }


@pytest.mark.parametrize("case", RELEASES, ids=name_of)
def test_both_implementations_have_the_published_digests_of_a_release(case: dict[str, Any], tmp_path: Path) -> None:
    """A change here is a change of the algorithm, and needs another algorithm name."""
    directory = write_case(tmp_path / "release", case)
    assert naive_release.release(directory) == case["digests"]
    assert release_of(directory) == case["digests"]


@pytest.mark.parametrize("case", ADAPTERS, ids=name_of)
def test_both_implementations_have_the_published_digests_of_an_adapter(case: dict[str, Any], tmp_path: Path) -> None:
    """A change here is a change of the algorithm, and needs another algorithm name."""
    directory = write_case(tmp_path / "adapter", case)
    assert naive_release.adapter_alone(directory) == case["digests"]
    assert adapter_of(directory) == case["digests"]


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "acme"])
def test_both_implementations_agree_on_a_release_as_it_is_written(model_type: str, tmp_path: Path) -> None:
    config = config_json(model_type, tie_word_embeddings=True)
    directory = write_release(tmp_path / "model", tensors(is_tied=True), config=config, shards=2)
    write_text_side(directory)
    assert release_of(directory) == naive_release.release(directory)


@pytest.mark.parametrize(
    ("head", "keys", "has_head"),
    [
        ("mtp.fc.weight", {}, True),
        ("model.layers.3.input_layernorm.weight", {"num_nextn_predict_layers": 1}, True),
        ("model.layers.3.input_layernorm.weight", {}, False),
        ("model.layers.2.mtp.weight", {"num_nextn_predict_layers": 1}, False),
    ],
)
def test_both_implementations_agree_on_draft_heads(
    head: str, keys: dict[str, Any], has_head: bool, tmp_path: Path
) -> None:
    weights = tensors() | {head: tensors()["model.norm.weight"]}
    directory = write_release(tmp_path / "model", weights, config=config_json(**keys))
    found = release_of(directory)
    assert found == naive_release.release(directory)
    assert load_release(directory).rule.name == ("llama.1+head" if has_head else "llama.1")


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_both_implementations_agree_on_quantised_checkpoints(form: str, tmp_path: Path) -> None:
    directory = write_quantized(tmp_path / "model", form)
    assert release_of(directory) == naive_release.release(directory)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.rule)
@pytest.mark.parametrize(("is_quantized", "is_tied"), [(False, False), (True, False), (True, True)])
def test_both_implementations_know_the_first_layer_of_every_name(
    family: Family, is_quantized: bool, is_tied: bool
) -> None:
    table = naive.rule_table(family.rule)
    rule = Rule(name=family.rule, layers=3, ties_embeddings=is_tied, is_quantized=is_quantized, reason=None)
    parts = [*table["norms"], *table["projections"], "self_attn.unheard_of"]
    kinds = ["weight", "bias", *naive.NAMES["parameters"], "weight.quant_state.bitsandbytes__int8", "unheard_of"]
    below = [f"{part}.{kind}" for part in parts for kind in kinds]
    below += [*naive.NAMES["kv_scales"], *table["parameters"], "self_attn.k_scale.more"]
    stems = [stem.removesuffix(".N") for stem in table["layers"]]
    numbers = ("0", "2", "3", "02")
    names = [f"{stem}.{number}.{rest}" for stem in stems for number in numbers for rest in below]
    names = [name.replace("*", number) for name in names for number in (("7", "07", "1000000") if "*" in name else "7")]
    modules = [*table["embeddings"], *table["output_layer"]]
    names += [*table["outside"], *(f"{module}.{kind}" for module in modules for kind in kinds), "model.unheard.of"]
    found = {name: tensor_impact(name, rule).first_layer for name in names}
    again = {
        name: naive.first_layer(name, table, layers=3, is_quantized=is_quantized, is_tied=is_tied) for name in names
    }
    assert found == again
    assert {None, 0, 2} <= set(found.values())


LEAVES: list[object] = [
    None,
    True,
    False,
    0,
    1,
    3,
    2.5,
    1e4,
    "",
    "a",
    "float16",
    "torch.float16",
    [],
    {},
    ["b", "a", "b"],
]
LEAVES += [["a", 1], {"b": None, "a": 1}, [{"a": None}], 2**63, 1e300]
KEYS: dict[str, list[object]] = {
    "torch_dtype": ["torch.float16"],
    "dtype": ["float16", "bfloat16"],
    "rope_theta": [1e4, 10000, 5e5],
    "rope_scaling": [{"type": "yarn", "factor": 2.0}, {"rope_type": "default"}, {"type": "a", "rope_type": "llama3"}],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 10000}, {"rope_type": "yarn", "factor": 2}, {"a": {}}],
    "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [2048],
    "max_position_embeddings": [2048, 4096],
    "num_key_value_heads": [1],
    "head_dim": [4],
    "num_attention_heads": [2, -1],
    "hidden_size": [8],
    "use_sliding_window": [True, False],
    "sliding_window": [16],
    "max_window_layers": [1, 2],
    "layer_types": [["full_attention"] * 3],
    "num_hidden_layers": [3, 10_000, 10_001],
    "tie_word_embeddings": [True],
    "architectures": [["LlamaForCausalLM"]],
    "auto_map": [{"AutoModel": "m.C"}],
    "text_config": [{"torch_dtype": "torch.float16", "vision_config": {"_name_or_path": "x", "dtype": "a"}}],
    "quantization_config": [{"quant_method": "gptq", "w_bit": 4}, {"torch_dtype": "torch.a"}],
    "compression_config": [{"quant_method": "awq", "w_bit": 4}],
    "_name_or_path": ["x"],
    "unheard_of": ["x"],
}


def test_both_implementations_agree_on_whatever_a_configuration_says() -> None:
    """Seeded: any value under any key that some step reads."""
    rng, rules = random.Random(20), set()
    for _ in range(1500):
        chosen = rng.sample(sorted(KEYS), k=rng.randint(0, 8))
        changes = {key: rng.choice(KEYS[key] if rng.random() < 0.7 else LEAVES) for key in chosen}
        raw = config_json(rng.choice(["llama", "mistral", "qwen2", "qwen3", "acme"]))
        raw = {key: item for key, item in raw.items() if rng.random() < 0.9 or key == "model_type"} | changes
        config, other = canonical_config(raw), naive_config.canonical(raw)
        rule = rule_for(config)
        entries = config.stated if rule.layers is None else config.entries
        assert encode_json(entries) == naive.value(other.entries), raw
        assert (rule.name, rule.layers) == (other.rule, other.layers), raw
        assert rule.ties_embeddings == other.is_tied, raw
        if rule.layers is not None:
            assert rule.is_quantized == other.is_quantized, raw
        rules.add(rule.name)
    assert rules == {"llama.1", "all.1"}


def test_both_implementations_agree_on_whatever_says_how_a_checkpoint_is_quantised() -> None:
    """Seeded, likewise."""
    lists: Any = naive.NAMES["quantization"]
    keys = {"quant_method", "quantization", "producer", "meta", "unheard_of"}
    keys |= {*lists["sets"], *lists["absent_if_empty"], *lists["ordered"]}
    keys |= {key for one in lists["dropped"].values() for key in one}
    keys |= {key for one in lists["aliases"].values() for pair in one.items() for key in pair}
    rng = random.Random(21)
    usual: dict[str, list[object]] = {
        "quant_method": ["gptq", "awq", "compressed-tensors", "torchao"],
        "producer": [{"name": "a", "version": "1"}, {"version": None}],
        "meta": [{"quantizer": ["a:1", "b"]}, {"quantizer": "a:1:2"}, {"quantizer": 1}],
    }

    def block(depth: int = 0) -> JsonObject:
        chosen = rng.sample(sorted(keys), k=rng.randint(0, 6)) + (["quant_method"] if depth == 0 else [])
        return {key: item(key, depth) for key in chosen}

    def item(key: str, depth: int) -> object:
        if depth < 3 and rng.random() < (0.9 if key == "quantization" else 0.15):
            return block(depth + 1)
        return rng.choice(usual.get(key, LEAVES) if rng.random() < 0.8 else LEAVES)

    for _ in range(1500):
        raw = block()
        assert encode_json(canonical_quantization(raw)) == naive.value(naive_config.quantization(raw)), raw


def test_both_implementations_agree_on_whatever_an_adapter_says() -> None:
    """Seeded, likewise; what is refused has no form."""
    rng, read = random.Random(22), 0
    more: list[object] = ["gaussian", "LoRA_GA", "pissa", {"q": 1, "k": 2}, ["q", "k", "q"], "none", [1, 0], "IA3"]
    for _ in range(1500):
        raw = adapter_json()
        for key in rng.sample([*sorted(raw), "unheard_of", "runtime_config"], k=rng.randint(1, 5)):
            raw[key] = rng.choice([*more, *LEAVES])
        try:
            found = canonical_adapter_config(raw, where="-").entries
        except DamagedFile:
            continue
        read += 1
        assert same_value(found, naive_config.adapter(raw)), raw
    assert read > 250
