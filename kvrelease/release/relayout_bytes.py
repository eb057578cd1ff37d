"""The bytes of tensors in another layout, hashed as they are cut out or put together, with bounded memory."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from kvrelease.errors import DamagedFile
from kvrelease.release.hashing import fill, payload_header
from kvrelease.release.source import Reader
from kvrelease.release.weights import StoredTensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.generic]

Shapes = Sequence[tuple[int, ...]]
# Widths of elements that can be moved about; smaller ones share bytes.
_WIDTHS = (1, 2, 4, 8)


class Layout(enum.StrEnum):
    """How a fused tensor holds others."""

    CONCATENATED = "concatenated"
    TRANSPOSED = "transposed"


def fused_shape(shapes: Shapes, layout: Layout, *, experts: int | None) -> tuple[int, ...] | None:
    """The shape of the tensor that holds others; None where they cannot be held so.

    Args:
        shapes: [rows, …] of the tensors side by side, of one expert.
        layout: of the fused one: rows after rows, or each tensor transposed and columns after columns.
        experts: stacked in front; None for none.
    """
    lead = () if experts is None else (experts,)
    if not shapes or any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        return None
    rows = sum(shape[0] for shape in shapes)
    if layout is Layout.CONCATENATED:
        return (*lead, rows, *shapes[0][1:])
    return (*lead, shapes[0][1], rows) if len(shapes[0]) == 2 else None


class RelayoutReader:
    """Reads tensors of open files, and hashes what they would be in another layout."""

    def __init__(
        self, readers: Mapping[str, Reader], *, advance: Callable[[int], None], slab_bytes: int, is_remote: bool
    ) -> None:
        """Args are open files by name, who is told of the first pass's bytes, and what may be held in memory."""
        self._readers = readers
        self._advance = advance
        self._slab_bytes = slab_bytes
        self._is_remote = is_remote
        self._is_first_pass = True

    def can_transpose(self, whole: StoredTensor | None, parts: Sequence[StoredTensor] | None, shapes: Shapes) -> bool:
        """Whether a tensor can be transposed: a store gives no columns of what does not fit into memory."""
        tensor = whole if parts is None else parts[0]
        assert tensor is not None
        width, rest = divmod(tensor.size_bytes, max(math.prod(tensor.shape), 1))
        size = width * sum(map(math.prod, shapes))
        return not rest and width in _WIDTHS and (not self._is_remote or size <= self._slab_bytes)

    def digests_of_parts(
        self, whole: StoredTensor, shapes: Shapes, layout: Layout, *, experts: int | None
    ) -> tuple[str, list[str]]:
        """The digest of a fused tensor, and those of all that it holds, in order."""
        total = blake3(payload_header(whole))
        found = []
        size = whole.size_bytes // ((experts or 1) * sum(map(math.prod, shapes)) or 1)
        if layout is Layout.TRANSPOSED:
            for chunk in self._chunks(whole, 0, whole.size_bytes):
                total.update(chunk)
        offset = 0
        for _ in range(experts or 1):
            column = 0
            slab = self._slab(whole, offset, shapes, size) if layout is Layout.TRANSPOSED else None
            for shape in shapes:
                part = msgspec.structs.replace(whole, shape=shape, size_bytes=math.prod(shape) * size)
                digest = blake3(payload_header(part))
                if slab is None:
                    for chunk in self._chunks(whole, offset, part.size_bytes):
                        digest.update(chunk)
                        total.update(chunk)
                    offset += part.size_bytes
                else:
                    for rows in slab.columns(column, shape[0]):
                        digest.update(rows)
                    column += shape[0]
                found.append(digest.hexdigest())
            if slab is not None:
                offset += size * sum(map(math.prod, shapes))
        self._is_first_pass = False
        return total.hexdigest(), found

    def digest_of_whole(
        self, parts: Sequence[StoredTensor], shapes: Shapes, layout: Layout, *, experts: int | None
    ) -> tuple[list[str], str]:
        """The digests of tensors, in order, and that of the one that holds them all."""
        shape = fused_shape(shapes, layout, experts=experts)
        assert shape is not None
        whole = msgspec.structs.replace(parts[0], shape=shape, size_bytes=sum(part.size_bytes for part in parts))
        total = blake3(payload_header(whole))
        seen = []
        for part in parts:
            digest = blake3(payload_header(part))
            for chunk in self._chunks(part, 0, part.size_bytes):
                digest.update(chunk)
                if layout is Layout.CONCATENATED:
                    total.update(chunk)
            seen.append(digest.hexdigest())
        if layout is Layout.TRANSPOSED:
            for at in range(0, len(parts), len(shapes)):
                for rows in self._side_by_side(parts[at : at + len(shapes)]):
                    total.update(rows)
        self._is_first_pass = False
        return seen, total.hexdigest()

    def _side_by_side(self, parts: Sequence[StoredTensor]) -> Iterator[bytes]:
        """Rows of the transposed matrices, one matrix beside the other."""
        import numpy as np  # noqa: PLC0415 - late: few diffs need it

        slabs = [
            self._slab(part, 0, [(part.shape[1], part.shape[0])], part.size_bytes // math.prod(part.shape))
            for part in parts
        ]
        columns = parts[0].shape[1]
        step = max(1, self._slab_bytes // ((columns and sum(part.size_bytes for part in parts) // columns) or 1) // 2)
        for begin in range(0, columns, step):
            blocks = [slab.block(begin, min(step, columns - begin)) for slab in slabs]
            yield np.concatenate(blocks, axis=1).tobytes()

    def _slab(self, tensor: StoredTensor, offset: int, shapes: Shapes, width: int) -> _Slab:
        """The matrix at an offset of a tensor whose columns are the rows of others."""
        columns = sum(shape[0] for shape in shapes)
        rows = shapes[0][1]
        size = rows * columns * width
        data = None
        if size <= self._slab_bytes:
            data = bytearray(size)
            fill(self._readers[tensor.where], memoryview(data), tensor.offset + offset, tensor=tensor)
        return _Slab(
            reader=self._readers[tensor.where],
            tensor=tensor,
            offset=tensor.offset + offset,
            rows=rows,
            row_elements=columns,
            width=width,
            data=data,
            most_bytes=self._slab_bytes,
        )

    def _chunks(self, tensor: StoredTensor, offset: int, size_bytes: int) -> Iterator[memoryview]:
        """The bytes of a range of a tensor."""
        reader = self._readers[tensor.where]
        buffer = bytearray(min(reader.chunk_bytes, size_bytes))
        for done in range(0, size_bytes, len(buffer) or 1):
            view = memoryview(buffer)[: min(len(buffer), size_bytes - done)]
            fill(reader, view, tensor.offset + offset + done, tensor=tensor)
            yield view
            self._advance(len(view) if self._is_first_pass else 0)


class _Slab(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A matrix [rows, row_elements] in a file, of which columns are wanted; `data` where it fits into memory."""

    reader: Reader
    tensor: StoredTensor
    offset: int
    rows: int
    row_elements: int
    width: int
    data: bytearray | None
    most_bytes: int

    def columns(self, first: int, count: int) -> Iterator[bytes]:
        """Columns as rows: the bytes of the transposed matrix [count, rows], a block at a time."""
        step = max(1, self.most_bytes // (self.rows * self.width or 1) // 2)
        for begin in range(first, first + count, step):
            yield self.block(begin, min(step, first + count - begin)).tobytes()

    def block(self, first: int, count: int) -> Matrix:
        """[count, rows]: so many columns, transposed."""
        import numpy as np  # noqa: PLC0415 - late, as above

        dtype = np.dtype(f"<u{self.width}")
        if self.data is not None:
            matrix = np.frombuffer(self.data, dtype).reshape(self.rows, self.row_elements)
            return matrix[:, first : first + count].T
        size = count * self.width
        begin = self.offset + first * self.width
        stride = self.row_elements * self.width
        blocks = self.reader.read_blocks([begin + row * stride for row in range(self.rows)], size)
        if any(len(block) != size for block in blocks):
            raise DamagedFile(
                f"reading tensor {self.tensor.name!r} from {self.tensor.where}: the file became shorter meanwhile",
                hint="wait until the copy or download has finished, and run again",
            )
        return np.frombuffer(b"".join(blocks), dtype).reshape(self.rows, count).T
