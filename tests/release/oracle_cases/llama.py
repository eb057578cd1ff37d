"""Tiny models of the family `llama`."""

from __future__ import annotations

from tests.release.oracle import Case
from tests.release.oracle_cases.sizes import ACTIVATION, ROPE, SIZES

_ASKED = {**ROPE, **ACTIVATION}

# Other values of what no family counts.
HARMLESS: dict[str, tuple[object, ...]] = {
    "attention_dropout": (0.5,),
    "bos_token_id": (5,),
    "eos_token_id": (6,),
    "id2label": ({"0": "a", "1": "b"},),
    "initializer_range": (0.5,),
    "label2id": ({"a": 0, "b": 1},),
    "output_attentions": (True,),
    "output_hidden_states": (True,),
    "pad_token_id": (7,),
    "problem_type": ("regression",),
    "return_dict": (False,),
    "task_specific_params": ({"a": 1},),
    "torchscript": (True,),
    "transformers.js_config": ({"a": 1},),
    "unsloth_fixed": (True,),
    "unsloth_version": ("2025.1",),
    "use_cache": (False,),
}

LLAMA_CASES = (
    Case(label="Llama", model_type="llama", config=SIZES, alternatives={**_ASKED, **HARMLESS}),
    Case(label="Llama, tied", model_type="llama", config={**SIZES, "tie_word_embeddings": True}, alternatives=_ASKED),
    Case(
        label="Llama, biases",
        model_type="llama",
        config={**SIZES, "attention_bias": True, "mlp_bias": True},
        alternatives=_ASKED,
    ),
    Case(label="Mistral, window", model_type="mistral", config={**SIZES, "sliding_window": 8}, alternatives=_ASKED),
    Case(label="Qwen2", model_type="qwen2", config=SIZES, alternatives=_ASKED),
    Case(label="Qwen3", model_type="qwen3", config={**SIZES, "head_dim": 8}, alternatives=_ASKED),
)
