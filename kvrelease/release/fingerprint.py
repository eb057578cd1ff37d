"""The fingerprint of a release: from a model directory or file, or as it was saved."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvrelease import artifacts
from kvrelease.artifacts import Artifact, JsonObject, ReleaseRef
from kvrelease.errors import DamagedFile, InputError, UnsupportedRelease
from kvrelease.printable import listed
from kvrelease.progress import Progress, silent
from kvrelease.release.adapter import AdapterDigest, is_adapter
from kvrelease.release.address import open_saved, open_source
from kvrelease.release.algorithm import FAMILY, FAST_ALGORITHM, FULL_ALGORITHM, family_of
from kvrelease.release.checkpoint import Checkpoint
from kvrelease.release.content import Content, Format, read_content
from kvrelease.release.detail_reader import read_details
from kvrelease.release.details import Details, TextContent
from kvrelease.release.digests import (
    LayerDigest,
    algorithm_of,
    config_digest,
    kv_digests,
    release_digest,
    weights_digest,
    without_tied_copy,
)
from kvrelease.release.expectation import disagreements
from kvrelease.release.hashing import default_jobs
from kvrelease.release.impact import ADAPTER_RULE, Rule
from kvrelease.release.known_tensors import KnownTensors
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.naming import kv_name
from kvrelease.release.release_file import ReleaseFile
from kvrelease.release.sampling import DetectionBound, detection_bound
from kvrelease.release.small_files import read_bytes
from kvrelease.release.source import Source
from kvrelease.release.steady import SteadySource
from kvrelease.release.stored import stored_digest
from kvrelease.release.tensor_contents import read_tensors
from kvrelease.release.weights import StoredTensor


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """`algorithm:hex` each; None where the release has no such part.

    Attributes:
        release: over all others.
        weights: all tensors.
        kv: what KV depends on.
        config: the canonical configuration.
        tokenizer: text to token ids.
        template: messages to text.
        generation: sampling defaults.
    """

    release: str
    weights: str
    kv: str
    config: str | None
    tokenizer: str | None
    template: str | None
    generation: str | None


class Fingerprint(Artifact, frozen=True, kw_only=True, tag="kvrelease/fingerprint"):
    """What a release is.

    Attributes:
        release: which one; `kv_name` is None where something that KV depends on is not known (`require_kv_name`).
        mode: how much was read.
        digests: of the parts.
        fast: the digest of all headers and of samples of every tensor, comparable with that of any other fingerprint;
            None in an artifact that was saved before it existed.
        stored: digest of the hashes that the place itself states of the weight files (stored.py): equal means equal
            weights, different means nothing. None where it states none.
        adapters: LoRA adapters that it is served with; an adapter without its base is its own only one.
        rule: the dependency rule, with the reason where none applies.
        layers: cumulative digest of each layer's KV; empty where the rule knows no layers.
        tensors: number of tensors in the digests.
        bytes: of all tensors.
        seconds: that it took.
        files: that the release consists of, and weight files that it does not.
        format: of the weights; releases in two formats are never compared tensor by tensor.
        config: canonical configuration; None when there is none.
        transformers_version: of the library that saved the model, None when not known. Part of no digest.
        labels: what a GGUF file says about where it comes from. Part of no digest.
        tensor_digests: tensor name (raw) → hex over dtype, shape and bytes; over samples of them in mode `fast`.
        warnings: what an operator should know.
        remembered_bytes: of tensors whose digests were remembered from an earlier run, and not hashed again.
        bound: what mode `fast` can have missed; None in mode `full`, which misses nothing.
        code: file name → BLAKE3 (hex) of code that the configuration brings; None in an artifact that was saved before
            it was kept, and before the files beside `config.json` counted.
        unread: what KV depends on and no digest covers; a sentence each, with the next step. Where there is any, there
            is no kv name, and equal digests prove nothing.
        details: what the parts are made of, so that a diff can say what in them changed; None in an artifact that was
            saved before they were kept. Part of no digest.
    """

    release: ReleaseRef
    mode: Mode
    digests: Digests
    fast: str | None
    adapters: tuple[AdapterDigest, ...]
    rule: Rule
    layers: tuple[LayerDigest, ...]
    tensors: int
    bytes: int
    seconds: float
    files: tuple[ReleaseFile, ...]
    config: JsonObject | None
    transformers_version: str | None
    tensor_digests: dict[str, str]
    warnings: tuple[str, ...]
    format: Format = Format.SAFETENSORS  # the only one that older artifacts know
    labels: JsonObject = msgspec.field(default_factory=dict)
    stored: str | None = None
    remembered_bytes: int = 0
    bound: DetectionBound | None = None
    code: dict[str, str] | None = None
    unread: tuple[str, ...] = ()
    details: Details | None = None


def load_release(
    what: str | Path,
    *,
    mode: Mode = Mode.FULL,
    memo: Memo | None = None,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
) -> Fingerprint:
    """The fingerprint of whatever a user may call a release: that of `load_with_text`.

    Raises:
        InputError: as there.
        UsageError: an address of no known form, or an empty one.
        MissingExtra: a library for such addresses is not installed.
        ServiceError: the store did not answer properly.
    """
    found, _ = load_with_text(what, mode=mode, memo=memo, jobs=jobs, name=name, version=version, progress=progress)
    return found


def load_with_text(
    what: str | Path,
    *,
    mode: Mode = Mode.FULL,
    memo: Memo | None = None,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
) -> tuple[Fingerprint, TextContent | None]:
    """The fingerprint of a release, and the text side that its digests were made of; None where it was saved.

    Args:
        what: a model directory, one `.safetensors` or `.gguf` file, an adapter's directory, or a saved fingerprint
            (`kvrelease.json`); each of them also in an object store (`s3://`, `gs://`); or a model on the Hub
            (`hf:org/name@revision`).
        mode: how much of the tensors is read; an adapter is always read whole, a saved fingerprint stays what it is.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to hash with; None for as many as are worthwhile here.
        name: overrides the release's own.
        version: overrides the release's own.
        progress: called while hashing.

    Raises:
        NotFound: no such path, no weights, absent shards, or no config.json in a directory.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted.
        InputError: a file cannot be read, or changed meanwhile.
        UsageError: an address of no known form, or an empty one.
        MissingExtra: a library for such addresses is not installed.
        ServiceError: the store did not answer properly.
    """
    file = open_saved(what)
    if file is not None:
        data = read_bytes(file, limit_bytes=artifacts.MAX_ARTIFACT_BYTES)
        from kvrelease.release.saved import require_consistent  # noqa: PLC0415 - late: it reads a Fingerprint

        saved = artifacts.from_json(data, Fingerprint, source=file.where)
        require_consistent(saved, where=file.where)
        release = msgspec.structs.replace(
            saved.release, name=name or saved.release.name, version=version or saved.release.version
        )
        return msgspec.structs.replace(saved, release=release), None
    source = open_source(what)
    if is_adapter(source):
        from kvrelease.release.adapted import fingerprint_adapter_with_text  # noqa: PLC0415 - late: it makes a Fingerprint

        return fingerprint_adapter_with_text(
            source, memo=memo, jobs=jobs, name=name, version=version, progress=progress
        )
    return fingerprint_with_text(source, mode=mode, memo=memo, jobs=jobs, name=name, version=version, progress=progress)


def require_current(found: Fingerprint) -> None:
    """Checks that a fingerprint, perhaps saved long ago, is of the algorithms of this version.

    Raises:
        UnsupportedRelease: its names would be others than those that everybody makes today.
    """
    family = family_of(found.digests.kv)
    if family != FAMILY:
        raise UnsupportedRelease(
            f"reading the fingerprint of {found.release.source}: kvrelease {found.tool} saved it, with digests of "
            f"{family}; this version makes {FAMILY}, and names of the two are never the same",
            hint=f"fingerprint the release again: kvrelease fingerprint {shlex.quote(found.release.source)}",
        )


def require_kv_name(found: Fingerprint) -> str:
    """The kv name of a release.

    Raises:
        InputError: it has none; the error says why, and what to do.
    """
    if found.release.kv_name is not None:
        return found.release.kv_name
    source = shlex.quote(found.release.source)
    hint = f"kvrelease fingerprint {source}"
    if found.rule.name == ADAPTER_RULE:
        why = "it is an adapter without its base, and KV is made by both"
        hint = f"kvrelease fingerprint BASE --adapter {source}"
    elif found.unread:
        why, _, hint = found.unread[0].rpartition("; ")
    elif found.mode is not Mode.FULL:
        why = "its fingerprint is not a full one, and only a full digest may name a cache"
    else:
        why = "it is weights without their config.json, and KV depends on that too"
        hint = "give the model's directory, config.json in it"
    raise InputError(f"naming the KV of {found.release.source}: {why}", hint=hint)


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
    warnings += [*_about_content(checkpoint, stored, read.zeros), *text_side.warnings]
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
