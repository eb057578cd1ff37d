"""What can be said of a release whose weights are not read: the hashes that the Hub itself states of its files.

Equal stored digests mean the same bytes in every weight file, and so the same tensors: a fingerprint that was made of
them before still holds. Different ones mean nothing: another sharding or a note in a header changes them too. They are
no weights digest, no kv digest, and make no namespace. Source: huggingface_hub 2.4.0, hf_api.py (`BlobLfsInfo.sha256`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kvrelease.errors import UnsupportedRelease
from kvrelease.release.algorithm import STORED_ALGORITHM
from kvrelease.release.canonical import digest_of
from kvrelease.release.content import read_content
from kvrelease.release.digests import config_digest
from kvrelease.release.mode import Mode
from kvrelease.release.source import Source
from kvrelease.release.weights import WeightFile

if TYPE_CHECKING:
    from kvrelease.release.fingerprint import Fingerprint


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A release as its place describes it; headers and small files were read, tensors were not.

    Attributes:
        address: of the release, pinned.
        stored: digest of the weight files' stated hashes, `algorithm:hex`.
        config: as in a full fingerprint; None where the release has no such part, as the three below.
        tokenizer: likewise.
        template: likewise.
        generation: likewise.
        tensors: number of tensors in the headers.
        bytes: of tensors, not read.
        warnings: what an operator should know.
        unread: what KV depends on and no digest covers; a sentence each.
    """

    address: str
    stored: str
    config: str | None
    tokenizer: str | None
    template: str | None
    generation: str | None
    tensors: int
    bytes: int
    warnings: tuple[str, ...]
    unread: tuple[str, ...] = ()


def stored_digest(files: Sequence[WeightFile]) -> str | None:
    """Digest of the weight files' stated hashes, whatever the files are called; None where one has none."""
    hashes = [file.identity.sha256 for file in files]
    known = sorted(bytes.fromhex(sha256) for sha256 in hashes if sha256 is not None)
    if len(known) != len(hashes):
        return None
    return f"{STORED_ALGORITHM}:{digest_of(STORED_ALGORITHM, known)}"


def read_stored(source: Source) -> StoredAnswer:
    """What a source says of its release without its tensors being read.

    Raises:
        UnsupportedRelease: it states no hashes: only reading can tell.
        InputError: a file is missing, damaged or unsupported.
        ServiceError: the store did not answer properly.
    """
    content = read_content(source)
    stored = stored_digest(content.checkpoint.files)
    if stored is None:
        raise UnsupportedRelease(
            f"reading {source.where}: the place states no hashes of its weight files, so nothing can be said without "
            "reading them",
            hint="make a full fingerprint",
        )
    config, text_side = content.config, content.text_side
    return StoredAnswer(
        address=source.origin.address,
        stored=stored,
        config=None if config is None else config_digest(config.entries, content.code, content.rule),
        tokenizer=text_side.tokenizer,
        template=text_side.template,
        generation=text_side.generation,
        tensors=len(content.tensors),
        bytes=sum(tensor.size_bytes for tensor in content.tensors),
        warnings=(
            *source.origin.warnings,
            *content.checkpoint.warnings,
            *(() if config is None else config.warnings),
            *text_side.warnings,
        ),
        unread=content.unread,
    )


def proves(answer: StoredAnswer, saved: Fingerprint) -> bool:
    """Whether a saved full fingerprint holds for what a place describes; False means that only reading can tell.

    A fast one proves nothing of its release itself, so there is nothing that could go on holding.
    """
    is_same = saved.stored == answer.stored and saved.digests.config == answer.config
    # Code, files beside the configuration, and nothing that lies elsewhere.
    says_all = saved.code is not None and not saved.unread and not answer.unread
    return is_same and says_all and saved.mode is Mode.FULL
