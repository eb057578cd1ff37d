"""The weight files of a release, located again for whoever reads tensors after a fingerprint was made."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvrelease.release.adapter import ADAPTER_WEIGHTS_NAME, is_adapter
from kvrelease.release.address import open_saved, open_source
from kvrelease.release.checkpoint import read_checkpoint
from kvrelease.release.gguf_model import holds_gguf, read_gguf_model
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.weights import StoredTensor, WeightFile


class ReadableWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a release, and where they are read.

    Attributes:
        files: whose headers are sound, as they were when this was made.
        is_remote: reading waits for answers more than it computes.
    """

    files: tuple[WeightFile, ...]
    is_remote: bool

    @property
    def tensors(self) -> list[StoredTensor]:
        """Of all files, in their order; a name may occur twice, with equal content."""
        return [tensor for file in self.files for tensor in file.tensors]


def readable_weights(what: str | Path) -> ReadableWeights | None:
    """The weights of whatever a user may call a release; None for a saved fingerprint, which has none.

    To be called before the fingerprint is made: readers of the files prove that nobody wrote to them since, and so
    that fingerprint and tensors are of one version.

    Raises:
        NotFound: nothing is there, no weights, or absent shards.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted.
        InputError: a file cannot be read.
        ServiceError: the store did not answer properly.
    """
    if open_saved(what) is not None:
        return None
    source = open_source(what)
    if is_adapter(source):
        files: tuple[WeightFile, ...] = (read_safetensors(source.file(ADAPTER_WEIGHTS_NAME)),)
    else:
        files = (read_gguf_model(source).checkpoint if holds_gguf(source) else read_checkpoint(source)).files
    return ReadableWeights(files=files, is_remote=source.origin.is_remote)
