"""The sums over two tensors (drift_figures.py), read piece by piece and computed by torch.

A piece is computed in float32 where that is exact enough, and again in float64 where its range is not.
"""

# ruff: noqa: PLC0415 - torch costs a second, and is there only with the `local` extra
from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from kvrelease.release.drift_figures import Sums, added_up
from kvrelease.release.drift_plan import Comparison, Operand
from kvrelease.release.drift_rows import TORCH_DTYPES, sums_of_rows
from kvrelease.release.hashing import fill
from kvrelease.release.open_files import OpenFiles
from kvrelease.release.source import Reader
from kvrelease.release.weights import StoredTensor

if TYPE_CHECKING:
    import torch

# Read and computed at once: smaller ones are mostly calls, larger ones leave the processor's cache between the passes
# (python -m benchmarks.drift). Two float32 copies of it are a thread's memory, 4 MiB.
PIECE_ELEMENTS = 512 * 1024
# A round trip to a store costs tens of milliseconds, so it brings more; eight threads hold about 100 MiB.
REMOTE_PIECE_ELEMENTS = 1024 * 1024
# What a local reader asks for at once (local_source.py); whoever asks for more waits for round trips.
_LOCAL_CHUNK_BYTES = 1024 * 1024
# Squares are added up in float32 over so many elements, and over those sums in float64: right to 1e-6 also for elements
# of few digits, where a `dot` of half a million of them is off by 2e-5.
_ROW_ELEMENTS = 1024
# Bytes are read to where they lie in a page of the file, or up to a line before: the copy from the page cache to up to
# 32 bytes behind that took 390 µs for 1 MiB on Zen 3, to everywhere else 85.
_PAGE_BYTES = 4096
_LINE_BYTES = 64
# A sum of squares in float32 is trusted where no square that counts is rounded to nothing or beyond the largest float:
# below 1e-30 per element squares of 1e-38, where float32 loses digits, would be more than a 1e-8th of it.
_LEAST_MEAN_SQUARE = 1e-30
_LARGEST_SUM = 1e30

