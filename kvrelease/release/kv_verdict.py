"""Whether old KV may be read under the new release: the one place that weighs weights, runtime and adapters. Pure.

Invalid wins over unknown, and unknown over valid. Where they can be compared, the kv digests decide about the release;
another runtime makes KV invalid whatever they say, and an adapter that is another one under its old name makes that
invalid which it had a part in.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrelease.release.adapter_diff import adapter_reasons, replaced_adapters
from kvrelease.release.algorithm import HEADERS_ALGORITHM, edition_of, name_of
from kvrelease.release.comparison import AdapterChanges, TensorChanges
from kvrelease.release.diff_record import ConfigChange, KvImpact, KvStatus
from kvrelease.release.families import HEAD_SUFFIX
from kvrelease.release.file_changes import (
    FileChange,
    code_reasons,
    is_multimodal,
    preprocessor_reasons,
    preprocessors,
    unread_reasons,
)
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.kv_reasons import (
    base_reason,
    config_reasons,
    draft_reasons,
    file_reasons,
    harmless,
    tensor_reasons,
)
from kvrelease.release.mode import Mode
from kvrelease.release.runtime_change import NOT_COMPARED, RuntimeChange, RuntimeStatus


def judge_kv(
    old: Fingerprint,
    new: Fingerprint,
    *,
    tensors: TensorChanges,
    config: Sequence[ConfigChange] = (),
    files: Sequence[FileChange] = (),
    code: Sequence[FileChange] = (),
    adapters: AdapterChanges,
    ungiven: str | None = None,
    runtime: RuntimeChange = NOT_COMPARED,
) -> KvImpact:
    """The verdict on the old KV, from the digests and from what none of them covers.

    Args:
        old: the release before.
        new: the one after.
        tensors: that differ; they only explain.
        config: entries that differ; likewise.
        files: beside the configuration that differ. Those that prepare images and sound decide, where the model takes
            any; the others explain.
        code: files of it that differ.
        adapters: that differ.
        ungiven: why adapters were not compared; None where they were.
        runtime: what comparing the runtimes said.
    """
    # What a model of text makes of a preprocessor, only its rule knows.
    prepares = preprocessors(files) if is_multimodal(old) or is_multimodal(new) else ()
    release = _judge_release(
        old,
        new,
        tensors,
        config,
        [one for one in files if one not in prepares],
        certain=(
            *([runtime.sentence] if runtime.status is RuntimeStatus.DIFFERENT else []),
            *code_reasons(code),
            *preprocessor_reasons(prepares),
        ),
        unread=(*unread_reasons(old, new), *draft_reasons(old, new), *(() if ungiven is None else (ungiven,))),
    )
    return _with_adapters(_with_runtime(release, runtime), old, new, adapters)


def _with_runtime(release: KvImpact, runtime: RuntimeChange) -> KvImpact:
    """The verdict, where whether the runtime changed is not known: then nothing is valid."""
    if runtime.status is not RuntimeStatus.UNKNOWN or release.status is not KvStatus.VALID:
        return release
    return _impact(KvStatus.UNKNOWN, release.layers, None, (runtime.sentence, *release.reasons))


def _with_adapters(base: KvImpact, old: Fingerprint, new: Fingerprint, adapters: AdapterChanges) -> KvImpact:
    """The verdict on all old KV, given that on what no adapter had a part in."""
    replaced = replaced_adapters(old, new, adapters)
    if base.status is KvStatus.INVALID or not replaced:
        return base
    reasons = (*adapter_reasons(old, new, replaced), base_reason(base.status), *base.reasons)
    found = _impact(KvStatus.INVALID, base.layers, 0, reasons)
    return msgspec.structs.replace(found, adapters=replaced, base=base.status)


def _judge_release(
    old: Fingerprint,
    new: Fingerprint,
    tensors: TensorChanges,
    config: Sequence[ConfigChange],
    files: Sequence[FileChange],
    *,
    certain: Sequence[str],
    unread: Sequence[str],
) -> KvImpact:
    """The verdict, adapters and an unknown runtime aside.

    Args:
        old: the release before.
        new: the one after.
        tensors: that differ; they only explain.
        config: entries that differ; likewise.
        files: beside the configuration that differ; likewise.
        certain: reasons beside the digests for which old KV is invalid in every layer: runtime, code, preprocessor.
        unread: reasons for which equal digests do not prove that it is valid.
    """
    layers = new.rule.cached_layers
    obstacle = _why_not_comparable(old, new)
    is_same = old.digests.kv == new.digests.kv
    stated = () if is_same else (*config_reasons(new, config), *file_reasons(files))
    explained = () if is_same else (*stated, *tensor_reasons(old, new, tensors))
    if certain:
        return _impact(KvStatus.INVALID, layers, 0, (*certain, *(explained if obstacle is None else ())))
    if obstacle is not None:
        return _impact(KvStatus.UNKNOWN, layers, None, (obstacle,))
    if (unsaid := _why_weights_not_comparable(old, new)) is not None:
        if stated and new.rule.reason is None:  # whatever the weights
            return _impact(KvStatus.INVALID, layers, 0, (*stated, f"of the weights nothing is known: {unsaid}"))
        return _impact(KvStatus.UNKNOWN, layers, None, (unsaid,))
    return _judge_same(new, tensors, config, unread) if is_same else _judge_different(old, new, explained, unread)


def _judge_same(
    new: Fingerprint, tensors: TensorChanges, config: Sequence[ConfigChange], unread: Sequence[str]
) -> KvImpact:
    layers, reasons = new.rule.cached_layers, tuple(harmless(tensors, config))
    if unread:
        return _impact(KvStatus.UNKNOWN, layers, None, (*unread, *reasons))
    return _impact(KvStatus.VALID, layers, layers, reasons)


def _judge_different(old: Fingerprint, new: Fingerprint, explained: Sequence[str], unread: Sequence[str]) -> KvImpact:
    layers = new.rule.cached_layers
    if new.rule.reason is not None:
        return _impact(KvStatus.UNKNOWN, layers, None, (new.rule.reason, *explained, *unread))
    if unread and not explained:
        return _impact(KvStatus.UNKNOWN, layers, None, tuple(unread))
    # None where the layers do not say it, as of a rule that only another version of kvrelease knows.
    pairs = zip(old.layers, new.layers, strict=False)
    first = next((index for index, (before, after) in enumerate(pairs) if before != after), None)
    reasons = tuple(explained) or ("the kv digests differ; the artifacts do not say by what",)
    return _impact(KvStatus.INVALID, layers, first, reasons)


def _impact(status: KvStatus, layers: int | None, valid: int | None, reasons: tuple[str, ...]) -> KvImpact:
    """The verdict with the first invalid layer that follows from it."""
    first_invalid = valid if status is KvStatus.INVALID else None
    return KvImpact(
        status=status, layers=layers, valid_layers=valid, first_invalid_layer=first_invalid, reasons=reasons
    )


def _why_not_comparable(old: Fingerprint, new: Fingerprint) -> str | None:
    """Why neither configurations nor digests of the two say anything about each other's KV."""
    before, after = (name_of(side.digests.kv) for side in (old, new))
    obstacles = (
        (
            not is_one_edition(old, new),
            f"the fingerprints are of different algorithms, {before} and {after}: fingerprint the older one again",
        ),
        (
            ADAPTER_RULE in (old.rule.name, new.rule.name),
            "one side is an adapter without its base, and KV is made by both: give base and adapter on both sides",
        ),
        (
            old.format is not new.format,
            f"the old release is {old.format}, the new one {new.format}: a conversion renames tensors and may reorder "
            "or quantise them, so digests of the two say nothing about each other",
        ),
        (
            old.config is None or new.config is None,
            f"{'neither side has a' if old.config is new.config else 'one side has no'} config.json, on which KV "
            "depends too",
        ),
        (
            old.rule.family != new.rule.family,
            f"the releases follow different dependency rules, {old.rule.name} and {new.rule.name}",
        ),
    )
    return next((why for is_one, why in obstacles if is_one), None)


def _why_weights_not_comparable(old: Fingerprint, new: Fingerprint) -> str | None:
    """Why digests of tensors of two comparable releases say nothing about each other."""
    before, after = (name_of(side.digests.kv) for side in (old, new))
    if any(name_of(side.digests.weights) == HEADERS_ALGORITHM for side in (old, new)):
        return "the weights were not read"
    if Mode.FAST in (old.mode, new.mode):
        return "a fast fingerprint may miss a change, so it cannot say that old KV is valid"
    if before.removesuffix(HEAD_SUFFIX) != after.removesuffix(HEAD_SUFFIX):
        return f"the kv digests were made by different algorithms, {before} and {after}: fingerprint both again"
    return None


def is_one_edition(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether both fingerprints are of one making, so that names and entries of the two mean the same."""
    return edition_of(old.digests.kv) == edition_of(new.digests.kv)
