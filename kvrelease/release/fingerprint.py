"""The fingerprint of a release: what it says, and what it may be used for."""

from __future__ import annotations

import shlex

import msgspec

from kvrelease.artifacts import Artifact, JsonObject, ReleaseRef
from kvrelease.errors import InputError, UnsupportedRelease
from kvrelease.release.adapter import AdapterDigest
from kvrelease.release.algorithm import EDITION, edition_of
from kvrelease.release.content import Format
from kvrelease.release.details import Details
from kvrelease.release.digests import LayerDigest
from kvrelease.release.impact import ADAPTER_RULE, Rule
from kvrelease.release.mode import Mode
from kvrelease.release.release_file import ReleaseFile
from kvrelease.release.sampling import DetectionBound


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


def require_current(found: Fingerprint) -> None:
    """Checks that a fingerprint, perhaps saved long ago, is of the algorithms of this version.

    Raises:
        UnsupportedRelease: its names would be others than those that everybody makes today.
    """
    edition = edition_of(found.digests.kv)
    if edition != EDITION:
        raise UnsupportedRelease(
            f"reading the fingerprint of {found.release.source}: kvrelease {found.tool} saved it, with digests of "
            f"{edition}; this version makes {EDITION}, and names of the two are never the same",
            hint=f"fingerprint the release again: kvrelease fingerprint {shlex.quote(found.release.source)}",
        )


def require_kv_name(found: Fingerprint) -> str:
    """The kv name of a release.

    Raises:
        InputError: it has none; the error says why, and what to do.
    """
    if found.release.kv_name is not None:
        return found.release.kv_name
    why, hint = why_unnamed(found) or (
        "its fingerprint is not a full one, and only a full digest may name a cache",
        f"kvrelease fingerprint {shlex.quote(found.release.source)}",
    )
    raise InputError(f"naming the KV of {found.release.source}: {why}", hint=hint)


def why_unnamed(found: Fingerprint) -> tuple[str, str] | None:
    """Why nothing that reads the release as it lies there gives it a kv name, and what would; None where that does.

    A fingerprint that is not a full one has no kv name either, but its release gets one wherever it is read in full.
    """
    if found.release.kv_name is not None:
        return None
    if found.rule.name == ADAPTER_RULE:
        why = "it is an adapter without its base, and KV is made by both"
        return why, f"kvrelease fingerprint BASE --adapter {shlex.quote(found.release.source)}"
    if found.unread:
        why, _, hint = found.unread[0].rpartition("; ")
        return why, hint
    if found.config is None:
        why = "it is weights without their config.json, and KV depends on that too"
        return why, "give the model's directory, config.json in it"
    return None
