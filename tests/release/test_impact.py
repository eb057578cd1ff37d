"""Which layer a tensor touches under a rule, which keys count, and which models have no rule."""

from __future__ import annotations

import re

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
        "model.layers.3.self_attn.rotary_emb.cos_cached",
        "model.rotary_emb.inv_freq",
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
