"""Which tensors a configuration of the Llama family promises, and warnings where the checkpoint has others.

Well-formed weights that disagree with their configuration are digested all the same: the engine, not the fingerprint,
decides whether it can load them.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.printable import listed
from kvrelease.release.families.llama import LLAMA
from kvrelease.release.impact import EMBEDDINGS, OUTPUT_LAYER, Rule
from kvrelease.release.model_config import ModelConfig
from kvrelease.release.quantized_expectation import quantized_disagreements
from kvrelease.release.weights import StoredTensor

_SAFETENSORS_DTYPE = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


def expected_shapes(config: ModelConfig, rule: Rule) -> dict[str, tuple[int, ...]]:
    """Name → shape of each tensor the configuration promises; empty where the rule or a size is not known."""
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
    sizes = [config.entries.get(name) for name in names]
    has_sizes = rule.family == LLAMA.rule and not rule.is_quantized and all(isinstance(size, int) for size in sizes)
    if rule.layers is None or not has_sizes:
        return {}
    vocabulary, hidden, inner, heads, kv_heads, head = (size for size in sizes if isinstance(size, int))
    per_layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (heads * head, hidden),
        "self_attn.k_proj.weight": (kv_heads * head, hidden),
        "self_attn.v_proj.weight": (kv_heads * head, hidden),
        "self_attn.o_proj.weight": (hidden, heads * head),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.model_type == "qwen3":
        per_layer |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS: (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not rule.ties_embeddings:
        shapes[OUTPUT_LAYER] = (vocabulary, hidden)
    for layer in range(rule.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in per_layer.items()}
    return shapes


def disagreements(config: ModelConfig, rule: Rule, tensors: Mapping[str, StoredTensor]) -> list[str]:
    """Warnings about absent tensors, other shapes and other dtypes than the configuration promises."""
    expected = expected_shapes(config, rule)
    warnings = []
    absent = [name for name in expected if name not in tensors]
    # Fused or otherwise re-laid tensors have other names; only layers that look like ours can lack one.
    if absent and not any("qkv_proj" in name or "gate_up_proj" in name for name in tensors):
        warnings.append(
            f"{len(absent)} tensors that config.json promises are absent: {listed(absent)}; an engine may start with "
            "random values in their place"
        )
    reshaped = [name for name, shape in expected.items() if name in tensors and tensors[name].shape != shape]
    if reshaped:
        first = reshaped[0]
        warnings.append(
            f"{len(reshaped)} tensors have another shape than config.json promises: {listed(reshaped)}; the first is "
            f"{list(tensors[first].shape)}, promised {list(expected[first])}"
        )
    promised = _promised_dtype(config.entries)
    recast = [name for name in expected if name in tensors and promised and tensors[name].dtype != promised]
    if recast:
        found = sorted({tensors[name].dtype for name in recast})
        warnings.append(
            f"{len(recast)} tensors are {', '.join(found)} where config.json says {config.entries.get('dtype')}: "
            "engines convert them when they load"
        )
    return [*warnings, *quantized_disagreements(config.entries, rule, tensors)]


def _promised_dtype(entries: JsonObject) -> str | None:
    dtype = entries.get("dtype")
    return _SAFETENSORS_DTYPE.get(dtype) if isinstance(dtype, str) else None
