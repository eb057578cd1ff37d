from __future__ import annotations

import pytest

from kvrelease.release.expectation import disagreements, expected_shapes
from kvrelease.release.weights import StoredTensor
from tests.release.builders import config_and_rule, tensors


def stored(model_type: str = "llama", *, is_tied: bool = False) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(name=name, dtype="F32", shape=array.shape, where="m", offset=0, size_bytes=array.nbytes)
        for name, array in tensors(model_type=model_type, is_tied=is_tied).items()
    }


def warnings(found: dict[str, StoredTensor], **changes: object) -> list[str]:
    config, rule = config_and_rule(**changes)
    return disagreements(config, rule, found)


def test_what_is_promised_is_what_a_model_of_that_configuration_has() -> None:
    """By hand, of transformers 5.24.0, models/llama/modeling_llama.py and models/qwen3/modeling_qwen3.py.

    Five sizes that no other is, so that none can stand for another.
    """
    changes = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 20, "num_attention_heads": 4, "head_dim": 6}
    changes |= {"num_key_value_heads": 2, "num_hidden_layers": 2}
    outside = {"model.embed_tokens.weight": (32, 8), "model.norm.weight": (8,), "lm_head.weight": (32, 8)}
    layer = {
        "input_layernorm.weight": (8,),
        "self_attn.q_proj.weight": (24, 8),
        "self_attn.k_proj.weight": (12, 8),
        "self_attn.v_proj.weight": (12, 8),
        "self_attn.o_proj.weight": (8, 24),
        "post_attention_layernorm.weight": (8,),
        "mlp.gate_proj.weight": (20, 8),
        "mlp.up_proj.weight": (20, 8),
        "mlp.down_proj.weight": (8, 20),
    }
    norms = {"self_attn.q_norm.weight": (6,), "self_attn.k_norm.weight": (6,)}
    for model_type, parts in (("llama", layer), ("mistral", layer), ("qwen2", layer), ("qwen3", layer | norms)):
        shapes = outside | {f"model.layers.{n}.{part}": shape for n in range(2) for part, shape in parts.items()}
        found = {
            name: StoredTensor(name=name, dtype="F32", shape=shape, where="m", offset=0, size_bytes=0)
            for name, shape in shapes.items()
        }
        assert expected_shapes(*config_and_rule(model_type, **changes)) == shapes
        assert warnings(found, model_type=model_type, **changes) == []
        del found["lm_head.weight"]
        assert warnings(found, model_type=model_type, **changes, tie_word_embeddings=True) == []


def test_absent_tensor_is_named() -> None:
    found = stored()
    del found["model.layers.1.self_attn.k_proj.weight"]
    (warning,) = warnings(found)
    assert "1 tensors that config.json promises are absent: 'model.layers.1.self_attn.k_proj.weight'" in warning


def test_other_shape_and_dtype_are_named() -> None:
    (shape,) = warnings(stored(), vocab_size=33)
    assert "2 tensors have another shape" in shape
    assert "[32, 8], promised [33, 8]" in shape
    (dtype,) = warnings(stored(), torch_dtype="bfloat16")
    assert "30 tensors are F32 where config.json says bfloat16" in dtype


@pytest.mark.parametrize("changes", [{"model_type": "mamba"}, {"quantization_config": {"quant_method": "awq"}}])
def test_where_no_shape_is_known_nothing_is_claimed(changes: dict[str, object]) -> None:
    assert warnings({"x": stored()["lm_head.weight"]}, **changes) == []
