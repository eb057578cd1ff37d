"""StarCoder2 with its causal-LM architecture: the rule `starcoder2.1`. Pure, and frozen.

Sources: transformers 5.24.0, models/starcoder2/modeling_starcoder2.py (`Starcoder2DecoderLayer.forward`,
`Starcoder2Attention.forward`) and configuration_starcoder2.py; vllm 0.32.0 runs the same code,
model_executor/models/transformers/.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.families.family import Family, Reach
from kvrelease.release.families.heads import derive_heads
from kvrelease.release.families.parts import ATTENTION, FUSED_QUERY, NORMS
from kvrelease.release.families.pretrained import AFFECTING_KEYS, CONFIG_DEFAULTS, HARMLESS_KEYS

_TYPES: Mapping[str, JsonObject] = {
    "starcoder2": {
        **CONFIG_DEFAULTS,
        "architectures": ["Starcoder2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 50256,
        "embedding_dropout": 0.0,
        "eos_token_id": 50256,
        "head_dim": None,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072,
        "initializer_range": 0.018042,
        "intermediate_size": 12288,
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-05,
        "num_attention_heads": 24,
        "num_hidden_layers": 30,
        "num_key_value_heads": 2,
        "residual_dropout": 0.0,
        "rope_parameters": None,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_bias": True,
        "vocab_size": 49152,
    },
}

STARCODER2 = Family(
    rule="starcoder2.1",
    types=_TYPES,
    norms=NORMS,
    projections={**ATTENTION, "mlp.c_fc": Reach.NEXT, "mlp.c_proj": Reach.NEXT},
    fused=FUSED_QUERY,
    outside={"model.norm.weight": Reach.NOTHING, "model.norm.bias": Reach.NOTHING},
    harmless=HARMLESS_KEYS | {"embedding_dropout", "residual_dropout"},
    affecting=AFFECTING_KEYS
    | {
        "activation_function",
        "attention_softmax_in_fp32",
        "layer_norm_epsilon",
        "mlp_type",
        "norm_type",
        "scale_attention_softmax_in_fp32",
        "scale_attn_weights",
    },
    derive=derive_heads,
)
