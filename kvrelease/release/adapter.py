"""A LoRA adapter: its weights and what scales and places them, read from the directory that PEFT writes.

KV is made by base and adapter together, so an adapter alone has a digest of its content and no kv name; with the base's
kv digest it has both. Sources: peft 0.21.2, utils/constants.py (file names), utils/save_and_load.py; vllm 0.32.0,
lora/lora_model.py (`from_local_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.errors import DamagedFile, NotFound, UnsupportedRelease
from kvrelease.printable import listed
from kvrelease.progress import Progress, silent
from kvrelease.release.adapter_config import ADAPTER_CONFIG_NAME, AdapterConfig, read_adapter_config
from kvrelease.release.adapter_fit import misfits_inside
from kvrelease.release.digests import adapted_kv_digest, adapter_digest, weights_digest
from kvrelease.release.hashing import default_jobs
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.naming import kv_name
from kvrelease.release.release_file import FileRole, ReleaseFile, release_file
from kvrelease.release.safetensors import read_safetensors
from kvrelease.release.shard_index import INDEX_NAME
from kvrelease.release.source import Source
from kvrelease.release.steady import SteadySource
from kvrelease.release.tensor_contents import TensorContents, read_tensors
from kvrelease.release.weights import WEIGHT_SUFFIXES, StoredTensor, WeightFile

ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
_PICKLES = ("adapter_model.bin", "adapter_model.pt")
_WEIGHTS_STEM = "adapter_model"


class AdapterDigest(msgspec.Struct, frozen=True, kw_only=True):
    """One LoRA adapter of a release.

    Attributes:
        name: as it is served.
        digest: `algorithm:hex` of base and adapter; of the adapter alone where the base is not known.
        kv_name: of KV made by base and adapter together; None where the base is not known, or has none.
        content: `algorithm:hex` of the adapter alone: equal for the same adapter on any base.
        source: where it was read, as the user wrote it.
        tensors: number of tensors.
        bytes: of them.
        config: its canonical configuration.
        uncounted: what its configuration says besides, such as the base that it was made for. Part of no digest.
        remembered_bytes: of tensors whose digests were remembered from an earlier run, and not hashed again.
        weights: `algorithm:hex` of its tensors alone; None in an artifact that was saved before it existed.
    """

    name: str
    digest: str
    kv_name: str | None
    content: str
    source: str
    tensors: int
    bytes: int
    config: JsonObject
    uncounted: JsonObject
    remembered_bytes: int = 0
    weights: str | None = None


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine would load.

    Attributes:
        name: that the place gives it.
        version: that the place gives it; None where it gives none.
        source: where it was read.
        config: canonical.
        tensors: in the order of their bytes.
        payloads: tensor name (raw) → hex over dtype, shape and bytes.
        samples: tensor name (raw) → hex over dtype, shape and samples of the bytes.
        remembered_bytes: of tensors whose digests were remembered from an earlier run.
        files: that it consists of, and weight files that it does not.
        warnings: what an operator should know.
    """

    name: str
    version: str | None
    source: str
    config: AdapterConfig
    tensors: tuple[StoredTensor, ...]
    payloads: dict[str, str]
    samples: dict[str, str]
    remembered_bytes: int
    files: tuple[ReleaseFile, ...]
    warnings: tuple[str, ...]

    @property
    def content(self) -> str:
        """`algorithm:hex` of weights and configuration."""
        return adapter_digest(self.payloads, self.config.entries)

    def on(self, base_kv: str | None, *, name: str, has_kv_name: bool) -> AdapterDigest:
        """The digest of this adapter.

        Args:
            base_kv: kv digest of the base; None where it is not known.
            name: as it is served.
            has_kv_name: the base's kv digest is one that may name KV.
        """
        digest = self.content if base_kv is None else adapted_kv_digest(base_kv, self.content)
        return AdapterDigest(
            name=name,
            digest=digest,
            kv_name=kv_name(digest) if base_kv is not None and has_kv_name else None,
            content=self.content,
            source=self.source,
            tensors=len(self.tensors),
            bytes=sum(tensor.size_bytes for tensor in self.tensors),
            config=self.config.entries,
            uncounted=self.config.uncounted,
            remembered_bytes=self.remembered_bytes,
            weights=weights_digest(self.payloads),
        )


def is_adapter(source: Source) -> bool:
    """Whether a source holds an adapter, and no model beside it that an engine would load instead."""
    if source.single_file is not None:
        return source.single_file.startswith(_WEIGHTS_STEM)
    names = [name for name in source.names() if "/" not in name]
    has_model = INDEX_NAME in names or any(
        name.endswith(WEIGHT_SUFFIXES) and not name.startswith(_WEIGHTS_STEM) for name in names
    )
    has_adapter = ADAPTER_CONFIG_NAME in names or any(name.startswith(_WEIGHTS_STEM) for name in names)
    return has_adapter and not has_model


