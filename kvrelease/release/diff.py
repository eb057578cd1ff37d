"""What changed between two releases, and whether the old one's KV is still valid under the new one."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import Artifact, ReleaseRef, Verdict
from kvrelease.release.adapter_diff import adapter_notes, adapter_reasons
from kvrelease.release.algorithm import family_of, name_of
from kvrelease.release.checkpoint import listed
from kvrelease.release.comparison import (
    AdapterChanges,
    Sameness,
    TensorChanges,
    compare_adapters,
    compare_parts,
    compare_tensors,
    parts_that_are,
)
from kvrelease.release.content import Format
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE, config_affects_kv, tensor_impact
from kvrelease.release.mode import Mode
from kvrelease.release.model_config import KeyEffect, key_effect, same_value

# Reasons explain; past this many groups of tensors they only repeat.
_GROUPS_SHOWN = 5


class KvStatus(enum.StrEnum):
    """Whether KV of the old release may be read under the new one."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


class ConfigChange(msgspec.Struct, frozen=True, kw_only=True):
    """One canonical configuration key; None where a side does not have it."""

    key: str
    old: object
    new: object
    affects_kv: bool


class KvImpact(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the old KV.

    Attributes:
        status: valid for every layer, invalid, or not known. This decides; the layers explain it.
        layers: of the new model; None where its rule knows no layers.
        valid_layers: how many layers, from the first on, keep valid KV; None where not known.
        first_invalid_layer: None where none is invalid, or it is not known.
        reasons: sentences, the deciding ones first.
    """

    status: KvStatus
    layers: int | None
    valid_layers: int | None
    first_invalid_layer: int | None
    reasons: tuple[str, ...]


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How far one tensor moved."""

    tensor: str
    relative: float


class Diff(Artifact, frozen=True, kw_only=True, tag="kvrelease/diff"):
    """What changed between two releases.

    Attributes:
        old: the release before.
        release: the new one.
        changed: names of the digests that differ.
        unknown: names of the digests of which it is not known, because they were made in different ways.
        tensors: which tensors differ.
        kv: what it means for the old KV.
        config: which canonical configuration keys differ.
        drift: how far tensors moved; empty where it was not computed.
        summary: one sentence for humans.
        adapters: which adapters differ in what they make with their base.
    """

    old: ReleaseRef
    release: ReleaseRef
    changed: tuple[str, ...]
    tensors: TensorChanges
    kv: KvImpact
    config: tuple[ConfigChange, ...]
    drift: tuple[Drift, ...]
    summary: str
    unknown: tuple[str, ...] = ()
    adapters: AdapterChanges = AdapterChanges()


def diff_fingerprints(old: Fingerprint, new: Fingerprint) -> Diff:
    """What changed from `old` to `new`; pure, and complete from saved fingerprints alone."""
    parts = compare_parts(old, new)
    changed = parts_that_are(Sameness.CHANGED, parts)
    unknown = parts_that_are(Sameness.UNKNOWN, parts)
    tensors = compare_tensors(old, new)
    # Entries of two makings may differ in form alone.
    config = _compare_config(old, new) if _is_one_family(old, new) else ()
    # Two formats store the tokenizer in two ways; of the text side only templates are one text in both.
    told = changed if old.format is new.format else tuple(name for name in changed if name == "template")
    adapters = compare_adapters(old, new)
    kv = _judge(old, new, told, tensors, config)
    if kv.status is KvStatus.VALID and adapters.changed:
        kv = _impact(KvStatus.INVALID, kv.layers, 0, (*adapter_reasons(old, new, adapters), *kv.reasons))
    kv = msgspec.structs.replace(kv, reasons=(*kv.reasons, *adapter_notes(adapters)))
    return Diff(
        old=old.release,
        release=new.release,
        changed=changed,
        unknown=unknown,
        tensors=tensors,
        kv=kv,
        config=config,
        drift=(),
        summary=_summary(told, unknown, tensors, config, kv, adapters=adapters),
        adapters=adapters,
    )


def diff_verdict(found: Diff, *, part: str) -> Verdict:
    """Whether a part of the release stayed: pass yes, fail no, inconclusive not known.

    Args:
        found: the diff.
        part: `kv` (the old KV is valid), the name of a digest (it did not change), or `any` (none did).
    """
    if part == "kv":
        return {
            KvStatus.VALID: Verdict.PASS,
            KvStatus.INVALID: Verdict.FAIL,
            KvStatus.UNKNOWN: Verdict.INCONCLUSIVE,
        }[found.kv.status]
    if part in found.changed or (part == "any" and found.changed):
        return Verdict.FAIL
    is_unknown = part in found.unknown or (part == "any" and found.unknown)
    return Verdict.INCONCLUSIVE if is_unknown else Verdict.PASS


def _compare_config(old: Fingerprint, new: Fingerprint) -> tuple[ConfigChange, ...]:
    before, after = old.config or {}, new.config or {}
    return tuple(
        ConfigChange(
            key=key,
            old=before.get(key),
            new=after.get(key),
            affects_kv=config_affects_kv(key, old.rule) or config_affects_kv(key, new.rule),
        )
        for key in sorted(before.keys() | after.keys())
        if (key in before) != (key in after) or not same_value(before.get(key), after.get(key))
    )


def _judge(
    old: Fingerprint,
    new: Fingerprint,
    changed: Sequence[str],
    tensors: TensorChanges,
    config: Sequence[ConfigChange],
) -> KvImpact:
    """The verdict from the kv digests alone; everything else only explains it."""
    layers = new.rule.layers
    notes = _notes(changed)
    if (why := _why_not_comparable(old, new)) is not None:
        return _impact(KvStatus.UNKNOWN, layers, None, (why, *notes))
    if old.digests.kv == new.digests.kv:
        return _impact(KvStatus.VALID, layers, layers, (*_harmless(tensors, config), *notes))
    reasons = (*_config_reasons(new, config), *_tensor_reasons(old, new, tensors))
    if new.rule.reason is not None:
        return _impact(KvStatus.UNKNOWN, layers, None, (new.rule.reason, *reasons, *notes))
    pairs = zip(old.layers, new.layers, strict=False)
    valid = next((index for index, (before, after) in enumerate(pairs) if before != after), None)
    if valid is None:  # one model is the other with more layers: impossible with equal configurations
        valid = 0
    reasons = reasons or ("the kv digests differ; the artifacts do not say by what",)
    return _impact(KvStatus.INVALID, layers, valid, (*reasons, *notes))


def _impact(status: KvStatus, layers: int | None, valid: int | None, reasons: tuple[str, ...]) -> KvImpact:
    first_invalid = valid if status is KvStatus.INVALID else None
    return KvImpact(
        status=status, layers=layers, valid_layers=valid, first_invalid_layer=first_invalid, reasons=reasons
    )


def _why_not_comparable(old: Fingerprint, new: Fingerprint) -> str | None:
    before, after = (name_of(side.digests.kv) for side in (old, new))
    obstacles = (
        (
            not _is_one_family(old, new),
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


def _is_one_family(old: Fingerprint, new: Fingerprint) -> bool:
    return family_of(old.digests.kv) == family_of(new.digests.kv)


def _harmless(tensors: TensorChanges, config: Sequence[ConfigChange]) -> list[str]:
    names = _all_names(tensors)
    keys = [change.key for change in config]
    reasons = []
    if names:
        reasons.append(f"{_count(len(names), 'tensor')} changed, and KV depends on none: {listed(names)}")
    if keys:
        reasons.append(f"{_count(len(keys), 'configuration key')} changed, and KV depends on none: {listed(keys)}")
    return reasons


def _config_reasons(new: Fingerprint, config: Sequence[ConfigChange]) -> list[str]:
    reasons = []
    for change in config:
        if not change.affects_kv:
            continue
        is_unknown = new.rule.layers is not None and key_effect(change.key) is KeyEffect.UNKNOWN
        why = f"which the rule {new.rule.name} does not know, so it counts" if is_unknown else "on which KV depends"
        where = "config.json" if new.format is Format.SAFETENSORS else "the metadata"
        reasons.append(f"{where} changed in {change.key!r}, {why}: every layer is invalid")
    return reasons


def _tensor_reasons(old: Fingerprint, new: Fingerprint, tensors: TensorChanges) -> list[str]:
    """One sentence per first touched layer, earliest first."""
    candidates = [
        *((name, (old.rule, new.rule)) for name in (*tensors.changed, *_reclassified(old, new))),
        *((name, (new.rule,)) for name in (*tensors.added, *(pair.new for pair in tensors.renamed))),
        *((name, (old.rule,)) for name in (*tensors.removed, *(pair.old for pair in tensors.renamed))),
    ]
    groups: dict[tuple[int, bool], list[str]] = {}
    for name, rules in candidates:
        impacts = [tensor_impact(name, rule) for rule in rules]
        touched = [(impact.first_layer, impact.is_known) for impact in impacts if impact.first_layer is not None]
        if touched:
            groups.setdefault(min(touched), []).append(name)
    reasons = []
    for (layer, is_known), group in sorted(groups.items())[:_GROUPS_SHOWN]:
        why = "" if is_known else f", which the rule {new.rule.name} does not know, so they count"
        what = f"{_count(len(group), 'tensor')} changed that may touch KV from layer {layer} on{why}"
        reasons.append(f"{what}: {listed(sorted(group))}")
    if len(groups) > _GROUPS_SHOWN:
        reasons.append(f"and others that touch only later layers ({len(groups) - _GROUPS_SHOWN} more groups)")
    return reasons


def _reclassified(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Unchanged tensors that count for other layers than before: tied embeddings make an output layer count."""
    return [
        name
        for name, payload in new.tensor_digests.items()
        if old.tensor_digests.get(name) == payload and tensor_impact(name, old.rule) != tensor_impact(name, new.rule)
    ]


def _notes(changed: Sequence[str]) -> list[str]:
    """Changes that leave KV alone and still change what users get."""
    notes = []
    if "tokenizer" in changed:
        notes.append(
            "note: the tokenizer changed: KV belongs to token ids, but the same text may now be other ids and miss old "
            "entries"
        )
    if "template" in changed:
        notes.append(
            "note: the chat template changed: the same messages become another prompt, so they may miss old entries"
        )
    if "generation" in changed:
        notes.append("note: the generation defaults changed: answers may differ although KV does not")
    return notes


def _summary(
    changed: Sequence[str],
    unknown: Sequence[str],
    tensors: TensorChanges,
    config: Sequence[ConfigChange],
    kv: KvImpact,
    *,
    adapters: AdapterChanges,
) -> str:
    what = []
    if names := _all_names(tensors):
        what.append(_count(len(names), "tensor"))
    elif "weights" in changed:
        what.append("the weights")
    if config:
        what.append(_count(len(config), "configuration key"))
    words = {"tokenizer": "the tokenizer", "template": "the chat template", "generation": "the generation defaults"}
    what += [word for name, word in words.items() if name in changed]
    if adapters.count:
        what.append(_count(adapters.count, "adapter"))
    unchanged = "no change was seen" if unknown else "nothing that counts changed"
    changes = f"{', '.join(what)} changed" if what else unchanged
    match kv.status:
        case KvStatus.VALID:
            return f"Old KV stays valid in every layer: {changes}."
        case KvStatus.INVALID if "kv" not in changed:
            return f"Old KV is invalid for the adapters {listed(adapters.changed)}, and valid without them: {changes}."
        case KvStatus.INVALID:
            kept = f" (the first {_count(kv.valid_layers, 'layer')} would still agree)" if kv.valid_layers else ""
            return f"Old KV is invalid from layer {kv.first_invalid_layer} on{kept}: {changes}."
        case KvStatus.UNKNOWN:
            return f"Whether old KV is valid is unknown, so treat it as invalid: {kv.reasons[0]}; {changes}."


def _all_names(tensors: TensorChanges) -> list[str]:
    return sorted(
        [*tensors.added, *tensors.removed, *tensors.changed, *(f"{pair.old} -> {pair.new}" for pair in tensors.renamed)]
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
