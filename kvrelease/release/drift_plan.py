"""Which tensors of two releases can be compared as numbers, and what they have to be multiplied with first. Pure.

A quantised weight is its stored elements times its scales. Where one scale covers a tensor, a row or a block of known
size, that is done; packed forms (GPTQ, AWQ, compressed-tensors' packs, MXFP4, NVFP4, bitsandbytes, GGUF's blocks) are
incomparable, with the reason. Sources: vllm 0.32.0, model_executor/layers/quantization/fp8.py (`weight_scale`,
`weight_scale_inv`, `weight_block_size`), utils/fp8_utils.py; transformers 5.24.0, integrations/finegrained_fp8.py
(`Fp8Dequantize`); compressed-tensors 0.17.0, quantization/lifecycle/forward.py (`dequantize`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.drift_figures import Drift, DriftStatus, equal, layer_of
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.quantization import PARAMETERS, QUANTIZATION_KEY
from kvrelease.release.weights import StoredTensor

FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
INTEGERS = frozenset({"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"})
# Of one byte, and so too narrow to hold weights without a scale.
_SCALED = frozenset({"F8_E4M3", "F8_E5M2", "I8"})
_SCALES = frozenset({"F64", "F32", "F16", "BF16"})
_SCALE_SUFFIXES = ("_scale", "_scale_inv")
# Held in memory while their weight streams by; blocks of 128 x 128 need as many for a weight of 64 Gi elements.
MAX_SCALE_ELEMENTS = 4 * 1024 * 1024
# What lies beside a packed weight, below its module, and how such a form is called.
_PACKED_BY = {
    "qweight": "GPTQ or AWQ",
    "weight_packed": "a pack of compressed-tensors",
    "weight_scale_2": "NVFP4",
    "SCB": "LLM.int8",
    "weight.absmax": "bitsandbytes",
    "weight_blocks": "MXFP4",
}
_PARTS_OF_A_PACK = PARAMETERS | _PACKED_BY.keys() | {"weight", "weight_scales"}


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """The scale of a weight.

    Attributes:
        tensor: as it is stored.
        shape: the same with as many axes as the weight.
        blocks: elements of the weight along each axis that share one element of the scale.
    """

    tensor: StoredTensor
    shape: tuple[int, ...]
    blocks: tuple[int, ...]


class Operand(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison; without a factor the stored elements are the numbers."""

    tensor: StoredTensor
    factor: Factor | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two tensors of one shape, to be read.

    Attributes:
        name: of both.
        old: the tensor before.
        new: the tensor after.
        how: what a reader of the figures has to know; None where there is nothing.
    """

    name: str
    old: Operand
    new: Operand
    how: str | None


class DriftPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is known without reading, and what has to be read."""

    settled: tuple[Drift, ...]
    comparisons: tuple[Comparison, ...]


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """A release as far as this module needs it."""

    digests: Mapping[str, str]
    stored: Mapping[str, StoredTensor]
    block: tuple[int, int] | None
    is_quantized: bool


def plan_drift(
    old: Fingerprint,
    new: Fingerprint,
    changes: TensorChanges,
    *,
    old_tensors: Iterable[StoredTensor],
    new_tensors: Iterable[StoredTensor],
) -> DriftPlan:
    """What to do with each tensor that both releases have.

    Args:
        old: of the release before, full.
        new: of the release after, full.
        changes: between the two.
        old_tensors: the same release's, located.
        new_tensors: the same release's, located.
    """
    before, after = _side(old, old_tensors), _side(new, new_tensors)
    settled = [
        equal(pair.new, elements=_elements(after.stored[pair.new].shape), was=pair.old) for pair in changes.renamed
    ]
    comparisons = []
    for name in sorted(before.digests.keys() & after.digests.keys()):
        planned = _plan_one(name, before, after)
        if isinstance(planned, Comparison):
            comparisons.append(planned)
        else:
            settled.append(planned)
    settled += _packed_on_one_side(changes.removed, after, which="new")
    settled += _packed_on_one_side(changes.added, before, which="old")
    return DriftPlan(settled=tuple(settled), comparisons=tuple(comparisons))


