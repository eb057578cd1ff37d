"""Tiny quantised checkpoints with the tensor names, dtypes and packing of real ones, and what they multiply with.

Sources: vllm 0.32.0, model_executor/layers/quantization (auto_gptq.py, auto_awq.py, fp8.py, modelopt.py,
compressed_tensors/schemes) and utils/quant_utils.py (`awq_pack`); compressed-tensors 0.17.0, compressors/pack_quantized
(`unpack_from_int32`); transformers 5.24.0, integrations/mxfp4.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from kvrelease.artifacts import JsonObject
from kvrelease.release.expectation import expected_shapes
from tests.release.builders import config_and_rule, config_json, write_json

Stored = dict[str, torch.Tensor]

# Wide enough to pack eight 4-bit values along either side.
SIZES: JsonObject = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}
GROUP = 8
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

KV_SCHEME: JsonObject = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
CONFIGURATIONS: dict[str, JsonObject] = {
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": True,
        "sym": False,
        "lm_head": False,
        "damp_percent": 0.1,
        "dataset": "c4",
        "checkpoint_format": "gptq_v2",
    },
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "fp8": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [8, 8]},
    "pack-quantized": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "version": "0.17.0",
        "ignore": ["lm_head"],
        "kv_cache_scheme": KV_SCHEME,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "input_activations": None,
                "output_activations": None,
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": False,
                    "group_size": GROUP,
                    "strategy": "group",
                    "actorder": None,
                    "dynamic": False,
                },
            }
        },
    },
    "mxfp4": {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}},
    },
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}


def quantized_config(form: str, **changes: object) -> JsonObject:
    """`config.json` of a checkpoint in a form."""
    return config_json(**{**SIZES, "quantization_config": CONFIGURATIONS[form], **changes})


def quantized_tensors(form: str, *, seed: int = 0) -> Stored:
    """All tensors of a checkpoint: projections quantised, the rest in bfloat16; KV scales where the form has them."""
    config, rule = config_and_rule(**SIZES)
    generator = torch.Generator().manual_seed(seed)
    stored: Stored = {}
    for name, shape in sorted(expected_shapes(config, rule).items()):
        values = torch.randn(shape, generator=generator)
        module, _, parameter = name.rpartition(".")
        if module.rpartition(".")[2] in PROJECTIONS:
            stored |= {f"{module}.{key}": tensor for key, tensor in _QUANTIZERS[form](values).items()}
        else:
            stored[f"{module}.{parameter}"] = values.to(torch.bfloat16)
    if CONFIGURATIONS[form].get("kv_cache_scheme"):
        for layer in range(rule.layers or 0):
            stored[f"model.layers.{layer}.self_attn.k_scale"] = torch.tensor([0.25], dtype=torch.bfloat16)
            stored[f"model.layers.{layer}.self_attn.v_scale"] = torch.tensor([0.5], dtype=torch.bfloat16)
    return stored


def write_quantized(directory: Path, form: str, stored: Stored | None = None, **changes: object) -> Path:
    """A model directory of that form."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(quantized_tensors(form) if stored is None else stored, directory / "model.safetensors")
    write_json(directory / "config.json", quantized_config(form, **changes))
    return directory


def _four_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[out, in] values 0 … 15, [out, groups] scales, [out, groups] zero points."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = (high - low) / 15
    zeros = (-low / scales).round().clamp(0, 15)
    values = (groups / scales[..., None]).round() + zeros[..., None]
    return values.clamp(0, 15).reshape(weight.shape).int(), scales, zeros.int()


