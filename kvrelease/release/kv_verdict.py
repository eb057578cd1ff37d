"""Whether old KV may be read under the new release: the verdict, which the kv digests alone decide. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.release.algorithm import family_of, name_of
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.diff_record import ConfigChange, KvImpact, KvStatus
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.kv_reasons import config_reasons, harmless, tensor_reasons, text_notes
from kvrelease.release.mode import Mode


def judge_kv(
    old: Fingerprint,
    new: Fingerprint,
    changed: Sequence[str],
    tensors: TensorChanges,
    config: Sequence[ConfigChange],
) -> KvImpact:
    """The verdict from the kv digests alone; everything else only explains it."""
    layers = new.rule.layers
    notes = text_notes(changed)
    if (why := _why_not_comparable(old, new)) is not None:
        return impact_of(KvStatus.UNKNOWN, layers, None, (why, *notes))
    if old.digests.kv == new.digests.kv:
        return impact_of(KvStatus.VALID, layers, layers, (*harmless(tensors, config), *notes))
    reasons = (*config_reasons(new, config), *tensor_reasons(old, new, tensors))
    if new.rule.reason is not None:
        return impact_of(KvStatus.UNKNOWN, layers, None, (new.rule.reason, *reasons, *notes))
    pairs = zip(old.layers, new.layers, strict=False)
    valid = next((index for index, (before, after) in enumerate(pairs) if before != after), None)
    if valid is None:  # one model is the other with more layers: impossible with equal configurations
        valid = 0
    reasons = reasons or ("the kv digests differ; the artifacts do not say by what",)
    return impact_of(KvStatus.INVALID, layers, valid, (*reasons, *notes))


def impact_of(status: KvStatus, layers: int | None, valid: int | None, reasons: tuple[str, ...]) -> KvImpact:
    """The verdict with the first invalid layer that follows from it."""
    first_invalid = valid if status is KvStatus.INVALID else None
    return KvImpact(
        status=status, layers=layers, valid_layers=valid, first_invalid_layer=first_invalid, reasons=reasons
    )


def _why_not_comparable(old: Fingerprint, new: Fingerprint) -> str | None:
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
            Mode.FAST in (old.mode, new.mode),
            "a fast fingerprint may miss a change, so it cannot say that old KV is valid",
        ),
        (
            old.format is not new.format,
            f"the old release is {old.format}, the new one {new.format}: a conversion renames tensors and may reorder "
            "or quantise them, so digests of the two say nothing about each other",
        ),
        (old.config is None or new.config is None, "one side has no config.json, on which KV depends too"),
        (
            old.rule.name != new.rule.name,
            f"the releases follow different dependency rules, {old.rule.name} and {new.rule.name}",
        ),
        (
            before != after,
            f"the kv digests were made by different algorithms, {before} and {after}: fingerprint both again",
        ),
    )
    return next((why for is_one, why in obstacles if is_one), None)


def is_one_family(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether both fingerprints are of one making, so that names and entries of the two mean the same."""
    return family_of(old.digests.kv) == family_of(new.digests.kv)
