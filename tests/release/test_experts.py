"""Names of models with experts: as published, as stacked, as quantised."""

from __future__ import annotations

import pytest

from kvrelease.artifacts import JsonObject
from kvrelease.release.impact import Rule, TensorImpact, rule_for, tensor_impact
from kvrelease.release.model_config import canonical_config
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


def rule_of(model: str, **changes: object) -> Rule:
    rule = rule_for(canonical_config({**PUBLISHED_EXPERTS[model], **changes}))
    assert rule.reason is None
    return rule


def quantized(method: str) -> JsonObject:
    return {"quantization_config": {"quant_method": method}}


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


@pytest.mark.parametrize("model", PROJECTIONS)
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
    assert tensor_impact(f"model.layers.1.mlp.experts.{tensor}", rule) == TensorImpact(first_layer=2)
    assert tensor_impact(f"model.layers.{last}.mlp.experts.{tensor}", rule) == TensorImpact(first_layer=None)


@pytest.mark.parametrize("model", PROJECTIONS)
@pytest.mark.parametrize(
    "tensor",
    [
        "mlp.experts.gate_up_proj_brand_new",
        "mlp.experts.0.gate_up_proj_blocks",
        "mlp.experts.007.down_proj.weight",
        "mlp.experts.x.down_proj.weight",
        "mlp.experts.down_proj.weight.extra",
        "mlp.router.weight",
        "mlp.experts.0.sinks",
    ],
)
def test_names_that_no_family_has_touch_everything(model: str, tensor: str) -> None:
    assert tensor_impact(f"model.layers.1.{tensor}", rule_of(model)) == TensorImpact(first_layer=0, is_known=False)


@pytest.mark.parametrize("model", PROJECTIONS)
def test_the_query_of_a_quantised_model_counts_as_key(model: str) -> None:
    plain, packed = rule_of(model), rule_of(model, **quantized("fp8"))
    assert tensor_impact("model.layers.1.self_attn.q_proj.weight", plain) == TensorImpact(first_layer=2)
    assert tensor_impact("model.layers.1.self_attn.q_proj.weight", packed) == TensorImpact(first_layer=1)


@pytest.mark.parametrize(
    ("model", "one", "other"),
    [
        ("mixtral-8x7b", "num_local_experts", "num_experts"),
        ("qwen3-30b-a3b", "num_experts", "num_local_experts"),
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
