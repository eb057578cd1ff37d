"""Whether old KV may be read under the new release: the verdict, which the kv digests decide where they can. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.release.algorithm import HEADERS_ALGORITHM, family_of, name_of
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.diff_record import ConfigChange, KvImpact, KvStatus
from kvrelease.release.families import HEAD_SUFFIX
from kvrelease.release.file_changes import FileChange
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.kv_reasons import config_reasons, file_reasons, harmless, tensor_reasons
from kvrelease.release.mode import Mode


def judge_kv(
    old: Fingerprint,
    new: Fingerprint,
    tensors: TensorChanges,
    config: Sequence[ConfigChange],
    files: Sequence[FileChange] = (),
    *,
    certain: Sequence[str] = (),
    unread: Sequence[str] = (),
) -> KvImpact:
    """The verdict from the kv digests, and from what no digest of the release covers.

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
        return impact_of(KvStatus.INVALID, layers, 0, (*certain, *(explained if obstacle is None else ())))
    if obstacle is not None:
        return impact_of(KvStatus.UNKNOWN, layers, None, (obstacle,))
    if (unsaid := _why_weights_not_comparable(old, new)) is not None:
        if stated and new.rule.reason is None:  # whatever the weights
            return impact_of(KvStatus.INVALID, layers, 0, (*stated, f"of the weights nothing is known: {unsaid}"))
        return impact_of(KvStatus.UNKNOWN, layers, None, (unsaid,))
    return _judge_same(new, tensors, config, unread) if is_same else _judge_different(old, new, explained, unread)


def _judge_same(
    new: Fingerprint, tensors: TensorChanges, config: Sequence[ConfigChange], unread: Sequence[str]
) -> KvImpact:
    layers, reasons = new.rule.cached_layers, tuple(harmless(tensors, config))
    if unread:
        return impact_of(KvStatus.UNKNOWN, layers, None, (*unread, *reasons))
    return impact_of(KvStatus.VALID, layers, layers, reasons)


def _judge_different(old: Fingerprint, new: Fingerprint, explained: Sequence[str], unread: Sequence[str]) -> KvImpact:
    layers = new.rule.cached_layers
    if new.rule.reason is not None:
        return impact_of(KvStatus.UNKNOWN, layers, None, (new.rule.reason, *explained, *unread))
    if unread and not explained:
        return impact_of(KvStatus.UNKNOWN, layers, None, tuple(unread))
    pairs = zip(old.layers, new.layers, strict=False)
    valid = next((index for index, (before, after) in enumerate(pairs) if before != after), None)
    if valid is None:  # one model is the other with more layers: impossible with equal configurations
        valid = 0
    reasons = tuple(explained) or ("the kv digests differ; the artifacts do not say by what",)
    return impact_of(KvStatus.INVALID, layers, valid, reasons)


def impact_of(status: KvStatus, layers: int | None, valid: int | None, reasons: tuple[str, ...]) -> KvImpact:
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
            not is_one_family(old, new),
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


def is_one_family(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether both fingerprints are of one making, so that names and entries of the two mean the same."""
    return family_of(old.digests.kv) == family_of(new.digests.kv)
