"""Why old KV is valid, invalid or not known: the sentences behind the verdict, the deciding ones first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.release.checkpoint import listed
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.content import Format
from kvrelease.release.diff_record import ConfigChange
from kvrelease.release.families.family import KeyEffect
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import key_effect, tensor_impact

# Reasons explain; past this many groups of tensors they only repeat.
_GROUPS_SHOWN = 5


def harmless(tensors: TensorChanges, config: Sequence[ConfigChange]) -> list[str]:
    """What changed without touching KV."""
    names = all_names(tensors)
    keys = [change.key for change in config]
    reasons = []
    if names:
        reasons.append(f"{count_of(len(names), 'tensor')} changed, and KV depends on none: {listed(names)}")
    if keys:
        reasons.append(f"{count_of(len(keys), 'configuration key')} changed, and KV depends on none: {listed(keys)}")
    return reasons


def config_reasons(new: Fingerprint, config: Sequence[ConfigChange]) -> list[str]:
    """One sentence for each configuration key that KV depends on, or that nobody knows."""
    reasons = []
    for change in config:
        if not change.affects_kv:
            continue
        is_unknown = new.rule.layers is not None and key_effect(change.key, new.rule) is KeyEffect.UNKNOWN
        why = f"which the rule {new.rule.name} does not know, so it counts" if is_unknown else "on which KV depends"
        where = "config.json" if new.format is Format.SAFETENSORS else "the metadata"
        reasons.append(f"{where} changed in {change.key!r}, {why}: every layer is invalid")
    return reasons


def tensor_reasons(old: Fingerprint, new: Fingerprint, tensors: TensorChanges) -> list[str]:
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
        what = f"{count_of(len(group), 'tensor')} changed that may touch KV from layer {layer} on{why}"
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


def text_notes(changed: Sequence[str]) -> list[str]:
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


def all_names(tensors: TensorChanges) -> list[str]:
    """Every tensor that differs, sorted; a renamed one is `old -> new`."""
    return sorted(
        [*tensors.added, *tensors.removed, *tensors.changed, *(f"{pair.old} -> {pair.new}" for pair in tensors.renamed)]
    )


def count_of(number: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