def _side(found: Fingerprint, tensors: Iterable[StoredTensor]) -> _Side:
    return _Side(
        digests=found.tensor_digests,
        stored={tensor.name: tensor for tensor in tensors},
        block=_block_size(found.config or {}),
        is_quantized=found.rule.is_quantized or QUANTIZATION_KEY in (found.config or {}),
    )


def _plan_one(name: str, before: _Side, after: _Side) -> Comparison | Drift:
    old, new = before.stored[name], after.stored[name]
    scales = [_scale_of(name, side.stored) for side in (before, after)]
    is_same = before.digests[name] == after.digests[name]
    if is_same and _digest(before, scales[0]) == _digest(after, scales[1]):
        return equal(name, elements=_elements(new.shape))
    stem = _stem_of_scale(name)
    is_scale = stem is not None and all(_is_scale_of(stem, name, side) for side in (before, after))
    if stem is not None and is_scale and isinstance(_plan_one(stem, before, after), Comparison):
        return _without(name, DriftStatus.FOLDED, f"multiplied into {stem!r}")
    operands = []
    for side, tensor, scale in ((before, old, scales[0]), (after, new, scales[1])):
        operand = _operand(side, tensor, scale)
        if isinstance(operand, str):
            return _without(name, DriftStatus.INCOMPARABLE, operand)
        operands.append(operand)
    if (why := _why_unlike(*operands)) is not None:
        return _without(name, DriftStatus.INCOMPARABLE, why)
    return Comparison(name=name, old=operands[0], new=operands[1], how=_how(operands))


def _why_unlike(old: Operand, new: Operand) -> str | None:
    if old.tensor.shape != new.tensor.shape:
        return f"the shapes differ: {list(old.tensor.shape)} and {list(new.tensor.shape)}"
    are_floats = [side.tensor.dtype in FLOATS or side.factor is not None for side in (old, new)]
    if are_floats[0] != are_floats[1]:
        return f"one is of integers and the other is not: {old.tensor.dtype} and {new.tensor.dtype}"
    return None


def _operand(side: _Side, tensor: StoredTensor, scale: StoredTensor | None) -> Operand | str:
    """How the numbers of a tensor are read, or why they cannot be."""
    if (packed := _packed(tensor.name, side.stored)) is not None:
        return f"it is a part of a weight in the form {packed}, which is not unpacked here"
    if tensor.dtype not in FLOATS | INTEGERS:
        return f"elements of dtype {tensor.dtype} are not read as numbers here"
    if scale is None:
        if tensor.dtype in _SCALED and side.is_quantized and len(tensor.shape) > 1:
            has_zero = f"{tensor.name}_zero_point" in side.stored
            lies = "a zero point, which is not applied here," if has_zero else "no weight_scale or weight_scale_inv"
            return f"it is quantised ({tensor.dtype}), and {lies} lies beside it"
        if tensor.dtype in INTEGERS and side.is_quantized and len(tensor.shape) > 1:
            return f"it is quantised, and how its {tensor.dtype} are packed is not known here"
        return Operand(tensor=tensor, factor=None)
    factor = _factor(tensor, scale, block=side.block)
    return factor if isinstance(factor, str) else Operand(tensor=tensor, factor=factor)


