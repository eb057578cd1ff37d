from __future__ import annotations

import pytest

from kvrelease.release.expectation import disagreements
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


def test_what_is_promised_needs_no_warning() -> None:
    assert warnings(stored()) == []
    assert warnings(stored("qwen3"), model_type="qwen3") == []
    assert warnings(stored(is_tied=True), tie_word_embeddings=True) == []


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
