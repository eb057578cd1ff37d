"""The fingerprint of a release: from a model directory or file, or as it was saved."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from blake3 import blake3

from kvrelease import artifacts
from kvrelease.artifacts import Artifact, JsonObject, ReleaseRef
from kvrelease.errors import DamagedFile, NotFound, UnsupportedRelease
from kvrelease.progress import Progress, silent
from kvrelease.release.checkpoint import Checkpoint, FileRole, ReleaseFile, listed, read_checkpoint
from kvrelease.release.digests import (
    LayerDigest,
    config_digest,
    kv_digests,
    release_digest,
    weights_digest,
    without_tied_copy,
)
from kvrelease.release.expectation import disagreements
from kvrelease.release.hashing import Payload, default_jobs, hash_tensors
from kvrelease.release.impact import OUTPUT_LAYER, Rule, rule_for
from kvrelease.release.model_config import CONFIG_NAME, ModelConfig, read_model_config
from kvrelease.release.naming import kv_name
from kvrelease.release.safetensors import StoredTensor
from kvrelease.release.small_files import read_bytes, stat_regular
from kvrelease.release.tokenizer import read_text_side


class Mode(enum.StrEnum):
    """How much was read."""

    FULL = "full"
    FAST = "fast"


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


class AdapterDigest(msgspec.Struct, frozen=True, kw_only=True):
    """One LoRA adapter of a release.

    Attributes:
        name: as it is served.
        digest: `algorithm:hex`.
        kv_name: of KV made by base and adapter together.
    """

    name: str
    digest: str
    kv_name: str


class Fingerprint(Artifact, frozen=True, kw_only=True, tag="kvrelease/fingerprint"):
    """What a release is.

    Attributes:
        release: which one; `kv_name` is None without a configuration, on which KV depends too.
        mode: how much was read.
        digests: of the parts.
        fast: the fast digest; None while it was not computed.
        adapters: LoRA adapters.
        rule: the dependency rule, with the reason where none applies.
        layers: cumulative digest of each layer's KV; empty where the rule knows no layers.
        tensors: number of tensors in the digests.
        bytes: that were hashed.
        seconds: that it took.
        files: that the release consists of, and weight files that it does not.
        config: canonical configuration; None when there is none.
        transformers_version: of the library that saved the model, None when not known. Part of no digest.
        tensor_digests: tensor name (raw) → hex over dtype, shape and bytes.
        warnings: what an operator should know.
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


def load_release(
    what: str | Path,
    *,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
) -> Fingerprint:
    """The fingerprint of whatever a user may call a release.

    Args:
        what: a model directory, one `.safetensors` file, or a saved fingerprint (`kvrelease.json`).
        jobs: threads to hash with; None for as many as are worthwhile here.
        name: overrides the release's own.
        version: overrides the release's own.
        progress: called while hashing.

    Raises:
        NotFound: no such path.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted.
        InputError: a file cannot be read, or changed meanwhile.
    """
    path = Path(what)
    if path.suffix == ".json" and not path.is_dir():
        saved = artifacts.read(path, Fingerprint)
        release = msgspec.structs.replace(
            saved.release, name=name or saved.release.name, version=version or saved.release.version
        )
        return msgspec.structs.replace(saved, release=release)
    if not path.is_dir() and path.suffix != ".safetensors" and path.exists():
        raise UnsupportedRelease(
            f"reading {path}: neither a model directory nor a .safetensors or .json file",
            hint="give the model's directory, or a fingerprint that was saved with --output",
        )
    if not path.exists():
        raise NotFound(f"reading {path}: no such file or directory")
    return fingerprint_directory(path, jobs=jobs, name=name, version=version, progress=progress)


def fingerprint_directory(
    path: Path,
    *,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
) -> Fingerprint:
    """The full fingerprint of a model directory, or of one `.safetensors` file and what lies beside it.

    Args:
        path: as the user wrote it.
        jobs: threads to hash with; None for as many as are worthwhile here.
        name: of the release; None for the directory's own.
        version: the operator's label.
        progress: called while hashing.

    Raises:
        NotFound: no such path, no weights, absent shards, or no config.json in a directory.
        DamagedFile: a file is not what it claims.
        UnsupportedRelease: nothing that can be fingerprinted.
        InputError: a file cannot be read, or changed meanwhile.
    """
    started = time.monotonic()
    checkpoint = read_checkpoint(path)
    config = _read_config(path, checkpoint.directory)
    entries = None if config is None else config.entries
    rule = rule_for(config)
    code = _read_code(checkpoint.directory, config)
    text_side = read_text_side(checkpoint.directory, model_config=entries)

    stored = [tensor for file in checkpoint.files for tensor in file.tensors]
    payloads = hash_tensors(checkpoint.files, jobs=jobs or default_jobs(), progress=progress)
    all_digests, duplicate_notes = _one_per_name(stored, payloads)
    tensor_digests = without_tied_copy(all_digests, rule)

    kv, layers = kv_digests(tensor_digests, entries, code, rule)
    parts = {
        "weights": weights_digest(tensor_digests),
        "config": None if entries is None else config_digest(entries, code),
        "tokenizer": text_side.tokenizer,
        "template": text_side.template,
        "generation": text_side.generation,
    }
    warnings = [*checkpoint.warnings, *duplicate_notes]
    if config is not None:
        warnings += [*config.warnings, *disagreements(config, rule, {tensor.name: tensor for tensor in stored})]
    if len(tensor_digests) != len(all_digests):
        warnings.append(f"{OUTPUT_LAYER} repeats the embeddings it is tied to, and is not counted")
    warnings += [*_about_content(checkpoint, stored, payloads), *text_side.warnings]
    if rule.reason is not None:
        warnings.append(f"{rule.reason}: so every tensor and every configuration key counts for the kv digest")
    own_name, own_version = _own_name(path)
    return Fingerprint(
        release=ReleaseRef(
            name=name or own_name,
            version=version or own_version,
            source=str(path),
            kv_name=None if config is None else kv_name(kv),
        ),
        mode=Mode.FULL,
        digests=Digests(
            release=release_digest(parts),
            weights=weights_digest(tensor_digests),
            kv=kv,
            config=parts["config"],
            tokenizer=text_side.tokenizer,
            template=text_side.template,
            generation=text_side.generation,
        ),
        fast=None,
        adapters=(),
        rule=rule,
        layers=layers,
        tensors=len(tensor_digests),
        bytes=sum(tensor.size_bytes for tensor in stored),
        seconds=round(time.monotonic() - started, 3),
        files=(*_own_files(checkpoint, config, code), *text_side.files),
        config=entries,
        transformers_version=None if config is None else config.transformers_version,
        tensor_digests=dict(sorted(tensor_digests.items())),
        warnings=tuple(warnings),
    )


