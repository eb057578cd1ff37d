"""Dense families beyond Llama's: names as published, notations, and configurations without a rule."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value
from kvrelease.release.digests import without_tied_copy
from kvrelease.release.families import FAMILY_OF_TYPE
from kvrelease.release.impact import Rule, TensorImpact, rule_for, tensor_impact
from kvrelease.release.model_config import ModelConfig, canonical_config
from tests.release.published_dense import PUBLISHED_DENSE


def config_of(model_type: str, **changes: object) -> ModelConfig:
    """A file that says the type and no more, but for changes."""
    return canonical_config({"model_type": model_type, **changes})


def rule_of(model_type: str, **changes: object) -> Rule:
    """The rule of a model of four layers."""
    family = FAMILY_OF_TYPE[model_type]
    return rule_for(config_of(model_type, **{family.layers_key: 4, **changes}))


@pytest.mark.parametrize("model", PUBLISHED_DENSE)
def test_published_models_have_the_rule_of_their_type_unless_they_bring_code(model: str) -> None:
    raw = PUBLISHED_DENSE[model]
    rule = rule_for(canonical_config(raw))
    if "auto_map" in raw:
        assert (rule.name, rule.layers) == ("all.1", None)
        assert "auto_map" in str(rule.reason)
    raw = {key: value for key, value in raw.items() if key != "auto_map"}
    family = FAMILY_OF_TYPE[str(raw["model_type"])]
    rule = rule_for(canonical_config(raw))
    assert (rule.name, rule.layers) == (family.rule, raw[family.layers_key])


NOTHING = None
EVERYTHING = 0
GPTQ: JsonObject = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


@pytest.mark.parametrize(
    ("model_type", "changes", "name", "first_layer"),
    [
        ("gpt2", {}, "wte.weight", EVERYTHING),
        ("gpt2", {}, "transformer.wpe.weight", EVERYTHING),
        ("gpt2", {}, "h.2.attn.c_attn.bias", 2),
        ("gpt2", {}, "h.2.attn.bias", NOTHING),
        ("gpt2", {}, "transformer.h.2.attn.masked_bias", NOTHING),
        ("gpt2", {}, "h.2.mlp.c_proj.weight", 3),
        ("gpt2", {}, "h.3.ln_2.bias", NOTHING),
        ("gpt2", {}, "ln_f.bias", NOTHING),
        ("gpt_neox", {}, "gpt_neox.embed_in.weight", EVERYTHING),
        ("gpt_neox", {}, "gpt_neox.layers.2.attention.query_key_value.bias", 2),
        ("gpt_neox", {}, "gpt_neox.layers.2.attention.rotary_emb.inv_freq", 2),
        ("gpt_neox", {}, "gpt_neox.layers.2.attention.bias", NOTHING),
        ("gpt_neox", {}, "gpt_neox.layers.2.post_attention_layernorm.bias", 3),
        ("gpt_neox", {}, "embed_out.weight", NOTHING),
        ("gpt_neox", {"tie_word_embeddings": True}, "embed_out.weight", EVERYTHING),
        ("falcon", {}, "transformer.word_embeddings.weight", EVERYTHING),
        ("falcon", {}, "transformer.h.2.ln_attn.weight", 2),
        ("falcon", {}, "transformer.h.2.ln_mlp.weight", 3),
        ("falcon", {"tie_word_embeddings": False}, "lm_head.weight", NOTHING),
        ("falcon", {"tie_word_embeddings": None}, "lm_head.weight", EVERYTHING),
        ("falcon", GPTQ, "transformer.h.2.self_attention.query_key_value.qweight", 2),
        ("falcon", GPTQ, "transformer.h.2.mlp.dense_4h_to_h.scales", 3),
        ("gemma2", {}, "model.layers.2.pre_feedforward_layernorm.weight", 3),
        ("gemma2", {}, "model.layers.2.self_attn.q_proj.weight", 3),
        ("gemma2", GPTQ, "model.layers.2.self_attn.q_proj.g_idx", 2),
        ("gemma3_text", {}, "model.layers.2.self_attn.k_norm.weight", 2),
        ("gemma3_text", GPTQ, "model.layers.2.self_attn.q_norm.weight", 3),
        ("phi3", {}, "model.layers.2.self_attn.qkv_proj.weight", 2),
        ("phi3", {}, "model.layers.2.mlp.gate_up_proj.weight", 3),
        ("phi", {}, "lm_head.bias", NOTHING),
        ("phi", {}, "model.layers.2.self_attn.dense.bias", 3),
        ("cohere", {}, "model.layers.2.self_attn.q_norm.weight", 3),
        ("cohere", {}, "model.layers.2.self_attn.k_scale", 2),
        ("olmo2", {}, "model.layers.2.post_attention_layernorm.weight", 3),
        ("exaone4", {}, "model.layers.2.self_attn.k_norm.weight", 2),
        ("exaone4", {}, "model.layers.2.post_attention_layernorm.weight", 3),
        ("exaone4", GPTQ, "model.layers.2.self_attn.q_proj.qweight", 2),
        ("glm4", {}, "model.layers.2.post_self_attn_layernorm.weight", 3),
        ("stablelm", {}, "model.layers.2.self_attn.k_layernorm.norms.31.weight", 2),
        ("starcoder2", {}, "model.norm.bias", NOTHING),
    ],
)
def test_tensors_as_published(model_type: str, changes: JsonObject, name: str, first_layer: int | None) -> None:
    assert tensor_impact(name, rule_of(model_type, **changes)) == TensorImpact(first_layer=first_layer)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("gpt2", "model.layers.2.self_attn.k_proj.weight"),
        ("gpt2", "h.2.crossattention.c_attn.weight"),
        ("gpt2", "h.4.attn.bias"),
        ("gpt_neox", "layers.2.attention.bias"),
        ("gpt_neox", "gpt_neox.rotary_emb.inv_freq"),
        ("falcon", "transformer.h.2.self_attention.maskless.weight"),
        ("gemma2", "model.layers.2.self_attn.rotary_emb.inv_freq"),
        ("gemma2", "model.layers.2.self_attn.k_norm.weight"),
        ("glm4", "model.layers.4.eh_proj.weight"),
        ("cohere", "model.layers.2.input_layernorm.weight_scale"),
        ("exaone4", "model.layers.2.input_layernorm.weight"),
    ],
)
def test_names_that_no_engine_of_the_family_reads_touch_everything(model_type: str, name: str) -> None:
    assert tensor_impact(name, rule_of(model_type)) == TensorImpact(first_layer=0, is_known=False)


@pytest.mark.parametrize(
    ("model_type", "embeddings", "output"),
    [
        ("gpt2", "wte.weight", "lm_head.weight"),
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("gpt_neox", "gpt_neox.embed_in.weight", "embed_out.weight"),
        ("falcon", "transformer.word_embeddings.weight", "lm_head.weight"),
    ],
)
def test_a_stored_copy_of_tied_embeddings_is_no_tensor_of_its_own(
    model_type: str, embeddings: str, output: str
) -> None:
    rule = rule_of(model_type, tie_word_embeddings=True)
    assert without_tied_copy({embeddings: "aa", output: "aa"}, rule) == {embeddings: "aa"}
    assert len(without_tied_copy({embeddings: "aa", output: "bb"}, rule)) == 2


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("gemma", {"use_bidirectional_attention": True}, "KV also depends on later tokens"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "KV also depends on later tokens"),
        ("gpt2", {"add_cross_attention": True}, "KV also depends on an encoder"),
        ("gpt2", {"num_hidden_layers": 6}, "says one of its sizes twice, differently"),
        ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}, "the architecture is"),
        ("phi3", {"architectures": ["Phi3SmallForCausalLM"]}, "the architecture is"),
    ],
)
def test_what_no_rule_was_tested_with_has_none(model_type: str, changes: JsonObject, reason: str) -> None:
    rule = rule_of(model_type, **changes)
    assert (rule.name, rule.layers) == ("all.1", None)
    assert reason in str(rule.reason)


FULL, WINDOWED = "full_attention", "sliding_attention"
LONG: JsonObject = {"short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize(
    ("model_type", "left", "right"),
    [
        ("gpt2", {"hidden_size": 64, "num_hidden_layers": 2}, {"n_embd": 64, "n_layer": 2}),
        ("gpt2", {"hidden_size": 64, "n_embd": None}, {"n_embd": 64}),
        ("gpt2", {"hidden_size": None, "n_embd": 64}, {"n_embd": 64}),
        ("gpt2", {"hidden_size": None}, {}),
        (
            "gpt_neox",
            {"rotary_emb_base": 500, "rotary_pct": 0.5},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
        ),
        ("gpt_neox", {"rotary_pct": 0.25}, {"rope_theta": 10000, "partial_rotary_factor": 0.25}),
        (
            "gemma3_text",
            {
                "rope_theta": 2e6,
                "rope_local_base_freq": 500,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window_pattern": 6,
            },
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 2000000, "factor": 8},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                },
            },
        ),
        ("gemma3_text", {}, {"layer_types": ([WINDOWED] * 5 + [FULL]) * 4 + [WINDOWED] * 2}),
        ("phi3", {"rope_scaling": {"type": "su", **LONG}}, {"rope_parameters": {"rope_type": "longrope", **LONG}}),
        ("glm4", {}, {"partial_rotary_factor": 0.5}),
        (
            "falcon",
            {"new_decoder_architecture": True},
            {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
        ),
        ("olmo3", {"rope_theta": 500000}, {}),
        ("exaone4", {"layer_types": ([WINDOWED] * 3 + [FULL]) * 8}, {}),
        ("smollm3", {"no_rope_layers": ([1] * 3 + [0]) * 9}, {}),
    ],
)
def test_two_notations_of_one_model_are_equal(model_type: str, left: JsonObject, right: JsonObject) -> None:
    assert same_value(config_of(model_type, **left).entries, config_of(model_type, **right).entries)


@pytest.mark.parametrize(
    ("model_type", "left", "right"),
    [
        # transformers reads no common theta of a GPT-NeoX, older versions did.
        ("gpt_neox", {"rope_theta": 500}, {"rotary_emb_base": 500}),
        ("gpt_neox", {"rope_theta": 500}, {}),
        # A `type` at the top is not read as `rope_type` where a default block is there already.
        (
            "gemma3_text",
            {"rope_scaling": {"type": "linear", "factor": 8.0}},
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        ),
        ("gemma3_text", {"sliding_window_pattern": 4}, {}),
        # Letters are read by some engines only.
        ("exaone4", {"sliding_window_pattern": "LLLG", "layer_types": ([WINDOWED] * 3 + [FULL]) * 8}, {}),
        ("gemma2", {"attn_logit_softcapping": None}, {}),
        # The original length is read at the top, wherever else it stands.
        (
            "phi3",
            {"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 8192, **LONG}},
            {"original_max_position_embeddings": 8192, "rope_scaling": {"type": "longrope", **LONG}},
        ),
        # vLLM rotates half of the head, transformers all of it.
        ("glm4", {"partial_rotary_factor": None}, {}),
        # transformers takes it for the full layers, other engines for all.
        (
            "olmo3",
            {"rope_theta": 500},
            {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 500} for kind in (FULL, WINDOWED)}},
        ),
    ],
)
def test_what_engines_read_differently_is_not_equal(model_type: str, left: JsonObject, right: JsonObject) -> None:
    assert not same_value(config_of(model_type, **left).entries, config_of(model_type, **right).entries)
