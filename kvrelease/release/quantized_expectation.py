"""What a quantised checkpoint of the Llama family must hold, and warnings where it does not.

An engine that misses a scale does not say so: it multiplies by one, or by what the memory held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.printable import listed
from kvrelease.release.families.llama import LLAMA
from kvrelease.release.impact import Rule
from kvrelease.release.quantization import SIDE_SCALES, promises_kv_scales
from kvrelease.release.weights import StoredTensor

_PROJECTIONS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
# The values of a projection → the parameters one of which must be their scale.
_SCALE_OF: Mapping[str, tuple[str, ...]] = {
    "qweight": ("scales",),
    "weight_packed": ("weight_scale",),
    "weight": ("weight_scale", "weight_scale_inv"),
}
_FP8_DTYPES = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


def quantized_disagreements(entries: JsonObject, rule: Rule, tensors: Mapping[str, StoredTensor]) -> list[str]:
    """Warnings about absent projections, values without a scale, and KV scales that nobody announces or delivers.

    Args:
        entries: canonical configuration.
        rule: of the release; nothing is claimed where it knows no layers.
        tensors: name → where it lies.
    """
    if rule.layers is None or rule.family != LLAMA.rule or not rule.is_quantized:
        return []
    layers = [f"model.layers.{layer}" for layer in range(rule.layers)]
    return [*_about_projections(layers, tensors), *_about_kv_scales(entries, layers, tensors)]


def _about_projections(layers: Iterable[str], tensors: Mapping[str, StoredTensor]) -> list[str]:
    absent, unscaled = [], []
    projections = [f"{layer}.{part}" for layer in layers for part in _PROJECTIONS]
    for projection in projections:
        values = next((name for name in _SCALE_OF if f"{projection}.{name}" in tensors), None)
        if values is None:
            absent.append(projection)
            continue
        is_plain = values == "weight" and tensors[f"{projection}.weight"].dtype not in _FP8_DTYPES
        if not is_plain and not any(f"{projection}.{scale}" in tensors for scale in _SCALE_OF[values]):
            unscaled.append(f"{projection}.{values}")
    warnings = []
    # Where none is there, the projections are fused, or of a format with other names.
    if 0 < len(absent) < len(projections):
        warnings.append(
            f"{len(absent)} projections that config.json promises are absent: {listed(absent)}; an engine may start "
            "with random values in their place"
        )
    if unscaled:
        warnings.append(
            f"{len(unscaled)} quantised weights have no scale beside them: {listed(unscaled)}; the checkpoint is "
            "incomplete, or of a format that engines read differently"
        )
    return warnings


def _about_kv_scales(entries: JsonObject, layers: Iterable[str], tensors: Mapping[str, StoredTensor]) -> list[str]:
    without, found = [], 0
    for layer in layers:
        sides = [  # in the oldest notation the scale of K is a parameter of its projection
            any(f"{layer}.{name}" in tensors for name in (*names, f"self_attn.{side}_proj.output_scale"))
            for side, names in SIDE_SCALES.items()
        ]
        found += any(sides)
        if not all(sides):
            without.append(layer)
    if promises_kv_scales(entries) and without:
        return [
            f"the configuration promises calibrated KV scales, and {len(without)} layers lack those of K or V: "
            f"{listed(without)}; with an FP8 KV cache engines take the scale 1.0 there"
        ]
    if found and not promises_kv_scales(entries):
        return [
            f"{found} layers bring KV scales that no kv_cache_scheme announces: engines that go by the announcement "
            "drop them, and take the scale 1.0 with an FP8 KV cache"
        ]
    return []