def _own_name(path: Path) -> tuple[str, str | None]:
    """Name and version that a path gives away: a Hub cache is `models--org--name/snapshots/<commit>`."""
    resolved = path.resolve()
    if path.is_file():
        return path.stem, None
    repository = resolved.parent.parent.name
    if resolved.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rpartition("--")[2], resolved.name
    return resolved.name, None


def _read_config(path: Path, directory: Path) -> ModelConfig | None:
    """The configuration; None only for a single file that has none beside it."""
    config = directory / CONFIG_NAME
    if path.is_file() and not config.exists():
        return None
    if not config.exists() and not config.is_symlink():
        raise NotFound(
            f"reading {directory}: it holds weights, but no {CONFIG_NAME}, without which no engine can load them",
            hint=f"copy the {CONFIG_NAME} that belongs to the weights beside them",
        )
    return read_model_config(config)


def _read_code(directory: Path, config: ModelConfig | None) -> dict[str, str]:
    """File name → BLAKE3 (hex) of the Python files beside a configuration that names code of its own."""
    if config is None or "auto_map" not in config.entries:
        return {}
    return {
        path.name: blake3(read_bytes(path)).hexdigest() for path in sorted(directory.glob("*.py")) if path.is_file()
    }


def _one_per_name(stored: Sequence[StoredTensor], payloads: Sequence[Payload]) -> tuple[dict[str, str], list[str]]:
    """Tensor name → payload digest, and a note on names that occur in several files with equal content.

    Raises:
        DamagedFile: a name occurs twice with different content, so that the load order would decide.
    """
    first: dict[str, tuple[StoredTensor, str]] = {}
    repeated: list[str] = []
    for tensor, payload in zip(stored, payloads, strict=True):
        seen, digest = first.setdefault(tensor.name, (tensor, payload.digest))
        if digest != payload.digest:
            raise DamagedFile(
                f"reading tensor {tensor.name!r}: {seen.path} and {tensor.path} hold different versions of it",
                hint="remove the files that do not belong to this release",
            )
        if seen is not tensor:
            repeated.append(tensor.name)
    notes = [f"{len(repeated)} tensors are stored twice with equal content: {listed(repeated)}"] if repeated else []
    return {name: digest for name, (_, digest) in first.items()}, notes


def _about_content(checkpoint: Checkpoint, stored: Sequence[StoredTensor], payloads: Sequence[Payload]) -> list[str]:
    """Warnings about weights that are zero, and about dtypes whose size could not be checked."""
    warnings = []
    zero = [t.name for t, payload in zip(stored, payloads, strict=True) if payload.is_zero and len(t.shape) > 1]
    if zero:
        warnings.append(
            f"{len(zero)} weight matrices are all zero: {listed(zero)}; was the checkpoint written in full?"
        )
    unknown = sorted({dtype for file in checkpoint.files for dtype in file.unknown_dtypes})
    if unknown:
        warnings.append(f"the size of tensors could not be checked for unknown dtypes: {listed(unknown)}")
    return warnings


def _own_files(checkpoint: Checkpoint, config: ModelConfig | None, code: Mapping[str, str]) -> list[ReleaseFile]:
    """Weights, index, leftover weights, configuration and code, as rows."""
    directory = checkpoint.directory
    files = [
        ReleaseFile(
            path=file.path.relative_to(directory).as_posix(), bytes=file.identity.size_bytes, role=FileRole.WEIGHTS
        )
        for file in checkpoint.files
    ]
    named = [(CONFIG_NAME, FileRole.CONFIG)] if config is not None else []
    named += [(name, FileRole.CODE) for name in code]
    files += [ReleaseFile(path=name, bytes=stat_regular(directory / name), role=role) for name, role in named]
    return [*files, *checkpoint.other_files]