_NARROW = frozenset({"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})


class Piece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a matrix whose elements lie side by side: whole rows, or a part of one row."""

    row: int
    rows: int
    column: int
    columns: int

    @property
    def elements(self) -> int:
        """How many there are."""
        return self.rows * self.columns

    def cut(self, most: int) -> Iterator[Piece]:
        """The same in pieces of at most so many elements."""
        if self.columns > most:
            for row in range(self.row, self.row + self.rows):
                for column in range(self.column, self.column + self.columns, most):
                    columns = min(most, self.column + self.columns - column)
                    yield Piece(row=row, rows=1, column=column, columns=columns)
        elif self.elements:
            step = max(1, most // self.columns)
            for row in range(self.row, self.row + self.rows, step):
                rows = min(step, self.row + self.rows - row)
                yield Piece(row=row, rows=rows, column=self.column, columns=self.columns)


def matrix_of(one: Comparison) -> Piece:
    """The whole of a tensor: rows of its last axis where scales depend on the row, else one row."""
    shape = one.old.tensor.shape
    elements = math.prod(shape)
    is_scaled = any(side.factor is not None and math.prod(side.factor.shape) > 1 for side in (one.old, one.new))
    columns = shape[-1] if is_scaled else elements
    return Piece(row=0, rows=elements // columns if columns else 0, column=0, columns=columns)


class _Room(msgspec.Struct, frozen=True, gc=False):
    """Where pieces of one size go.

    Attributes:
        views: the bytes of both sides, to be read into.
        stored: [elements] each, the same bytes as tensors.
        floats: [elements] each, float32: the numbers of both sides; the new side's become what they moved by.
        rows: the same as [rows, 1024], without the rest.
    """

    views: tuple[memoryview, ...]
    stored: tuple[torch.Tensor, ...]
    floats: tuple[torch.Tensor, ...]
    rows: tuple[torch.Tensor, ...]


class PairReader:
    """Reads and adds up pairs of tensors; one for each thread, which keeps its buffers between them."""

    def __init__(self, files: tuple[OpenFiles, OpenFiles], *, advance: Callable[[int], None]) -> None:
        """Args are the files of the old and of the new release, and what is told of the bytes read."""
        self._files = files
        self._readers: Sequence[Mapping[str, Reader]] = ()
        self._advance = advance
        self._buffers = [bytearray(), bytearray()]
        self._floats: list[torch.Tensor] = []
        self._scales: dict[tuple[int, str], torch.Tensor] = {}

    def sums(self, one: Comparison, segment: Piece) -> Sums:
        """The sums over a part of two tensors.

        Raises:
            DamagedFile: a file is shorter than its header said.
            InputError: a file cannot be read.
            ServiceError: the store did not answer properly.
        """
        with contextlib.ExitStack() as stack:
            self._readers = [
                stack.enter_context(files.readers(_places(side)))
                for files, side in zip(self._files, (one.old, one.new), strict=True)
            ]
            return self._sums(one, segment)

    def _sums(self, one: Comparison, segment: Piece) -> Sums:
        sides = (one.old, one.new)
        chunks = [self._readers[index][side.tensor.where].chunk_bytes for index, side in enumerate(sides)]
        most = PIECE_ELEMENTS if max(chunks) <= _LOCAL_CHUNK_BYTES else REMOTE_PIECE_ELEMENTS
        pieces = list(segment.cut(most))
        is_narrow = all(side.tensor.dtype in _NARROW for side in sides)
        parts = self._narrow(one, pieces) if is_narrow else {}
        for number, piece in enumerate(pieces):
            if number not in parts:
                room = self._room(one, piece)
                factors = [self._read(index, one, piece, room) for index, _ in enumerate(sides)]
                parts[number] = _wide(room.stored, factors, piece)
                self._advance(0 if is_narrow else sum(map(len, room.views)))  # told already, by the first pass
        return added_up(parts[number] for number, _ in enumerate(pieces))

    def _narrow(self, one: Comparison, pieces: Sequence[Piece]) -> dict[int, Sums]:
        """Number of a piece → its sums, of those whose squares float32 can hold.

        Each call of torch lets another thread run in between, which costs more than a small one does; so results are
        left in tensors until all pieces are done.
        """
        import torch

        norm = torch.linalg.vector_norm
        most = max((piece.elements for piece in pieces), default=0) // _ROW_ELEMENTS
        norms = torch.zeros((len(pieces), 3, most + 1))
        ends, changed = torch.zeros((2, len(pieces))), torch.zeros(len(pieces))
        to_lows, to_highs, to_changed = ends[0].unbind(), ends[1].unbind(), changed.unbind()
        room: _Room | None = None
        for number, piece in enumerate(pieces):
            if room is None or len(room.stored[0]) != piece.elements:
                room = self._room(one, piece)
                rest = slice(piece.elements // _ROW_ELEMENTS * _ROW_ELEMENTS, None)
                is_even = piece.elements % _ROW_ELEMENTS == 0
                to_norms = [each.unbind() for each in norms[:, :, : len(room.rows[0])].unbind()]
            for index, _ in enumerate(room.floats):
                factor = self._read(index, one, piece, room)
                values = room.floats[index].copy_(room.stored[index])
                if factor is not None:
                    values.view(piece.rows, piece.columns).mul_(factor)
                norm(room.rows[index], dim=1, out=to_norms[number][index])
                if not is_even:
                    norms[number, index, most] = norm(values[rest])
            moved = room.floats[1].sub_(room.floats[0])
            norm(room.rows[1], dim=1, out=to_norms[number][2])
            if not is_even:
                norms[number, 2, most] = norm(moved[rest])
            torch.aminmax(moved, out=(to_lows[number], to_highs[number]))
            torch.sum(moved.ne_(0), 0, out=to_changed[number])
            self._advance(sum(map(len, room.views)))
        squares = norms.double().square_().sum(2).tolist()
        largest = ends.abs().amax(0).tolist()
        counts = changed.tolist()
        return {
            number: Sums(
                elements=piece.elements,
                old_square=squares[number][0],
                new_square=squares[number][1],
                moved_square=squares[number][2],
                largest=largest[number],
                changed=int(counts[number]),
                non_finite=0,
            )
            for number, piece in enumerate(pieces)
            if _is_held(squares[number], piece.elements, has_moved=largest[number] != 0)
        }

    def _room(self, one: Comparison, piece: Piece) -> _Room:
        """Where a piece and those of the same size after it go, in the buffers that this thread has."""
        import torch

        elements = piece.elements
        if not self._floats or len(self._floats[0]) < elements:
            self._floats = [torch.empty(elements) for _ in ("old", "new")]
        views, stored = [], []
        for index, side in enumerate((one.old, one.new)):
            size = elements * _width(side.tensor)
            if len(self._buffers[index]) < size + 2 * _PAGE_BYTES:
                self._buffers[index] = bytearray(size + 2 * _PAGE_BYTES)
            buffer = self._buffers[index]
            in_page = _offset(side.tensor, one, piece) % _PAGE_BYTES // _LINE_BYTES * _LINE_BYTES
            begin = -torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() % _PAGE_BYTES + in_page
            views.append(memoryview(buffer)[begin : begin + size])
            stored.append(torch.frombuffer(views[-1], dtype=getattr(torch, TORCH_DTYPES[side.tensor.dtype])))
        floats = tuple(values[:elements] for values in self._floats)
        even = elements // _ROW_ELEMENTS * _ROW_ELEMENTS
        rows = tuple(values[:even].view(-1, _ROW_ELEMENTS) for values in floats)
        return _Room(tuple(views), tuple(stored), floats, rows)

    def _read(self, index: int, one: Comparison, piece: Piece, room: _Room) -> torch.Tensor | None:
        """Reads one side of a piece; returns what its elements are to be multiplied with."""
        side = (one.old, one.new)[index]
        tensor = side.tensor
        fill(self._readers[index][tensor.where], room.views[index], _offset(tensor, one, piece), tensor=tensor)
        return None if side.factor is None else _spread(self._scale(index, side), side, piece)

    def _scale(self, index: int, side: Operand) -> torch.Tensor:
        """[rows, columns] float32: the scale of a weight as a matrix, kept for the next segment of the same weight."""
        import torch

        assert side.factor is not None
        tensor = side.factor.tensor
        if (index, tensor.name) not in self._scales:
            if len(self._scales) > 1:
                self._scales.clear()
            data = bytearray(tensor.size_bytes)
            fill(self._readers[index][tensor.where], memoryview(data), tensor.offset, tensor=tensor)
            values = torch.frombuffer(data, dtype=getattr(torch, TORCH_DTYPES[tensor.dtype])).float()
            self._scales[index, tensor.name] = values.reshape(-1, side.factor.shape[-1] if side.factor.shape else 1)
        return self._scales[index, tensor.name]


def _places(side: Operand) -> set[str]:
    """The files that a side of a comparison lies in."""
    return {side.tensor.where} | (set() if side.factor is None else {side.factor.tensor.where})


def _width(tensor: StoredTensor) -> int:
    """Bytes of one element; of a tensor that has one."""
    return tensor.size_bytes // math.prod(tensor.shape)


def _offset(tensor: StoredTensor, one: Comparison, piece: Piece) -> int:
    """Where a piece begins in the tensor's file."""
    return tensor.offset + (piece.row * matrix_of(one).columns + piece.column) * _width(tensor)


def _is_held(squares: Sequence[float], elements: int, *, has_moved: bool) -> bool:
    """Whether float32 has the range for sums of squares: not for NaN, infinite and zero ones."""
    least = _LEAST_MEAN_SQUARE * elements
    return all(least <= square <= _LARGEST_SUM for square in squares[: 3 if has_moved else 2])


def _wide(operands: Sequence[torch.Tensor], factors: Sequence[torch.Tensor | None], piece: Piece) -> Sums:
    """The sums of a block in float64, elements that are not finite left out."""
    old, new = (
        stored.double() if factor is None else (stored.double().view(piece.rows, piece.columns) * factor).view(-1)
        for stored, factor in zip(operands, factors, strict=True)
    )
    stored = None if any(factor is not None for factor in factors) else operands
    pair = None if stored is None else (stored[0].view(1, -1), stored[1].view(1, -1))
    return sums_of_rows(old.view(1, -1), new.view(1, -1), stored=pair)[0]


def _spread(scale: torch.Tensor, side: Operand, piece: Piece) -> torch.Tensor:
    """The scale of each element of a piece, or of each row where it is one for the whole row.

    Args:
        scale: [rows of the scale, columns of the scale].
        side: the weight, and how the scale is spread over it.
        piece: of the weight as a matrix.

    Returns:
        [1, 1], [rows, 1] or [rows, columns].
    """
    import torch

    factor = side.factor
    assert factor is not None
    if scale.numel() == 1:
        return scale
    row = torch.arange(piece.row, piece.row + piece.rows)
    index, step = torch.zeros_like(row), 1
    axes = list(zip(side.tensor.shape[:-1], factor.shape[:-1], factor.blocks[:-1], strict=True))
    for elements, scales, size in reversed(axes):
        index += (row % elements) // size * step
        row = row // elements
        step *= scales
    rows = scale[index]
    if scale.shape[1] == 1:
        return rows
    return rows[:, torch.arange(piece.column, piece.column + piece.columns) // factor.blocks[-1]]
