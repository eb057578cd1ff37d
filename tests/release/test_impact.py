"""The rule, and its oracle: real K and V of tiny random models."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from kvrelease.release.families.family import KeyEffect
from kvrelease.release.families.llama import LLAMA
from kvrelease.release.impact import (
    ALL_RULE,
    Rule,
    TensorImpact,
    config_affects_kv,
    key_effect,
    rule_for,
    tensor_impact,
)
from kvrelease.release.model_config import canonical_config
from tests.release.builders import LAYERS, config_and_rule, config_json

UNTIED = Rule(name=LLAMA.rule, layers=4, ties_embeddings=False, is_quantized=False, reason=None)

ORACLE_CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral with a window": ("mistral", {"sliding_window": 4}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
}


def build(model_type: str, **changes: object) -> Any:
    """A tiny random model of transformers, and the rule of its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    make_config: Any = AutoConfig.for_model  # untyped, or too narrowly
    make_model: Any = AutoModelForCausalLM
    raw = config_json(model_type, torch_dtype=None, transformers_version=None, **changes)
    config = make_config(**raw)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the models are far too small for more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_model.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms start at one and biases at zero, which hides dependencies
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model


def keys_and_values(model: Any) -> list[Any]:
    """One tensor per layer that holds K and V of 12 tokens."""
    import torch
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    with torch.no_grad():
        model.model(input_ids=torch.arange(12).unsqueeze(0) % 32, past_key_values=cache, use_cache=True)
    return [torch.stack((layer.keys, layer.values)) for layer in cache.layers]


def first_change(before: list[Any], after: list[Any]) -> int | None:
    pairs = enumerate(zip(before, after, strict=True))
    return next((layer for layer, (old, new) in pairs if not bool((old == new).all())), None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("case", ORACLE_CASES)
def test_prediction_meets_the_first_layer_that_really_changes(case: str) -> None:
    import torch

    model_type, changes = ORACLE_CASES[case]
    model = build(model_type, **changes)
    _, rule = config_and_rule(model_type, **changes)
    before = keys_and_values(model)
    wrong = {}
    names = [name for name, _ in model.named_parameters()]
    assert len(names) > 9 * LAYERS
    for name, parameter in model.named_parameters():
        saved = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1.25).add_(torch.randn_like(parameter) * 0.1)
        measured = first_change(before, keys_and_values(model))
        with torch.no_grad():
            parameter.copy_(saved)
        predicted = tensor_impact(name, rule)
        # Equality is more than is promised (never less careful), and holds for these models: keep it sharp.
        if predicted != TensorImpact(first_layer=measured):
            wrong[name] = (predicted, measured)
    assert wrong == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("model_type", LLAMA.types)
def test_harmless_keys_leave_keys_and_values_alone(model_type: str) -> None:
    others: dict[str, object] = {
        "attention_dropout": 0.5,
        "bos_token_id": 5,
        "eos_token_id": 6,
        "pad_token_id": 7,
        "initializer_range": 0.5,
        "output_attentions": True,
        "output_hidden_states": True,
        "return_dict": False,
        "problem_type": "regression",
        "task_specific_params": {"a": 1},
        "unsloth_version": "2025.1",
        "transformers.js_config": {"a": 1},
    }
    expected = keys_and_values(build(model_type))
    for key, value in others.items():
        assert key_effect(key, UNTIED) is KeyEffect.HARMLESS
        assert first_change(expected, keys_and_values(build(model_type, **{key: value}))) is None, key


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("change", [{"rms_norm_eps": 0.5}, {"rope_theta": 100.0}, {"hidden_act": "gelu"}])
def test_affecting_keys_do_change_keys_and_values(change: dict[str, object]) -> None:
    (key,) = change
    _, rule = config_and_rule()
    assert config_affects_kv(key, rule)
    assert first_change(keys_and_values(build("llama")), keys_and_values(build("llama", **change))) is not None


