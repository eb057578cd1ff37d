from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, NotFound
from kvrelease.release.canonical import same_value
from kvrelease.release.families import FAMILY_OF_TYPE
from kvrelease.release.families.family import KeyEffect
from kvrelease.release.families.llama import LLAMA
from kvrelease.release.model_config import canonical_config, read_model_config
from tests.release.builders import config_json, local_file, write_json
from tests.release.published_dense import PUBLISHED_DENSE
from tests.release.published_experts import PUBLISHED_EXPERTS

SPECIFICATION = Path(__file__).parents[2] / "docs" / "fingerprint.md"

# The keys of files as they are published: Llama 3.1 8B Instruct, Mistral 7B v0.3, Qwen2.5 7B, Qwen3 8B, SmolLM2 135M.
PUBLISHED: dict[str, JsonObject] = {
    "llama-3.1": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
        "use_cache": True,
        "vocab_size": 128256,
    },
    "mistral-v0.3": {
        "architectures": ["MistralForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.0.dev0",
        "use_cache": True,
        "vocab_size": 32768,
    },
    "qwen2.5": {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": 3584,
        "initializer_range": 0.02,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "model_type": "qwen2",
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 12288,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "smollm2": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 576,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        "transformers_version": "4.42.3",
        "use_cache": True,
        "vocab_size": 49152,
    },
    **PUBLISHED_EXPERTS,
    **PUBLISHED_DENSE,
}


def entries(raw: JsonObject) -> JsonObject:
    return canonical_config(raw).entries


@pytest.mark.parametrize("model", PUBLISHED)
def test_saving_again_with_transformers_changes_no_canonical_entry(model: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    write_json(tmp_path / "config.json", PUBLISHED[model])
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert "torch_dtype" not in again  # the new notation, else this proves nothing
    assert "rope_theta" not in again
    assert entries(again) == entries(PUBLISHED[model])


@pytest.mark.parametrize("model", PUBLISHED)
def test_every_published_key_is_known(model: str) -> None:
    family = FAMILY_OF_TYPE[str(PUBLISHED[model]["model_type"])]
    assert [key for key in entries(PUBLISHED[model]) if family.key_effect(key) is KeyEffect.UNKNOWN] == []


@pytest.mark.parametrize("model_type", FAMILY_OF_TYPE)
def test_defaults_and_key_tables_are_those_of_transformers(model_type: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    explicit = json.loads(config.to_json_string(use_diff=False))
    labels = ("id2label", "label2id")
    kept = {key: value for key, value in entries(explicit).items() if key not in labels}
    assert kept == entries({"model_type": model_type})
    family = FAMILY_OF_TYPE[model_type]
    assert [key for key in entries(explicit) if family.key_effect(key) is KeyEffect.UNKNOWN] == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"torch_dtype": "bfloat16"}, {"torch_dtype": None, "dtype": "bfloat16"}),
        ({"torch_dtype": "torch.float16"}, {"torch_dtype": "float16"}),
        ({"rope_theta": 5e5}, {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500000}}),
        ({"rope_theta": None}, {"rope_theta": 10000}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 10000.0}},
        ),
        ({"_name_or_path": "/home/me/model"}, {"transformers_version": "5.24.0"}),
        ({"head_dim": None}, {"head_dim": 4}),
        ({"mlp_bias": None}, {"mlp_bias": False}),
    ],
)
def test_two_notations_of_one_model_are_equal(left: JsonObject, right: JsonObject) -> None:
    """Rotary parameters: https://github.com/vllm-project/vllm/pull/28542, https://github.com/sgl-project/sglang/pull/14745,
    https://github.com/deepspeedai/DeepSpeed/pull/8345. The dtype's name: https://github.com/unslothai/unsloth-zoo/pull/286,
    https://github.com/EfficientMoE/MoE-Infinity/pull/106
    """
    left_entries, right_entries = entries(config_json(**left)), entries(config_json(**right))
    assert same_value(left_entries, right_entries), (left_entries, right_entries)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 10001.0},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"partial_rotary_factor": 0.5},
        {"rms_norm_eps": 1e-5},
        {"torch_dtype": "bfloat16"},
        {"head_dim": 8},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"quantization_config": {"quant_method": "fp8"}},
        {"something_new": None},
        {"something_new": 1},
    ],
)
def test_another_model_is_another_configuration(change: JsonObject) -> None:
    assert not same_value(entries(config_json() | change), entries(config_json()))


def test_mistral_without_a_window_is_not_mistral_with_the_default_one() -> None:
    raw = config_json("mistral")
    assert entries(raw | {"sliding_window": None}) != entries(raw)
    assert entries(raw | {"sliding_window": 4096}) == entries(raw)


def test_contradictions_are_kept_and_reported() -> None:
    raw = config_json(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, dtype="float16")
    config = canonical_config(raw)
    assert config.entries["rope_theta"] == 10000.0
    assert len(config.warnings) == 2
    assert not same_value(config.entries, entries(raw | {"rope_theta": 500000.0}))


@pytest.mark.parametrize(
    "key",
    [
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "torch_dtype",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize(
    "notations",
    [
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 500000.0}},
        {
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
            "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 500000.0},
        },
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500000.0}}},
        {"rope_scaling": "linear", "dtype": "float16"},
        {"dtype": "float16"},
    ],
    ids=str,
)
def test_no_statement_of_a_file_is_lost_beside_another(notations: JsonObject, key: str) -> None:
    """Two files that differ in one key that may count have two canonical forms, whatever else they say."""
    values: list[object] = ["float32", "bfloat16"] if key == "torch_dtype" else [0.25, 0.5, 4096, 8192]
    forms = [entries(config_json(**notations, **{key: value})) for value in values]
    for index, form in enumerate(forms):
        assert not any(same_value(form, other) for other in forms[index + 1 :])


