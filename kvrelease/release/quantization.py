"""Quantised checkpoints: which tensors stand for a projection, which scale KV, and their configuration, canonical.

Scales, zero points, group indices and packed values are weights: together they are what a projection multiplies with.
KV scales are no weights, and still part of KV: cached bytes are K divided by `k_scale`. Sources: vllm 0.32.0,
model_executor/layers/quantization: auto_gptq.py, auto_awq.py, fp8.py, fbgemm_fp8.py, modelopt.py, fp_quant.py,
compressed_tensors/schemes/*.py, quark/schemes/*.py (`register_parameter`), base_config.py and fp8.py
(`get_cache_scale_mapper`), kv_cache.py; transformers 5.24.0, integrations/finegrained_fp8.py and
quantizers/quantizer_bnb_*.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject

QUANTIZATION_KEY = "quantization_config"
# As early compressed-tensors called it.
COMPRESSION_KEY = "compression_config"
# Where a checkpoint of ModelOpt (before 0.31), AutoGPTQ, AutoAWQ or AutoRound says how it is quantised. vLLM reads them
# where config.json has no quantization_config, other engines always, so they always count.
SIDE_FILES = ("hf_quant_config.json", "quant_config.json", "quantization_config.json", "quantize_config.json")
# vLLM takes any file whose name ends in one of the names that a method has. Source: vllm 0.32.0,
# model_executor/model_loader/weight_utils.py (`get_quant_config`), quantization/*.py (`get_config_filenames`).
_SIDE_FILE_ENDS = ("quant_config.json", "quantization_config.json", "quantize_config.json")

# Parameters of a quantised linear layer, besides `weight` and `bias`: each is read by that layer's product alone (or,
# in a fused Q, K and V, by that of its siblings, which impact.py answers for).
PARAMETERS = frozenset(
    {
        # GPTQ, AWQ, FP-Quant
        "qweight",
        "qzeros",
        "scales",
        "g_idx",
        "act_global_scale",
        # FP8: per tensor or channel, per block, static activations, and their bound (FBGEMM)
        "weight_scale",
        "weight_scale_inv",
        "input_scale",
        "activation_scale",
        "input_scale_ub",
        # compressed-tensors, Quark, MXFP4 and NVFP4 of dense layers
        "weight_packed",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
        "weight_global_scale",
        "weight_scale_2",
        "input_zero_point",
        "input_global_scale",
        "input_scale_2",
        "pre_quant_scale",
        # Of the layer's output: for K and V the scale of what is cached, in checkpoints older than `self_attn.k_scale`.
        "output_scale",
        "output_zero_point",
        # bitsandbytes
        "SCB",
        "weight_format",
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
        "weight.quant_state.bitsandbytes__nf4",
        "weight.quant_state.bitsandbytes__fp4",
    }
)

_SCALE_OWNERS = ("self_attn", "self_attn.attn")
# Side of KV → names, below a layer, of what its cached values are divided by: its own scale, or one for both sides.
SIDE_SCALES: Mapping[str, tuple[str, ...]] = {
    side: (
        *(f"{owner}.{side}_scale" for owner in _SCALE_OWNERS),
        *(f"self_attn.{projection}.{side}_scale" for projection in (f"{side}_proj", "qkv_proj")),
        *(f"{owner}.kv_scale" for owner in _SCALE_OWNERS),
    )
    for side in "kv"
}
# Those, and what the query, the softmax and zero points of that layer's attention have besides.
KV_SCALES = frozenset(
    {
        *(name for names in SIDE_SCALES.values() for name in names),
        *(f"{owner}.{side}_zero_point" for owner in _SCALE_OWNERS for side in "qkv"),
        *(f"{owner}.{name}" for owner in _SCALE_OWNERS for name in ("q_scale", "prob_scale", "prob_output_scale")),
    }
)

# Read in calibration only. Source: transformers 5.24.0, utils/quantization_config.py (`GPTQConfig`, which `AwqConfig`
# inherits, so that a model saved again has these keys); vLLM 0.32.0 reads none of them.
_CALIBRATION = frozenset(
    {
        "act_group_aware",
        "batch_size",
        "cache_block_outputs",
        "damp_auto_increment",
        "damp_percent",
        "dataset",
        "model_seqlen",
        "module_name_preceding_first_block",
        "pad_token_id",
        "tokenizer",
        "true_sequential",
    }
)
# Of compressed-tensors, what only informs. Source: compressed-tensors 0.17.0, quantization/quant_config.py.
_DROPPED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("awq", "gptq"), _CALIBRATION),
    "compressed-tensors": frozenset({"global_compression_ratio", "version"}),
}
# Lists that engines ask only "does any entry match?".
_SETS = frozenset({"exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert"})
# Empty means absent. (Not so deeper down: an empty `weights` of a config group is one of defaults.)
_EMPTY_IS_ABSENT = _SETS | {"dynamic", "sparsity_config", "transform_config"}
# Objects whose first matching key wins in some engine, so that the order of the keys counts: they become lists of
# pairs. Sources: vllm 0.32.0, utils/gptq_utils.py (`get_dynamic_override`), compressed_tensors/utils.py
# (`find_matched_target`).
_ORDERED = frozenset({"config_groups", "dynamic"})
# Two spellings that one reader takes: vllm 0.32.0, auto_awq.py (`from_config`).
_ALIASES: Mapping[str, Mapping[str, str]] = {"awq": {"w_bit": "bits", "q_group_size": "group_size"}}


def canonical_quantization(raw: JsonObject) -> JsonObject:
    """The canonical form of a `quantization_config`, or of a file beside `config.json` that says the same.

    Keys that are null go, in it and in objects inside it: every engine reads them as absent. Arrays stay as they are:
    what a null in one means is for its reader to say. What is not known is kept, and counts.
    """
    method = raw.get("quant_method")
    known = method if isinstance(method, str) else ""
    entries = _without_nulls(raw)
    entries = {key: value for key, value in entries.items() if key not in _DROPPED.get(known, frozenset())}
    for old, new in _ALIASES.get(known, {}).items():
        if old in entries and new not in entries:
            entries[new] = entries.pop(old)
    entries = _without_versions(_ordered_where_it_counts(entries))
    if isinstance(inner := entries.get("quantization"), dict):  # hf_quant_config.json nests what matters
        entries["quantization"] = _ordered_where_it_counts(inner)
    return entries


def _without_versions(entries: JsonObject) -> JsonObject:
    """Without the version of the program that quantised; which program it was stays."""
    result = dict(entries)
    if isinstance(producer := entries.get("producer"), dict):  # ModelOpt
        result["producer"] = {key: value for key, value in producer.items() if key != "version"}
    if isinstance(meta := entries.get("meta"), dict) and "quantizer" in meta:  # GPTQModel: "gptqmodel:2.0.0"
        tools = meta["quantizer"]
        result["meta"] = meta | {
            "quantizer": [_tool(item) for item in tools] if isinstance(tools, list) else _tool(tools)
        }
    return result


def _tool(text: object) -> object:
    return text.partition(":")[0] if isinstance(text, str) else text


def is_quantization_file(name: str) -> bool:
    """Whether a file of that name says how a checkpoint is quantised."""
    return name.endswith(_SIDE_FILE_ENDS)


def is_quantized(entries: JsonObject) -> bool:
    """Whether a canonical configuration, or a file beside it, says anything about quantised weights."""
    return any(key == QUANTIZATION_KEY or is_quantization_file(key) for key in entries)


def quantization_methods(entries: JsonObject) -> frozenset[str]:
    """Every `quant_method` that a canonical configuration, or a file beside it, names; in sub-configurations too."""
    nested = [value for key, value in entries.items() if key.endswith("_config") and isinstance(value, dict)]
    blocks = [*_blocks(entries), *(block for inner in nested for block in _blocks(inner))]
    return frozenset(method for block in blocks if isinstance(method := block.get("quant_method"), str))


def promises_kv_scales(entries: JsonObject) -> bool:
    """Whether a canonical configuration says that the checkpoint brings calibrated KV scales.

    Args:
        entries: of `config.json` and the files beside it.

    Source: vllm 0.32.0, utils/torch_utils.py (`get_kv_cache_quant_algo_string`), model_executor/layers/attention/
    attention.py (`kv_cache_scheme`).
    """
    return any(_promises(block) for block in _blocks(entries))


def _blocks(entries: JsonObject) -> list[JsonObject]:
    """Every place of a canonical configuration that says how the checkpoint is quantised."""
    found = [value for key, value in entries.items() if key == QUANTIZATION_KEY or is_quantization_file(key)]
    outer = [block for block in found if isinstance(block, dict)]
    return [*outer, *(inner for block in outer if isinstance(inner := block.get("quantization"), dict))]


def _promises(block: JsonObject) -> bool:
    match block.get("kv_cache_scheme"):
        case {"dynamic": False}:
            return True
        case dict() | None:
            return isinstance(block.get("kv_cache_quant_algo"), str)
        case _:
            return True


def _without_nulls(value: JsonObject) -> JsonObject:
    return {
        key: _without_nulls(item) if isinstance(item, dict) else item for key, item in value.items() if item is not None
    }


def _ordered_where_it_counts(entries: JsonObject) -> JsonObject:
    """Lists with the meaning of sets sorted, objects whose order counts as pairs, and empty ones gone."""
    result: JsonObject = {}
    for key, value in entries.items():
        if key in _EMPTY_IS_ABSENT and value in ([], {}):
            continue
        if key in _SETS and isinstance(value, list) and all(isinstance(item, str) for item in value):
            result[key] = sorted(set(value))
        elif key in _ORDERED and isinstance(value, dict):
            result[key] = [[name, item] for name, item in value.items()]
        else:
            result[key] = value
    return result