def read_adapter(
    source: Source, *, memo: Memo | None = None, jobs: int | None = None, progress: Progress = silent
) -> Adapter:
    """An adapter, every byte of its weights hashed: they are small, and change more often than any other.

    Args:
        source: of its files.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to hash with; None for as many as are worthwhile here.
        progress: called while hashing.

    Raises:
        NotFound: no adapter is there, or its configuration is absent.
        DamagedFile: a file is not what it claims, or holds no weights.
        UnsupportedRelease: the weights are a pickle.
        InputError: a file cannot be read, or changed meanwhile.
        ServiceError: the store did not answer properly.
    """
    source = source if isinstance(source, SteadySource) else SteadySource(source)
    names = [name for name in source.names() if "/" not in name]
    weights = _read_weights(source, names)
    if ADAPTER_CONFIG_NAME not in names:
        raise NotFound(
            f"reading {source.where}: it holds adapter weights, but no {ADAPTER_CONFIG_NAME}: how strong they are, and "
            "where they go, is not known",
            hint=f"copy the {ADAPTER_CONFIG_NAME} that was saved with them beside them",
        )
    config = read_adapter_config(source.file(ADAPTER_CONFIG_NAME))
    threads = jobs or default_jobs(is_remote=source.origin.is_remote)
    read = read_tensors([weights], mode=Mode.FULL, jobs=threads, memo=memo, seen_ns=source.seen_ns, progress=progress)
    source.require_unchanged()
    stored = [tensor.name for tensor in weights.tensors]
    others = [name for name in names if name.startswith(_WEIGHTS_STEM) and name != ADAPTER_WEIGHTS_NAME]
    return Adapter(
        name=source.origin.name,
        version=source.origin.version,
        source=source.origin.address,
        config=config,
        tensors=weights.tensors,
        payloads=dict(zip(stored, read.digests, strict=True)),
        samples=dict(zip(stored, read.samples, strict=True)),
        remembered_bytes=read.remembered_bytes,
        files=(
            ReleaseFile(path=weights.file.name, bytes=weights.identity.size_bytes, role=FileRole.WEIGHTS),
            release_file(source.file(ADAPTER_CONFIG_NAME), FileRole.CONFIG),
            *(release_file(source.file(name), FileRole.EXTRA) for name in others),
        ),
        warnings=(
            *source.origin.warnings,
            *config.warnings,
            *misfits_inside(config, weights.tensors),
            *_about_content(weights, read),
            *([f"weight files that are not part of the adapter: {listed(others)}"] if others else []),
        ),
    )


def _read_weights(source: Source, names: Sequence[str]) -> WeightFile:
    """The one file of weights, its tensors not empty."""
    if source.single_file is not None and source.single_file != ADAPTER_WEIGHTS_NAME:
        raise UnsupportedRelease(
            f"reading {source.where}: {source.single_file!r} is no {ADAPTER_WEIGHTS_NAME}, and adapters of no other "
            "form are read",
            hint="give the directory that PEFT wrote; of a converted adapter, the one that it was converted from",
        )
    if ADAPTER_WEIGHTS_NAME not in names:
        pickles = [name for name in _PICKLES if name in names]
        if pickles:
            raise UnsupportedRelease(
                f"reading {source.where}: the adapter is a pickle ({listed(pickles)}); nothing is ever unpickled",
                hint="convert it: load it with PEFT where you trust it, and save_pretrained() the adapter",
            )
        raise NotFound(
            f"reading {source.where}: no {ADAPTER_WEIGHTS_NAME} among its {len(names)} files",
            hint="give the directory that PEFT wrote: it holds adapter_config.json and the weights",
        )
    weights = read_safetensors(source.file(ADAPTER_WEIGHTS_NAME))
    empty = [tensor.name for tensor in weights.tensors if tensor.size_bytes == 0]
    if empty or not weights.tensors:
        what = f"{len(empty)} of its tensors are empty: {listed(empty)}" if empty else "it holds no tensors"
        raise DamagedFile(
            f"reading {weights.file.where}: {what}: the adapter was saved while its weights lay elsewhere",
            hint="save it with its weights gathered (DeepSpeed ZeRO-3: stage3_gather_16bit_weights_on_model_save)",
        )
    return weights


def _about_content(weights: WeightFile, read: TensorContents) -> list[str]:
    """Warnings about factors that are zero: B is before training."""
    halves = (".lora_B.weight", ".lora_embedding_B")
    pairs = zip(weights.tensors, read.zeros, strict=True)
    zero = [tensor.name for tensor, is_zero in pairs if is_zero and tensor.name.endswith(halves)]
    if not zero:
        return []
    return [
        f"{len(zero)} of the lora_B factors are all zero: {listed(zero)}; was the adapter saved before it was trained?"
    ]
