"""Making the fingerprint of a release from its files."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import ReleaseRef
from kvrelease.errors import DamagedFile
from kvrelease.printable import listed
from kvrelease.progress import Progress, silent
from kvrelease.release.algorithm import FAST_ALGORITHM, FULL_ALGORITHM
from kvrelease.release.checkpoint import Checkpoint
from kvrelease.release.content import Content, read_content
from kvrelease.release.detail_reader import about_tokenizer, read_details
from kvrelease.release.details import TextContent
from kvrelease.release.digests import (
    algorithm_of,
    config_digest,
    kv_digests,
    release_digest,
    weights_digest,
    without_tied_copy,
)
from kvrelease.release.expectation import disagreements
from kvrelease.release.fingerprint import Digests, Fingerprint
from kvrelease.release.hashing import default_jobs
from kvrelease.release.known_tensors import KnownTensors
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.naming import kv_name
from kvrelease.release.sampling import detection_bound
from kvrelease.release.source import Source
from kvrelease.release.steady import SteadySource
from kvrelease.release.stored import stored_digest
from kvrelease.release.tensor_contents import read_tensors
from kvrelease.release.weights import StoredTensor


def fingerprint_with_text(
    source: Source,
    *,
    mode: Mode = Mode.FULL,
    memo: Memo | None = None,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
    content: Content | None = None,
    known: KnownTensors | None = None,
) -> tuple[Fingerprint, TextContent]:
    """The fingerprint of a release, and the text side that its digests were made of.

    Args:
        source: of its files.
        mode: how much of the tensors is read.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to read with; None for as many as are worthwhile here.
        name: of the release; None for the source's own.
        version: the operator's label; None for the source's own.
        progress: called while hashing.
        content: of the source, where its headers and small files were read already.
        known: stands for the bytes of the tensors, which are not read.

    Raises:
        NotFound: no weights, absent shards, or no config.json in a directory.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted.
        InputError: a file cannot be read, or changed meanwhile.
        ServiceError: the store did not answer properly.
    """
    started = time.monotonic()
    source = source if isinstance(source, SteadySource) else SteadySource(source)
    content = content or read_content(source)
    checkpoint, config, rule, text_side = content.checkpoint, content.config, content.rule, content.text_side
    entries = None if config is None else config.entries
    stored = content.tensors
    threads = jobs or default_jobs(is_remote=source.origin.is_remote)
    if known is None:
        read = read_tensors(
            checkpoint.files, mode=mode, jobs=threads, memo=memo, seen_ns=source.seen_ns, progress=progress
        )
    else:
        read = known.contents(stored)
    details = read_details(
        text_side,
        config=None if config is None else config.stated,
        mode=mode if known is None else Mode.FULL,
        memo=memo,
    )
    source.require_unchanged()
    all_digests, repeated = _one_per_name(stored, read.digests)
    tensor_digests = dict(sorted(without_tied_copy(all_digests, rule).items()))

    algorithm = algorithm_of(mode) if known is None else known.algorithm
    weights = fast = weights_digest(tensor_digests, algorithm=algorithm)
    if known is not None:
        fast = known.fast or weights
    elif mode is Mode.FULL:
        samples = {tensor.name: sample for tensor, sample in zip(stored, read.samples, strict=True)}
        fast = weights_digest(without_tied_copy(samples, rule), algorithm=FAST_ALGORITHM)
    kv, layers = kv_digests(tensor_digests, entries, content.code, rule, algorithm=algorithm)
    parts = {
        "weights": weights,
        "config": None if entries is None else config_digest(entries, content.code, rule),
        "tokenizer": text_side.tokenizer,
        "template": text_side.template,
        "generation": text_side.generation,
    }
    warnings = [*source.origin.warnings, *checkpoint.warnings]
    proof = _proof_of(mode, known)
    if repeated:
        warnings.append(f"{len(repeated)} tensors are stored twice {proof.twice}: {listed(repeated)}")
    if known is not None:
        warnings.append(known.note)
    if config is not None:
        warnings += [*config.warnings, *disagreements(config, rule, {tensor.name: tensor for tensor in stored})]
    if len(tensor_digests) != len(all_digests):
        copies = ", ".join(sorted(all_digests.keys() - tensor_digests.keys()))
        warnings.append(f"{copies} {proof.copy} the embeddings it is tied to, and is not counted")
    warnings += [*_about_content(checkpoint, stored, read.zeros), *text_side.warnings, *about_tokenizer(details)]
    warnings += [f"there is no kv name: {why}" for why in content.unread]
    if rule.reason is not None:
        warnings.append(f"{rule.reason}: so every tensor and every configuration key counts for the kv digest")
    found = Fingerprint(
        release=ReleaseRef(
            name=name or content.name or source.origin.name,
            version=version or source.origin.version,
            source=source.origin.address,
            kv_name=kv_name(kv) if algorithm == FULL_ALGORITHM and config is not None and not content.unread else None,
        ),
        mode=mode,
        digests=Digests(
            release=release_digest(parts, algorithm=algorithm),
            weights=weights,
            kv=kv,
            config=parts["config"],
            tokenizer=text_side.tokenizer,
            template=text_side.template,
            generation=text_side.generation,
        ),
        fast=fast,
        adapters=(),
        rule=rule,
        layers=layers,
        tensors=len(tensor_digests),
        bytes=sum(tensor.size_bytes for tensor in stored),
        seconds=round(time.monotonic() - started, 3),
        files=content.files,
        format=content.format,
        config=entries,
        transformers_version=None if config is None else config.transformers_version,
        labels=content.labels,
        tensor_digests=tensor_digests,
        warnings=tuple(warnings),
        remembered_bytes=read.remembered_bytes,
        bound=detection_bound((t.shape, t.size_bytes) for t in stored) if mode is Mode.FAST and known is None else None,
        stored=stored_digest(checkpoint.files),
        code=content.code,
        unread=content.unread,
        details=msgspec.structs.replace(details, aliases=tuple(sorted(all_digests.keys() - tensor_digests.keys()))),
    )
    return found, text_side.content


class _Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What equal digests say of two tensors, in words: no more than was read."""

    twice: str
    copy: str


