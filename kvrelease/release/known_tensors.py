"""Digests that stand for tensors whose bytes are not read, because a diff needs no more than they prove. Pure.

Three ways, each under an algorithm name of its own, so that none is ever taken for a digest of bytes:

- a place states the hashes of the very files that a saved fingerprint was made of: then its digests are those;
- two places state the same hashes: then tensors of one name are the same, whatever they are;
- headers alone: other dtypes and shapes prove a change, equal ones prove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.release.algorithm import FULL_ALGORITHM, HEADERS_ALGORITHM, STATED_ALGORITHM
from kvrelease.release.canonical import digest_of
from kvrelease.release.families import FAMILIES
from kvrelease.release.impact import EMBEDDINGS, OUTPUT_LAYER
from kvrelease.release.tensor_contents import TensorContents
from kvrelease.release.weights import StoredTensor

# As any family calls them, and models without one. Which of them a release ties is decided where it was fingerprinted.
_EMBEDDINGS = {EMBEDDINGS, *(f"{module}.weight" for family in FAMILIES for module in family.embeddings)}
_OUTPUTS = {OUTPUT_LAYER, *(f"{module}.weight" for family in FAMILIES for module in family.outputs)}


class KnownTensors(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of tensors without reading them.

    Attributes:
        algorithm: that the digests of the release begin with.
        payloads: tensor name → digest (hex).
        fast: the fast digest where it is known too.
        note: how it is known, for whoever reads the result.
    """

    algorithm: str
    payloads: dict[str, str]
    fast: str | None
    note: str

    def contents(self, stored: Sequence[StoredTensor]) -> TensorContents:
        """In the order of the files."""
        digests = tuple(self.payloads[tensor.name] for tensor in stored)
        return TensorContents(digests=digests, samples=digests, zeros=(None,) * len(digests))


def known_from_saved(
    stored: Sequence[StoredTensor], saved: Mapping[str, str], *, fast: str | None, source: str
) -> KnownTensors | None:
    """The digests of a saved full fingerprint, which was made of the same files; None where a tensor is not in it.

    Args:
        stored: the tensors.
        saved: tensor name → digest of it, tied copies removed.
        fast: its fast digest.
        source: where it was made.
    """
    payloads = dict(saved)
    embeddings = [name for name in saved if name in _EMBEDDINGS]
    if len(embeddings) == 1:
        # An output layer of these files that the fingerprint lacks was left out of it, as a copy of the embeddings.
        left_out = _OUTPUTS - saved.keys()
        payloads |= {one.name: saved[embeddings[0]] for one in stored if one.name in left_out}
    if any(tensor.name not in payloads for tensor in stored):
        return None
    return KnownTensors(
        algorithm=FULL_ALGORITHM,
        payloads=payloads,
        fast=fast,
        note=f"no tensor was read: the place states the hashes of the very files that the fingerprint of {source} was "
        "made of",
    )


def known_from_hashes(stored: Sequence[StoredTensor], *, files: str) -> KnownTensors:
    """What two places that state the same hashes of all weight files prove.

    Args:
        stored: the tensors.
        files: digest of those hashes.
    """
    payloads = {tensor.name: digest_of(STATED_ALGORITHM, [files.encode(), tensor.name.encode()]) for tensor in stored}
    return KnownTensors(
        algorithm=STATED_ALGORITHM,
        payloads=payloads,
        fast=None,
        note="no tensor was read: both places state the same hashes of all weight files",
    )


def known_from_headers(stored: Sequence[StoredTensor]) -> KnownTensors:
    """What headers alone prove."""
    payloads = {
        tensor.name: digest_of(HEADERS_ALGORITHM, [tensor.dtype.encode(), repr(tensor.shape).encode()])
        for tensor in stored
    }
    return KnownTensors(
        algorithm=HEADERS_ALGORITHM,
        payloads=payloads,
        fast=None,
        note="no tensor was read: the configuration alone makes old KV invalid; which weights changed is not known "
        "(--fail-on weights reads them)",
    )