def _factor(tensor: StoredTensor, scale: StoredTensor, *, block: tuple[int, int] | None) -> Factor | str:
    """How the scale is spread over the weight, or why that is not clear."""
    if scale.dtype not in _SCALES:
        return f"its scale {scale.name!r} has elements of dtype {scale.dtype}, which are not read as numbers here"
    if _elements(scale.shape) > MAX_SCALE_ELEMENTS:
        return f"its scale {scale.name!r} has more than {MAX_SCALE_ELEMENTS} elements"
    shape = scale.shape
    if _elements(shape) == 1:
        shape = (1,) * len(tensor.shape)
    elif len(shape) == len(tensor.shape) - 1 and shape == tensor.shape[:-1]:
        shape = (*shape, 1)
    sizes = (*(1,) * (len(tensor.shape) - 2), *block) if block is not None else None
    blocks = []
    for axis, (elements, scales) in enumerate(zip(tensor.shape, shape, strict=False)):
        if scales in (1, elements):
            blocks.append(max(elements, 1) if scales == 1 else 1)
        elif sizes is not None and len(sizes) == len(tensor.shape) and scales == -(-elements // sizes[axis]):
            blocks.append(sizes[axis])
        else:
            break
    if len(shape) != len(tensor.shape) or len(blocks) != len(tensor.shape):
        known = "no block size" if block is None else f"blocks of {list(block)}"
        return (
            f"its scale {scale.name!r} of shape {list(scale.shape)} does not say which of the elements "
            f"{list(tensor.shape)} it belongs to (config.json tells {known})"
        )
    return Factor(tensor=scale, shape=shape, blocks=tuple(blocks))


def _how(operands: Sequence[Operand]) -> str | None:
    factors = [operand.factor for operand in operands if operand.factor is not None]
    dtypes = [operand.tensor.dtype for operand in operands]
    if factors:
        return f"multiplied with {factors[-1].tensor.name!r} ({dtypes[0]} and {dtypes[1]})"
    return f"{dtypes[0]} and {dtypes[1]}, compared as numbers" if dtypes[0] != dtypes[1] else None


def _packed_on_one_side(names: Sequence[str], other: _Side, *, which: str) -> list[Drift]:
    """Weights that the other release has under the name of a packed form."""
    found = []
    for name in names:
        module, _, parameter = name.rpartition(".")
        packed = _packed(name, other.stored) if parameter == "weight" else None
        if packed is not None:
            reason = f"the {which} release has {module!r} in the form {packed}, which is not unpacked here"
            found.append(_without(name, DriftStatus.INCOMPARABLE, reason))
    return found


def _packed(name: str, names: Container[str]) -> str | None:
    """The packed form of which a tensor is a part; None where it is of none."""
    stem = next((name.removesuffix(end) for end in ("_blocks", "_scales") if name.endswith(end)), None)
    if stem is not None and f"{stem}_blocks" in names and f"{stem}_scales" in names:
        return "MXFP4"
    module, separator, parameter = name.rpartition(".")
    if separator and module.endswith(".weight"):  # `q_proj.weight.absmax`
        module, parameter = module.removesuffix(".weight"), f"weight.{parameter}"
    elif separator and ".weight.quant_state." in name:
        module, _, rest = name.partition(".weight.quant_state.")
        parameter = f"weight.quant_state.{rest}"
    if parameter not in _PARTS_OF_A_PACK:
        return None
    return next((form for mark, form in _PACKED_BY.items() if f"{module}.{mark}" in names), None)


def _scale_of(name: str, stored: Mapping[str, StoredTensor]) -> StoredTensor | None:
    """The tensor that a quantised one is to be multiplied with."""
    if name not in stored or stored[name].dtype not in _SCALED or f"{name}_zero_point" in stored:
        return None
    return next((stored[name + suffix] for suffix in _SCALE_SUFFIXES if name + suffix in stored), None)


def _is_scale_of(stem: str, name: str, side: _Side) -> bool:
    """Whether a tensor is what another one is to be multiplied with."""
    scale = _scale_of(stem, side.stored) if stem in side.digests else None
    return scale is not None and scale.name == name


def _stem_of_scale(name: str) -> str | None:
    return next((name.removesuffix(suffix) for suffix in reversed(_SCALE_SUFFIXES) if name.endswith(suffix)), None)


def _digest(side: _Side, tensor: StoredTensor | None) -> str | None:
    return None if tensor is None else side.digests.get(tensor.name)


def _without(name: str, status: DriftStatus, reason: str) -> Drift:
    return Drift(tensor=name, status=status, layer=layer_of(name)[1], reason=reason)


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for axis in shape:
        count *= axis
    return count


def _block_size(entries: JsonObject) -> tuple[int, int] | None:
    """The one block size [rows, columns] that a canonical configuration tells for all of its quantised weights."""
    quantization = entries.get(QUANTIZATION_KEY)
    if not isinstance(quantization, dict):
        return None
    found = {_pair(quantization.get("weight_block_size"))}
    groups = quantization.get("config_groups")
    for group in groups if isinstance(groups, list) else []:
        match group:
            case [_, {"weights": {"block_structure": block}}]:
                found.add(_pair(block))
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _pair(value: object) -> tuple[int, int] | None:
    match value:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    return None