def test_two_notations_that_agree_are_one() -> None:
    both: JsonObject = {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5},
        "rope_theta": 5e5,
    }
    config = canonical_config(config_json(**both))
    assert not config.warnings
    assert same_value(config.entries, entries(config_json(rope_parameters=both["rope_parameters"], rope_theta=None)))


def test_other_model_types_keep_what_they_say() -> None:
    raw = config_json("mamba", rope_theta=1.0)
    assert entries(raw | {"window": None}) == {
        **{key: value for key, value in raw.items() if key not in ("torch_dtype", "transformers_version")},
        "dtype": "float32",
        "window": None,
    }


def test_sub_configurations_are_in_the_same_form_at_every_depth() -> None:
    """Models of several inputs have one for each: transformers 5 writes `dtype` in all, 4 wrote `torch_dtype`."""

    def stated(**inner: object) -> JsonObject:
        return {"text_config": {"hidden_size": 8, **inner}, "deep_config": {"audio_config": {**inner}, "list": [1]}}

    old = entries(config_json("other", **stated(torch_dtype="torch.bfloat16", transformers_version="4.1")))
    assert old == entries(config_json("other", **stated(dtype="bfloat16", _name_or_path="/x")))
    assert old["text_config"] == {"hidden_size": 8, "dtype": "bfloat16"}
    assert old != entries(config_json("other", **stated(dtype="float16")))
    assert old != entries(config_json("other", **stated()))
    both = canonical_config(config_json("other", **stated(dtype="float16", torch_dtype="bfloat16")))
    assert both.entries["text_config"] == {"hidden_size": 8, "dtype": "float16", "torch_dtype": "bfloat16"}
    assert "text_config in config.json says dtype 'float16' and torch_dtype 'bfloat16'; engines differ" in both.warnings
    nested = {"quantization_config": {"torch_dtype": "a"}, "other": {"torch_dtype": "a"}}
    kept = entries(config_json("other", **nested))
    assert (kept["quantization_config"], kept["other"]) == ({"torch_dtype": "a"}, {"torch_dtype": "a"})


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_where_windows_begin_counts_only_where_there_are_any(model_type: str) -> None:
    def at(layer: int, **changes: object) -> JsonObject:
        return entries(config_json(model_type, max_window_layers=layer, **changes))

    assert at(1) == at(3) == at(1, use_sliding_window=False)
    assert at(1, use_sliding_window=True) != at(3, use_sliding_window=True)


def test_a_llama_that_speaks_of_windows_without_their_size_is_read() -> None:
    """The key is Qwen's; a Llama that has it has no default for the size."""
    found = canonical_config(config_json(use_sliding_window=True, max_window_layers=1)).entries
    assert found["layer_types"] == ["full_attention"] * 3
    assert canonical_config(config_json(use_sliding_window=False)).entries["sliding_window"] is None


def test_version_of_the_writer_is_reported_and_no_entry() -> None:
    config = canonical_config(config_json())
    assert config.transformers_version == "4.40.0"
    assert "transformers_version" not in config.entries


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(config_json()).encode())
    assert read_model_config(local_file(path)).entries == entries(config_json())


def test_numbers_that_strict_json_lacks_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": Infinity, "b": NaN, "c": 1e999, "d": 1000000000000000019884624838656}')
    assert read_model_config(local_file(path)).entries == {"a": "Infinity", "b": "NaN", "c": "1e999", "d": 1e30}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"hidden_size": 8, "hidden_size": 9}', "the key 'hidden_size' occurs twice"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' occurs twice"),
        ("[1]", "expected a JSON object, found list"),
        ("", "not valid JSON"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ('{"a": ' + "[" * 70 + "]" * 70 + "}", "nested deeper"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_damaged_configuration_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(DamagedFile, match=reason) as caught:
        read_model_config(local_file(path))
    assert str(path) in caught.value.message


def test_too_large_or_absent_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(NotFound):
        read_model_config(local_file(path))
    with path.open("wb") as file:
        file.truncate(65 * 1024 * 1024)
    with pytest.raises(DamagedFile, match="more than the"):
        read_model_config(local_file(path))


def test_the_tables_of_the_specification_are_those_of_the_program() -> None:
    """`llama.1` is frozen: another default or another harmless key is another rule."""
    text = SPECIFICATION.read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text[text.index("## Tables") :], re.MULTILINE)
    for column, model_type in enumerate(("llama", "mistral", "qwen2", "qwen3")):
        cells = {key: row.split(" | ")[column].strip(" `") for key, row in rows}
        assert {key: json.loads(cell) for key, cell in cells.items() if cell} == LLAMA.types[model_type]
    harmless = re.search(r"^Of these and of keys beyond, KV does not depend on (.*)\.$", text, re.MULTILINE)
    assert harmless is not None
    named = re.findall(r"`([^`]+)`", harmless[1])
    everything = {*named, *(key for key, _ in rows), "auto_map", "model_type", "rope_theta", "hf_quant_config.json"}
    assert {key for key in everything if LLAMA.key_effect(key) is KeyEffect.HARMLESS} == set(named)
    assert len(named) == len(LLAMA.harmless)
