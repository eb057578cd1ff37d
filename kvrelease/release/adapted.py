"""Fingerprints in which adapters take part: a release served with adapters, and an adapter without its base."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping

import msgspec

from kvrelease.artifacts import ReleaseRef
from kvrelease.errors import UsageError
from kvrelease.progress import Progress, silent
from kvrelease.release.adapter import Adapter, read_adapter
from kvrelease.release.adapter_fit import misfits_with_base
from kvrelease.release.algorithm import FAST_ALGORITHM
from kvrelease.release.content import Format
from kvrelease.release.detail_reader import read_details
from kvrelease.release.details import TextContent
from kvrelease.release.digests import adapter_config_digest, algorithm_of, release_digest, weights_digest
from kvrelease.release.expectation import expected_shapes
from kvrelease.release.fingerprint import Digests, Fingerprint, require_current
from kvrelease.release.impact import ADAPTER_RULE, Rule
from kvrelease.release.memo import Memo
from kvrelease.release.mode import Mode
from kvrelease.release.model_config import ModelConfig
from kvrelease.release.source import Source
from kvrelease.release.steady import SteadySource
from kvrelease.release.tokenizer import read_text_side

_ALONE = Rule(
    name=ADAPTER_RULE,
    layers=None,
    ties_embeddings=False,
    is_quantized=False,
    reason="it is an adapter without its base, and KV is made by both",
)


def fingerprint_adapter_with_text(
    source: Source,
    *,
    memo: Memo | None = None,
    jobs: int | None = None,
    name: str | None = None,
    version: str | None = None,
    progress: Progress = silent,
) -> tuple[Fingerprint, TextContent]:
    """The fingerprint of an adapter alone (what it is, and no kv name), and the text side beside it.

    Args:
        source: of its files.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to hash with; None for as many as are worthwhile here.
        name: of the adapter; None for the source's own.
        version: the operator's label; None for the source's own.
        progress: called while hashing.

    Raises:
        NotFound: no weights, or no adapter_config.json.
        DamagedFile: a file is not what it claims, or holds no weights.
        UnsupportedRelease: the weights are a pickle.
        InputError: a file cannot be read, or changed meanwhile.
        ServiceError: the store did not answer properly.
    """
    started = time.monotonic()
    source = SteadySource(source)
    adapter = read_adapter(source, memo=memo, jobs=jobs, progress=progress)
    text_side = read_text_side(source, model_config=None)
    details = read_details(text_side, config=None, mode=Mode.FULL, memo=memo)
    source.require_unchanged()
    own = adapter.on(None, name=name or adapter.name, has_kv_name=False)
    digests = Digests(
        release="",
        weights=weights_digest(adapter.payloads),
        kv=adapter.content,
        config=adapter_config_digest(adapter.config.entries),
        tokenizer=text_side.tokenizer,
        template=text_side.template,
        generation=text_side.generation,
    )
    found = Fingerprint(
        release=ReleaseRef(name=own.name, version=version or adapter.version, source=adapter.source, kv_name=None),
        mode=Mode.FULL,
        digests=msgspec.structs.replace(digests, release=_release_digest(digests, Mode.FULL, {"adapter": own.content})),
        fast=weights_digest(adapter.samples, algorithm=FAST_ALGORITHM),
        adapters=(own,),
        rule=_ALONE,
        layers=(),
        tensors=own.tensors,
        bytes=own.bytes,
        seconds=round(time.monotonic() - started, 3),
        files=(*adapter.files, *text_side.files),
        config=adapter.config.entries,
        transformers_version=None,
        tensor_digests=dict(sorted(adapter.payloads.items())),
        remembered_bytes=adapter.remembered_bytes,
        warnings=(
            *adapter.warnings,
            *text_side.warnings,
            f"{_ALONE.reason}: so there is no kv name; the base with --adapter {shlex.quote(adapter.source)} has one",
        ),
        details=details,
    )
    return found, text_side.content


def with_adapters(
    base: Fingerprint,
    sources: Mapping[str, Source],
    *,
    memo: Memo | None = None,
    jobs: int | None = None,
    progress: Progress = silent,
) -> Fingerprint:
    """A release that is served with adapters: each with the name of the KV that base and adapter make together.

    The base's own digests and kv name stay: KV of requests without an adapter is the base's.

    Args:
        base: of the base model.
        sources: name as it is served → files of the adapter.
        memo: of earlier runs; None to hash everything, and to remember nothing.
        jobs: threads to hash with; None for as many as are worthwhile here.
        progress: called while hashing.

    Raises:
        UsageError: a name is given twice, or the base is an adapter itself.
        UnsupportedRelease: an earlier algorithm made the base's fingerprint.
        InputError: an adapter cannot be read.
        ServiceError: the store did not answer properly.
    """
    require_current(base)
    if base.rule.name == ADAPTER_RULE:
        raise UsageError(
            f"{base.release.source} is an adapter itself, so it is no base for others",
            hint="give the base model first, and each adapter with --adapter",
        )
    taken = {adapter.name for adapter in base.adapters}
    twice = sorted(taken & sources.keys())
    if twice:
        raise UsageError(f"the adapter {twice[0]!r} is in the fingerprint already", hint="give it another NAME=")
    started = time.monotonic()
    found, warnings = list(base.adapters), list(base.warnings)
    for name, source in sources.items():
        adapter = read_adapter(source, memo=memo, jobs=jobs, progress=progress)
        found.append(adapter.on(base.digests.kv, name=name, has_kv_name=base.release.kv_name is not None))
        warnings += [f"adapter {name!r}: {text}" for text in (*adapter.warnings, *_misfits(adapter, base))]
    contents = {f"adapter {one.name}": one.content for one in found}
    digests = msgspec.structs.replace(base.digests, release=_release_digest(base.digests, base.mode, contents))
    return msgspec.structs.replace(
        base,
        digests=digests,
        adapters=tuple(found),
        warnings=tuple(warnings),
        seconds=round(base.seconds + time.monotonic() - started, 3),
    )


def _misfits(adapter: Adapter, base: Fingerprint) -> list[str]:
    if base.format is not Format.SAFETENSORS:
        return [f"whether it fits the base cannot be told: {base.format} calls tensors otherwise"]
    entries = base.config or {}
    model_type = entries.get("model_type")
    config = ModelConfig(
        model_type=model_type if isinstance(model_type, str) else None,
        entries=entries,
        stated=entries,
        transformers_version=None,
        warnings=(),
    )
    # The product of an adapter's factors has the unquantised shape, however the base is packed.
    plain = msgspec.structs.replace(base.rule, is_quantized=False)
    return misfits_with_base(
        adapter.config,
        adapter.tensors,
        base_names=base.tensor_digests.keys(),
        base_shapes=expected_shapes(config, plain),
        is_tied=base.rule.ties_embeddings,
    )


def _release_digest(digests: Digests, mode: Mode, adapters: Mapping[str, str]) -> str:
    """Over the parts of a release, adapters among them by the name under which each is served.

    An adapter alone is `adapter`, whatever its directory is called: moved, it is the same one.
    """
    parts = {name: getattr(digests, name) for name in digests.__struct_fields__ if name not in ("release", "kv")}
    return release_digest(parts | dict(adapters), algorithm=algorithm_of(mode))