def _proof_of(mode: Mode, known: KnownTensors | None) -> _Proof:
    if known is not None and known.algorithm != FULL_ALGORITHM:
        return _Proof(twice="and were not read", copy="was not read, but has the dtype and shape of")
    if mode is Mode.FAST:
        return _Proof(twice="and show no difference in samples", copy="shows in samples no difference from")
    return _Proof(twice="with equal content", copy="repeats")


def _one_per_name(stored: Sequence[StoredTensor], digests: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Tensor name → digest, and the names that occur in several files with equal digests.

    Raises:
        DamagedFile: a name occurs twice with different content, so that the load order would decide.
    """
    by_name = {tensor.name: digest for tensor, digest in zip(stored, digests, strict=True)}
    if len(by_name) == len(stored):
        return by_name, []
    first: dict[str, tuple[StoredTensor, str]] = {}
    repeated: list[str] = []
    for tensor, found in zip(stored, digests, strict=True):
        seen, digest = first.setdefault(tensor.name, (tensor, found))
        if digest != found:
            raise DamagedFile(
                f"reading tensor {tensor.name!r}: {seen.where} and {tensor.where} hold different versions of it",
                hint="remove the files that do not belong to this release",
            )
        if seen is not tensor:
            repeated.append(tensor.name)
    return {name: digest for name, (_, digest) in first.items()}, repeated


def _about_content(checkpoint: Checkpoint, stored: Sequence[StoredTensor], zeros: Sequence[bool | None]) -> list[str]:
    """Warnings about weights that are zero, and about dtypes whose size could not be checked."""
    warnings = []
    zero = [tensor.name for tensor, is_zero in zip(stored, zeros, strict=True) if is_zero and len(tensor.shape) > 1]
    if zero:
        warnings.append(
            f"{len(zero)} weight matrices are all zero: {listed(zero)}; was the checkpoint written in full?"
        )
    unknown = sorted({dtype for file in checkpoint.files for dtype in file.unknown_dtypes})
    if unknown:
        warnings.append(f"the size of tensors could not be checked for unknown dtypes: {listed(unknown)}")
    return warnings
