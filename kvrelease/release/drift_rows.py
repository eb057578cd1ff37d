"""The sums over many small tensors at once, one to a row: each alone would be mostly calls.

A model of experts has tens of thousands of norms, biases and scales of a few elements.
"""

# ruff: noqa: PLC0415 - torch costs a second, and is there only with the `local` extra
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvrelease.release.drift_figures import Sums
from kvrelease.release.drift_plan import Comparison
from kvrelease.release.hashing import fill
from kvrelease.release.open_files import OpenFiles

if TYPE_CHECKING:
    import torch

# A tensor of so many elements costs 0.5 ms alone whatever its size, and in a batch as much as its elements do.
SMALL_ELEMENTS = 16 * 1024
# Of a batch; in float64 a few MiB of memory for each thread.
BATCH_ELEMENTS = 64 * 1024

TORCH_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "uint8",
}


def batches_of(comparisons: Sequence[Comparison]) -> list[tuple[int, ...]]:
    """Indices of the comparisons that are read at once: of one size, of one dtype and one file on each side.

    Large tensors, empty ones and those with scales are in none.
    """
    groups: dict[tuple[int, str, str, str, str], list[int]] = {}
    for index, one in enumerate(comparisons):
        elements = math.prod(one.old.tensor.shape)
        if 0 < elements <= SMALL_ELEMENTS and one.old.factor is None and one.new.factor is None:
            old, new = one.old.tensor, one.new.tensor
            key = (elements, old.dtype, old.where, new.dtype, new.where)
            groups.setdefault(key, []).append(index)
    batches = []
    for (elements, *_), indices in groups.items():
        most = BATCH_ELEMENTS // elements
        batches += [tuple(indices[begin : begin + most]) for begin in range(0, len(indices), most)]
    return batches


def sums_of_batch(
    batch: Sequence[Comparison], files: tuple[OpenFiles, OpenFiles], *, advance: Callable[[int], None]
) -> list[Sums]:
    """The sums of each comparison of one batch.

    Args:
        batch: indices of `batches_of`, as comparisons.
        files: of the old and of the new release.
        advance: told of the bytes read.

    Raises:
        DamagedFile: a file is shorter than its header said.
        InputError: a file cannot be read.
        ServiceError: the store did not answer properly.
    """
    import torch

    stored = []
    for side, opened in enumerate(files):
        tensors = [(one.old, one.new)[side].tensor for one in batch]
        width = tensors[0].size_bytes
        data = bytearray(width * len(tensors))
        with opened.reader(tensors[0].where) as reader:
            for row, tensor in enumerate(tensors):
                fill(reader, memoryview(data)[row * width : (row + 1) * width], tensor.offset, tensor=tensor)
        dtype = getattr(torch, TORCH_DTYPES[tensors[0].dtype])
        stored.append(torch.frombuffer(data, dtype=dtype).view(len(tensors), -1))
        advance(len(data))
    return sums_of_rows(stored[0].double(), stored[1].double(), stored=(stored[0], stored[1]))


def sums_of_rows(
    old: torch.Tensor, new: torch.Tensor, *, stored: tuple[torch.Tensor, torch.Tensor] | None
) -> list[Sums]:
    """The sums of each row in float64, elements that are not finite left out.

    Args:
        old: [rows, elements], float64.
        new: likewise.
        stored: both as they are stored, [rows, elements]; None where scales were multiplied in.
    """
    import torch

    if stored is not None and stored[0].dtype == stored[1].dtype and not stored[0].dtype.is_floating_point:
        is_other = stored[0] != stored[1]  # integers beyond 2^53 have no float64 of their own
    else:
        is_other = (old != new) & ~(old.isnan() & new.isnan())
    is_finite = old.isfinite() & new.isfinite()
    if not bool(is_finite.all()):
        old, new = old.where(is_finite, 0.0), new.where(is_finite, 0.0)
    moved = new - old
    columns = (
        *(torch.linalg.vecdot(each, each, dim=1) for each in (old, new, moved)),
        moved.abs().amax(1),
        is_other.sum(1),
        is_finite.sum(1),
    )
    elements = old.shape[1]
    return [
        Sums(
            elements=elements,
            old_square=old_square,
            new_square=new_square,
            moved_square=moved_square,
            largest=largest,
            changed=changed,
            non_finite=elements - finite,
        )
        for old_square, new_square, moved_square, largest, changed, finite in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