@pytest.mark.parametrize(
    ("name", "first_layer"),
    [
        ("model.embed_tokens.weight", 0),
        ("model.layers.2.input_layernorm.weight", 2),
        ("model.layers.2.self_attn.k_proj.weight", 2),
        ("model.layers.2.self_attn.v_proj.bias", 2),
        ("model.layers.2.self_attn.k_norm.weight", 2),
        ("model.layers.2.self_attn.qkv_proj.weight", 2),
        ("model.layers.2.self_attn.q_proj.weight", 3),
        ("model.layers.2.self_attn.q_norm.weight", 3),
        ("model.layers.2.self_attn.o_proj.weight", 3),
        ("model.layers.2.post_attention_layernorm.weight", 3),
        ("model.layers.2.mlp.gate_up_proj.weight", 3),
        ("model.layers.3.self_attn.q_proj.bias", None),
        ("model.layers.3.self_attn.o_proj.weight", None),
        ("model.layers.3.mlp.down_proj.weight", None),
        ("model.layers.3.post_attention_layernorm.weight", None),
        ("model.layers.3.self_attn.k_proj.weight", 3),
        ("model.norm.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_known_tensors(name: str, first_layer: int | None) -> None:
    assert tensor_impact(name, UNTIED) == TensorImpact(first_layer=first_layer)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.4.mlp.down_proj.weight",  # beyond the model: a draft head, perhaps
        "model.layers.03.mlp.down_proj.weight",
        "model.layers.3.mlp.experts.0.down_proj.weight",
        "model.layers.3.mlp.down_proj.weight_scale",
        "model.layers.3.self_attn.rotary_emb.inv_freq",
        "model.layers.3.self_attn.sinks",
        "layers.3.mlp.down_proj.weight",
        "model.norm.weight\n",
        "lm_head.bias",
        "",
    ],
)
def test_unknown_tensors_touch_everything(name: str) -> None:
    assert tensor_impact(name, UNTIED) == TensorImpact(first_layer=0, is_known=False)


def test_tied_output_layer_with_other_bytes_touches_everything() -> None:
    _, rule = config_and_rule(tie_word_embeddings=True)
    assert tensor_impact("lm_head.weight", rule).first_layer == 0


def test_query_of_a_quantised_model_counts_as_key() -> None:
    _, rule = config_and_rule(quantization_config={"quant_method": "fp8"})
    assert tensor_impact("model.layers.2.self_attn.q_proj.weight", rule).first_layer == 2


@pytest.mark.parametrize("model_type", LLAMA.types)
def test_the_family_has_a_rule(model_type: str) -> None:
    _, rule = config_and_rule(model_type)
    assert rule == Rule(name=LLAMA.rule, layers=LAYERS, ties_embeddings=False, is_quantized=False, reason=None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mamba"}, "no dependency rule is known for model type 'mamba'"),
        ({"model_type": None}, "does not say its model_type"),
        ({"architectures": ["MixtralForCausalLM"]}, r"the architecture is \['MixtralForCausalLM'\]"),
        ({"auto_map": {"AutoModel": "modeling.Model"}}, "brings code of its own"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ],
)
def test_other_models_have_none_and_say_why(changes: dict[str, object], reason: str) -> None:
    rule = rule_for(canonical_config(config_json(**changes)))
    assert (rule.name, rule.layers) == (ALL_RULE, None)
    assert rule.reason is not None
    assert re.search(reason, rule.reason)
    assert tensor_impact("model.norm.weight", rule) == TensorImpact(first_layer=0, is_known=False)
    assert config_affects_kv("eos_token_id", rule)


def test_unknown_configuration_key_affects() -> None:
    assert key_effect("brand_new_key", UNTIED) is KeyEffect.UNKNOWN
    assert config_affects_kv("brand_new_key", UNTIED)
    assert not config_affects_kv("eos_token_id", UNTIED)