def _pack(values: torch.Tensor, *, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """[rows, columns] values of 4 bits → [rows, columns / 8] int32, the first of `order` lowest."""
    eights = values.long().reshape(values.shape[0], -1, 8)
    word = sum((eights[..., source] << (4 * place) for place, source in enumerate(order)), torch.zeros(1).long())
    return torch.where(word >= 2**31, word - 2**32, word).int()


def _unpack(words: torch.Tensor, *, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    values = torch.empty((*words.shape, 8), dtype=torch.int64)
    for place, source in enumerate(order):
        values[..., source] = (words.long() >> (4 * place)) & 15
    return values.reshape(words.shape[0], -1)


def _gptq(weight: torch.Tensor) -> Stored:
    values, scales, zeros = _four_bits(weight)
    return {
        "qweight": _pack(values).T.contiguous(),  # packed along the input side: [in / 8, out]
        "qzeros": _pack(zeros.T.contiguous()),
        "scales": scales.T.contiguous().half(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }


def _ungptq(stored: Stored) -> torch.Tensor:
    values = _unpack(stored["qweight"].T.contiguous())
    zeros, scales, index = _unpack(stored["qzeros"]), stored["scales"].float(), stored["g_idx"].long()
    return ((values - zeros[index].T) * scales[index].T).float()


def _awq(weight: torch.Tensor) -> Stored:
    values, scales, zeros = _four_bits(weight)
    return {
        "qweight": _pack(values.T.contiguous(), order=_AWQ_ORDER),
        "qzeros": _pack(zeros.T.contiguous(), order=_AWQ_ORDER),
        "scales": scales.T.contiguous().half(),
    }


def _unawq(stored: Stored) -> torch.Tensor:
    values = _unpack(stored["qweight"], order=_AWQ_ORDER)
    zeros = _unpack(stored["qzeros"], order=_AWQ_ORDER).repeat_interleave(GROUP, 0)
    return ((values - zeros) * stored["scales"].float().repeat_interleave(GROUP, 0)).T.contiguous()


def _packed(weight: torch.Tensor) -> Stored:
    values, scales, zeros = _four_bits(weight)
    return {
        "weight_packed": _pack(values),
        "weight_scale": scales.to(torch.bfloat16),
        "weight_zero_point": _pack(zeros.T.contiguous()).T.contiguous(),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }


def _unpacked(stored: Stored) -> torch.Tensor:
    rows, columns = stored["weight_shape"].tolist()
    values = _unpack(stored["weight_packed"])[:rows, :columns]
    zeros = _unpack(stored["weight_zero_point"].T.contiguous()).T.repeat_interleave(GROUP, 1)
    return (values - zeros).float() * stored["weight_scale"].float().repeat_interleave(GROUP, 1)


def _fp8(weight: torch.Tensor) -> Stored:
    scale = weight.abs().max() / 448
    return {
        "weight": (weight / scale).to(torch.float8_e4m3fn),
        "weight_scale": scale.reshape(()),
        "input_scale": torch.tensor(0.05),
    }


def _fp8_block(weight: torch.Tensor) -> Stored:
    rows, columns = weight.shape
    blocks = weight.reshape(rows // 8, 8, columns // 8, 8)
    scale = blocks.abs().amax((1, 3)) / 448
    return {
        "weight": (blocks / scale[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn),
        "weight_scale_inv": scale,
    }


def _unblock(stored: Stored) -> torch.Tensor:
    scale = stored["weight_scale_inv"].repeat_interleave(8, 0).repeat_interleave(8, 1)
    return stored["weight"].float() * scale


# Of the following forms only names, dtypes and shapes matter here; their values mean nothing.
def _mxfp4(weight: torch.Tensor) -> Stored:
    rows, columns = weight.shape
    return {
        "weight_packed": torch.ones((rows, columns // 2), dtype=torch.uint8) * _first_byte(weight),
        "weight_scale": torch.ones((rows, max(columns // 32, 1)), dtype=torch.uint8),
    }


def _nvfp4(weight: torch.Tensor) -> Stored:
    rows, columns = weight.shape
    return {
        "weight": torch.ones((rows, columns // 2), dtype=torch.uint8) * _first_byte(weight),
        "weight_scale": torch.ones((rows, max(columns // 16, 1))).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(1.0),
        "input_scale": torch.tensor(1.0),
    }


def _bitsandbytes(weight: torch.Tensor) -> Stored:
    count = weight.numel()
    return {
        "weight": torch.ones((count // 2, 1), dtype=torch.uint8) * _first_byte(weight),
        "weight.absmax": torch.ones(max(count // 64, 1), dtype=torch.uint8),
        "weight.quant_map": torch.ones(16),
        "weight.nested_absmax": torch.ones(1),
        "weight.nested_quant_map": torch.ones(256),
        "weight.quant_state.bitsandbytes__nf4": torch.ones(90, dtype=torch.uint8),
    }


def _first_byte(weight: torch.Tensor) -> int:
    return 1 + int(weight[0, 0].abs() * 1000) % 255


_QUANTIZERS: dict[str, Callable[[torch.Tensor], Stored]] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "fp8-block": _fp8_block,
    "pack-quantized": _packed,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "bitsandbytes": _bitsandbytes,
}
_DEQUANTIZERS: dict[str, Callable[[Stored], torch.Tensor]] = {
    "gptq": _ungptq,
    "awq": _unawq,
    "fp8-block": _unblock,
    "pack-quantized": _unpacked,
}


def effective_weights(stored: Stored, form: str) -> dict[str, torch.Tensor]:
    """Module name → [out, in] or [size] float32: what an engine multiplies with."""
    modules: dict[str, Stored] = {}
    for name, tensor in stored.items():
        module, _, parameter = name.rpartition(".")
        modules.setdefault(module, {})[parameter] = tensor
    effective = {}
    for module, parts in modules.items():
        if module.rpartition(".")[2] in PROJECTIONS:
            effective[module] = _fused_fp8(module, modules) if form == "fp8" else _DEQUANTIZERS[form](parts)
        elif "weight" in parts:
            effective[module] = parts["weight"].float()
    return effective


def shared_scale(module: str, modules: dict[str, Stored], parameter: str) -> torch.Tensor:
    """The one scale of a projection that an engine fuses with its siblings: the largest of them.

    Source: vllm 0.32.0, model_executor/layers/quantization/utils/w8a8_utils.py (`requantize_with_max_scale`) and fp8.py
    (`layer.input_scale.max()`).
    """
    parent, _, own = module.rpartition(".")
    siblings = next((group for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")) if own in group), ())
    names = [f"{parent}.{sibling}" for sibling in siblings] or [module]
    return torch.stack([modules[name][parameter].reshape(()) for name in names]).max()


def _fused_fp8(module: str, modules: dict[str, Stored]) -> torch.Tensor:
    own = modules[module]
    scale = shared_scale(module, modules, "weight_scale")
    exact = own["weight"].float() * own["weight_scale"]
    return (exact / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def round_trip_error(form: str) -> float:
    """The largest difference between weights and their quantised form, in units of the largest weight."""
    weight = torch.randn((16, 16), generator=torch.Generator().manual_seed(1))
    stored = {f"model.layers.0.mlp.down_proj.{key}": tensor for key, tensor in _QUANTIZERS[form](weight).items()}
    effective = effective_weights(stored, form)["model.layers.0.mlp.down_proj"]
    return float((effective - weight).abs().max() / weight.abs().max())
