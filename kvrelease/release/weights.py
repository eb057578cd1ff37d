"""Weight files with their tensors located: what readers of formats return and digests are made of."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvrelease.release.source import FileIdentity, SourceFile

SAFETENSORS_SUFFIX, GGUF_SUFFIX = ".safetensors", ".gguf"
# Of files that hold tensors; each can hold a whole model.
WEIGHT_SUFFIXES = (SAFETENSORS_SUFFIX, GGUF_SUFFIX)


class StoredTensor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One tensor and where its bytes lie.

    Attributes:
        name: raw, as the header says it; quote it in messages.
        dtype: as the header says it, an opaque word.
        shape: elements along each axis.
        where: how messages name the file.
        offset: of the first byte, from the start of the file.
        size_bytes: length of the range.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    where: str
    offset: int
    size_bytes: int


class WeightFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose header is sound.

    Attributes:
        file: to be opened again for the bytes.
        identity: of the file when its header was read.
        tensors: in the order of their bytes.
        unknown_dtypes: whose element size we do not know, so that sizes could not be checked.
        metadata: what the header says beside the tensors (`__metadata__`); None where it says nothing.
    """

    file: SourceFile
    identity: FileIdentity
    tensors: tuple[StoredTensor, ...]
    unknown_dtypes: frozenset[str]
    metadata: Mapping[str, str] | None = None
