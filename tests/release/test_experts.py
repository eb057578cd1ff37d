"""Names and keys of models with experts, and of hybrids: as published, as stacked, as quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvrelease.artifacts import JsonObject
from kvrelease.release import impact
from kvrelease.release.impact import ALL_RULE, Rule, TensorImpact, rule_for, tensor_impact
from kvrelease.release.model_config import canonical_config
from tests.release.oracle import Case, TinyModel, cached, first_change
from tests.release.published_experts import PUBLISHED_EXPERTS

# Forms of one projection, each as its quantiser writes it.
QUANTIZED: dict[str, tuple[str, ...]] = {
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "awq": ("qweight", "qzeros", "scales"),
    "fp8": ("weight", "weight_scale", "weight_scale_inv", "input_scale", "activation_scale"),
    "compressed-tensors": ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "input_global_scale"),
    "modelopt": ("weight", "weight_scale", "weight_scale_2", "input_scale"),
}
OWN, NEXT = 1, 2
ABSENT = object()


def rule_of(model: str, **changes: object) -> Rule:
    rule = rule_for(canonical_config({**PUBLISHED_EXPERTS[model], "quantization_config": None, **changes}))
    assert rule.reason is None
    return rule


def quantized(method: str) -> JsonObject:
    return {"quantization_config": {"quant_method": method}}


def entries(model: str, changes: JsonObject) -> JsonObject:
    raw = {**PUBLISHED_EXPERTS[model], **changes}
    return canonical_config({key: value for key, value in raw.items() if value is not ABSENT}).entries


def packed_gpt_oss(directory: Path) -> tuple[TinyModel, dict[str, torch.Tensor]]:
    """A tiny gpt-oss without its experts, and these as MXFP4 stores them: two values in a byte, a scale for 32."""
    config: JsonObject = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 64,
    }
    model = TinyModel(Case(label="gpt-oss", model_type="gpt_oss", config=config), directory)
    generator = torch.Generator().manual_seed(0)
    stored: dict[str, torch.Tensor] = {}
    for name in [name for name in model.tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = model.tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        stored[f"{name}_blocks"] = torch.randint(0, 255, (*shape, 16), generator=generator, dtype=torch.uint8)
        stored[f"{name}_scales"] = torch.randint(124, 127, shape, generator=generator, dtype=torch.uint8)
    return model, stored


def unpacked(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The experts in float32, as transformers unpacks them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    unpack: Any = convert_moe_packed_tensors
    names = [name.removesuffix("_blocks") for name in stored if name.endswith("_blocks")]
    return {
        name: unpack(stored[f"{name}_blocks"], stored[f"{name}_scales"], dtype=torch.float32).contiguous()
        for name in names
    }


# A model, its projections in layer 1, and the first layer each touches when nothing is quantised.
PROJECTIONS: dict[str, dict[str, int]] = {
    "mixtral-8x7b": {
        "block_sparse_moe.gate": NEXT,
        "block_sparse_moe.experts.7.w1": NEXT,
        "block_sparse_moe.experts.0.w2": NEXT,
        "block_sparse_moe.experts.3.w3": NEXT,
        "block_sparse_moe.experts.3.gate_proj": NEXT,
        "mlp.gate": NEXT,
        "mlp.experts.12.down_proj": NEXT,
        "self_attn.k_proj": OWN,
        "self_attn.qkv_proj": OWN,
        "self_attn.o_proj": NEXT,
    },
    "qwen1.5-moe": {
        "mlp.gate": NEXT,
        "mlp.experts.59.gate_proj": NEXT,
        "mlp.experts.0.up_proj": NEXT,
        "mlp.experts.0.down_proj": NEXT,
        "mlp.shared_expert.gate_proj": NEXT,
        "mlp.shared_expert.gate_up_proj": NEXT,
        "mlp.shared_expert_gate": NEXT,
        "mlp.down_proj": NEXT,
        "self_attn.v_proj": OWN,
        "self_attn.o_proj": NEXT,
    },
    "qwen3-30b-a3b": {
        "mlp.gate": NEXT,
        "mlp.experts.127.gate_proj": NEXT,
        "mlp.up_proj": NEXT,
        "self_attn.k_proj": OWN,
    },
    "deepseek-v2-lite": {
        "mlp.gate": NEXT,
        "mlp.experts.63.gate_proj": NEXT,
        "mlp.shared_experts.down_proj": NEXT,
        "self_attn.q_proj": NEXT,
        "self_attn.kv_a_proj_with_mqa": OWN,
        "self_attn.kv_b_proj": OWN,
    },
    "deepseek-v3": {
        "mlp.experts.255.up_proj": NEXT,
        "mlp.shared_experts.gate_proj": NEXT,
        "mlp.down_proj": NEXT,
        "self_attn.q_b_proj": NEXT,
        "self_attn.kv_a_proj_with_mqa": OWN,
        "self_attn.kv_b_proj": OWN,
        "self_attn.o_proj": NEXT,
    },
    "gpt-oss-20b": {
        "mlp.router": NEXT,
        "mlp.experts.31.gate_proj": NEXT,
        "mlp.experts.0.gate_up_proj": NEXT,
        "self_attn.v_proj": OWN,
        "self_attn.o_proj": NEXT,
    },
    "qwen3-next-80b-a3b": {
        "mlp.gate": NEXT,
        "mlp.experts.511.gate_proj": NEXT,
        "mlp.shared_expert.up_proj": NEXT,
        "mlp.shared_expert_gate": NEXT,
        "linear_attn.in_proj_qkvz": OWN,
        "linear_attn.in_proj_ba": OWN,
        "linear_attn.out_proj": NEXT,
        "self_attn.k_proj": OWN,
    },
    "glm-4.5-air": {
        "mlp.gate": NEXT,
        "mlp.experts.127.down_proj": NEXT,
        "mlp.shared_experts.up_proj": NEXT,
        "mlp.gate_proj": NEXT,
        "self_attn.k_proj": OWN,
    },
    "olmoe-1b-7b": {"mlp.gate": NEXT, "mlp.experts.63.up_proj": NEXT, "self_attn.v_proj": OWN},
    "granite-3.1-1b-a400m": {
        "block_sparse_moe.input_linear": NEXT,
        "block_sparse_moe.output_linear": NEXT,
        "block_sparse_moe.router.layer": NEXT,
        "self_attn.v_proj": OWN,
    },
    "lfm2-1.2b": {
        "conv.in_proj": OWN,
        "conv.out_proj": NEXT,
        "feed_forward.w2": NEXT,
        "self_attn.k_proj": OWN,
        "self_attn.out_proj": NEXT,
    },
}
# Engines make one matrix of K and this one.
WITH_KEY = {
    **dict.fromkeys(PROJECTIONS, "self_attn.q_proj"),
    "deepseek-v2-lite": "self_attn.q_a_proj",
    "deepseek-v3": "self_attn.q_a_proj",
}


@pytest.mark.parametrize("model", PROJECTIONS)
@pytest.mark.parametrize("method", QUANTIZED)
def test_what_is_stored_of_a_quantised_projection_follows_it(model: str, method: str) -> None:
    rule = rule_of(model, **quantized(method))
    for projection, layer in PROJECTIONS[model].items():
        for parameter in QUANTIZED[method]:
            name = f"model.layers.1.{projection}.{parameter}"
            assert tensor_impact(name, rule) == TensorImpact(first_layer=layer), name


@pytest.mark.parametrize("model", PROJECTIONS)
def test_projections_that_are_not_quantised_hold_weights_and_biases_alone(model: str) -> None:
    rule = rule_of(model)
    for projection, layer in PROJECTIONS[model].items():
        for parameter in ("weight", "bias"):
            assert tensor_impact(f"model.layers.1.{projection}.{parameter}", rule) == TensorImpact(first_layer=layer)
        assert not tensor_impact(f"model.layers.1.{projection}.weight_scale", rule).is_known


@pytest.mark.parametrize("model", [model for model in PROJECTIONS if model != "lfm2-1.2b"])
@pytest.mark.parametrize(
    "tensor",
    [
        "gate_up_proj",
        "down_proj",
        "gate_up_proj_scale_inv",
        "down_proj_activation_scale",
        "gate_up_proj_blocks",
        "down_proj_scales",
        "gate_up_proj_bias",
        "gate_up_proj.weight_scale",
    ],
)
def test_stacked_experts_touch_the_next_layer(model: str, tensor: str) -> None:
    rule = rule_of(model)
    last = (rule.layers or 0) - 1
    block = "block_sparse_moe" if model.startswith("granite") else "mlp"
    assert tensor_impact(f"model.layers.1.{block}.experts.{tensor}", rule) == TensorImpact(first_layer=2)
    assert tensor_impact(f"model.layers.{last}.{block}.experts.{tensor}", rule) == TensorImpact(first_layer=None)


@pytest.mark.parametrize("model", PROJECTIONS)
@pytest.mark.parametrize(
    "tensor",
    [
        "mlp.experts.gate_up_proj_brand_new",
        "mlp.experts.0.gate_up_proj_blocks",
        "mlp.experts.007.down_proj.weight",
        "mlp.experts.x.down_proj.weight",
        "mlp.experts.down_proj.weight.extra",
        "mlp.gate.brand_new_bias",
        "mlp.experts.0.sinks",
        "linear_attn.in_proj_qkvz.weight.extra",
    ],
)
def test_names_that_no_family_has_touch_everything(model: str, tensor: str) -> None:
    assert tensor_impact(f"model.layers.1.{tensor}", rule_of(model)) == TensorImpact(first_layer=0, is_known=False)


@pytest.mark.parametrize("model", PROJECTIONS)
def test_the_query_of_a_quantised_model_counts_as_key(model: str) -> None:
    plain, packed = rule_of(model), rule_of(model, **quantized("fp8"))
    name = f"model.layers.1.{WITH_KEY[model]}.weight"
    assert tensor_impact(name, plain) == TensorImpact(first_layer=2)
    assert tensor_impact(name, packed) == TensorImpact(first_layer=1)


@pytest.mark.parametrize(
    ("model", "tensor", "first_layer"),
    [
        ("deepseek-v3", "mlp.gate.e_score_correction_bias", NEXT),
        ("deepseek-v3", "self_attn.kv_a_layernorm.weight", OWN),
        ("deepseek-v3", "self_attn.q_a_layernorm.weight", NEXT),
        ("deepseek-v3", "self_attn.kv_a_proj_with_mqa.weight_scale_inv", OWN),
        ("deepseek-v3", "self_attn.q_a_proj.weight_scale_inv", OWN),
        ("deepseek-v3", "self_attn.q_b_proj.weight_scale_inv", NEXT),
        ("gpt-oss-20b", "self_attn.sinks", NEXT),
        ("gpt-oss-20b", "mlp.router.bias", NEXT),
        ("gpt-oss-20b", "self_attn.k_proj.bias", OWN),
        ("gpt-oss-20b", "mlp.experts.gate_up_proj_blocks", NEXT),
        ("gpt-oss-20b", "mlp.experts.gate_up_proj_scales", NEXT),
        ("gpt-oss-20b", "mlp.experts.down_proj_bias", NEXT),
        ("qwen3-next-80b-a3b", "linear_attn.A_log", OWN),
        ("qwen3-next-80b-a3b", "linear_attn.dt_bias", OWN),
        ("qwen3-next-80b-a3b", "linear_attn.conv1d.weight", OWN),
        ("qwen3-next-80b-a3b", "linear_attn.norm.weight", NEXT),
        ("qwen3-next-80b-a3b", "self_attn.q_norm.weight", NEXT),
        ("qwen3-next-80b-a3b", "self_attn.k_norm.weight", OWN),
        ("lfm2-1.2b", "conv.conv.weight", NEXT),
        ("lfm2-1.2b", "operator_norm.weight", OWN),
        ("lfm2-1.2b", "ffn_norm.weight", NEXT),
    ],
)
def test_what_is_published_besides_projections(model: str, tensor: str, first_layer: int) -> None:
    rule = rule_for(canonical_config(PUBLISHED_EXPERTS[model]))  # quantised as it is published
    assert tensor_impact(f"model.layers.1.{tensor}", rule) == TensorImpact(first_layer=first_layer)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("deepseek-v3", "model.layers.61.self_attn.q_a_proj.weight"),
        ("deepseek-v3", "model.layers.61.eh_proj.weight"),
        ("deepseek-v3", "model.layers.61.shared_head.head.weight"),
        ("qwen3-next-80b-a3b", "mtp.fc.weight"),
        ("qwen3-next-80b-a3b", "mtp.layers.0.mlp.gate.weight"),
    ],
)
def test_a_draft_head_touches_everything(model: str, name: str) -> None:
    """Its KV lies beside that of the model, under the same names of blocks."""
    rule = rule_for(canonical_config(PUBLISHED_EXPERTS[model]))
    assert tensor_impact(name, rule) == TensorImpact(first_layer=0, is_known=False)


def test_published_code_leaves_a_model_without_a_rule_though_its_type_has_one() -> None:
    raw = {**PUBLISHED_EXPERTS["deepseek-v3"], "auto_map": {"AutoModel": "modeling_deepseek.DeepseekV3Model"}}
    rule = rule_for(canonical_config(raw))
    assert rule.name == ALL_RULE
    assert "brings code of its own (auto_map)" in str(rule.reason)


def test_looking_up_a_hundred_thousand_names_takes_no_time() -> None:
    """DeepSeek-V3 has 92,000 tensors. Counted in look-ups, not in seconds: names below the layer repeat."""
    rule = rule_for(canonical_config(PUBLISHED_EXPERTS["deepseek-v3"]))
    impact._remembered_reach.cache_clear()
    for layer in range(61):
        for expert in range(256):
            for name in ("gate_proj", "up_proj", "down_proj"):
                for parameter in ("weight", "weight_scale_inv"):
                    tensor_impact(f"model.layers.{layer}.mlp.experts.{expert}.{name}.{parameter}", rule)
    assert impact._remembered_reach.cache_info().misses == 256 * 3 * 2


@pytest.mark.parametrize(
    ("model", "one", "other"),
    [
        ("mixtral-8x7b", "num_local_experts", "num_experts"),
        ("qwen3-30b-a3b", "num_experts", "num_local_experts"),
        ("gpt-oss-20b", "num_local_experts", "num_experts"),
        ("deepseek-v3", "n_routed_experts", "num_local_experts"),
        ("deepseek-v3", "num_nextn_predict_layers", "num_mtp_layers"),
        ("deepseek-v2-lite", "n_routed_experts", "num_experts"),
        ("glm-4.5-air", "n_routed_experts", "num_local_experts"),
        ("glm-4.5-air", "num_nextn_predict_layers", "num_mtp_layers"),
        ("olmoe-1b-7b", "num_experts", "num_local_experts"),
    ],
)
def test_two_names_of_the_number_of_experts_are_one(model: str, one: str, other: str) -> None:
    raw = PUBLISHED_EXPERTS[model]
    renamed = {other if key == one else key: value for key, value in raw.items()}
    assert canonical_config(renamed).entries == canonical_config(raw).entries
    assert canonical_config({**raw, other: raw[one]}).entries == canonical_config(raw).entries
    contradiction = canonical_config({**raw, other: 3})
    assert contradiction.entries != canonical_config(raw).entries
    assert "which are one thing; engines differ" in contradiction.warnings[0]


@pytest.mark.parametrize(
    ("model", "stated", "meant"),
    [
        ("mixtral-8x7b", {"rope_theta": None}, {"rope_theta": 1_000_000}),
        ("gpt-oss-20b", {"rope_theta": None}, {"rope_theta": 150_000}),
        ("gpt-oss-20b", {"rope_scaling": None, "rope_parameters": None}, {}),
        ("gpt-oss-20b", {"layer_types": None}, {}),
        ("qwen3-next-80b-a3b", {"full_attention_interval": ABSENT}, {}),
        ("qwen3-next-80b-a3b", {"partial_rotary_factor": ABSENT}, {}),
        ("qwen3-next-80b-a3b", {"mlp_only_layers": None}, {}),
        (
            "qwen3-next-80b-a3b",
            {"full_attention_interval": ABSENT, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12},
            {},
        ),
        ("qwen1.5-moe", {"sliding_window": 0}, {}),
        ("qwen1.5-moe", {"layer_types": ["full_attention"] * 24}, {}),
        ("deepseek-v3", {"head_dim": 64, "qk_head_dim": 192}, {}),
        ("deepseek-v3", {"num_key_value_heads": None}, {}),
        ("glm-4.5-air", {"partial_rotary_factor": ABSENT}, {}),
        ("olmoe-1b-7b", {"num_key_value_heads": None}, {}),
        ("lfm2-1.2b", {"tie_embedding": True}, {"tie_word_embeddings": True}),
        ("lfm2-1.2b", {"block_ff_dim": ABSENT, "intermediate_size": 12288}, {}),
        ("lfm2-1.2b", {"full_attn_idxs": list(range(16))}, {"full_attn_idxs": None}),
    ],
)
def test_two_ways_to_say_one_thing_are_equal(model: str, stated: JsonObject, meant: JsonObject) -> None:
    assert entries(model, stated) == entries(model, meant)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("qwen3-next-80b-a3b", {"full_attention_interval": 3}),
        (
            "qwen3-next-80b-a3b",
            {"full_attention_interval": 3, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12},
        ),
        ("lfm2-1.2b", {"full_attn_idxs": [2], "layer_types": ["full_attention"] * 16}),
        ("qwen3-next-80b-a3b", {"layer_types": ["full_attention"] * 48}),
        ("qwen3-next-80b-a3b", {"partial_rotary_factor": 1.0}),
        ("qwen3-next-80b-a3b", {"partial_rotary_factor": None}),  # not the default of an absent one
        ("glm-4.5-air", {"partial_rotary_factor": None}),
        ("qwen1.5-moe", {"use_sliding_window": True}),
        ("gpt-oss-20b", {"rope_parameters": {"rope_type": "default"}, "rope_scaling": None}),
        ("gpt-oss-20b", {"quantization_config": None}),
        ("deepseek-v2-lite", {"q_lora_rank": ABSENT}),  # 1536 then
        ("deepseek-v3", {"scoring_func": ABSENT}),  # vLLM takes softmax then
        ("deepseek-v3", {"topk_method": ABSENT}),
        ("deepseek-v3", {"n_group": 4}),
        ("deepseek-v3", {"rope_interleave": False}),
    ],
)
def test_another_way_to_choose_experts_or_layers_is_another_configuration(model: str, change: JsonObject) -> None:
    assert entries(model, change) != entries(model, {})


def test_a_model_that_contradicts_itself_about_tied_embeddings_has_no_rule() -> None:
    raw = {**PUBLISHED_EXPERTS["lfm2-1.2b"], "tie_embedding": True, "tie_word_embeddings": False}
    rule = rule_for(canonical_config(raw))
    assert rule.name == ALL_RULE
    assert "contradicts itself about tied embeddings" in str(rule.reason)


@pytest.mark.parametrize("interval", [0, -1, "four", None, True, 10**9])
def test_an_interval_that_makes_no_sense_stays_and_counts(interval: object) -> None:
    found = entries("qwen3-next-80b-a3b", {"full_attention_interval": interval})
    assert found != entries("qwen3-next-80b-a3b", {})


def test_mxfp4_blocks_and_scales_reach_no_key_of_their_own_layer(tmp_path: Path) -> None:
    """What is stored of gpt-oss, asked of the weights that it stands for."""
    model, stored = packed_gpt_oss(tmp_path)
    rule = rule_for(canonical_config({**model.raw, **quantized("mxfp4")}))
    before = cached(model.loaded({**model.tensors, **unpacked(stored)}, model.raw))
    assert before is not None
    for name, tensor in stored.items():
        other = {**stored, name: tensor + 1}
        after = cached(model.loaded({**model.tensors, **unpacked(other)}, model.raw))
        assert tensor_impact(name, rule).first_layer == first_change(before, after), name
