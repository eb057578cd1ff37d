"""Why old KV is valid, invalid or not known: the sentences behind the verdict, the deciding ones first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.printable import listed
from kvrelease.release.comparison import TensorChanges
from kvrelease.release.content import Format
from kvrelease.release.diff_record import ConfigChange, KvStatus
from kvrelease.release.draft_heads import draft_head_of, draft_model
from kvrelease.release.families.family import KeyEffect
from kvrelease.release.file_changes import FileChange
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import Rule, key_effect, tensor_impact
from kvrelease.release.relayout import SAME_WEIGHTS, changed_inside, relaid_phrase, relaid_reasons
from kvrelease.release.side_files import is_known_file

# Reasons explain; past this many groups of tensors, or files, they only repeat.
_GROUPS_SHOWN = 5


def harmless(tensors: TensorChanges, config: Sequence[ConfigChange]) -> list[str]:
    """What changed without touching KV."""
    names = all_names(tensors)
    phrase = relaid_phrase(tensors.relaid, renamed=len(tensors.renamed))
    keys = [change.key for change in config]
    reasons = []
    if names:
        reasons.append(f"{count_of(len(names), 'tensor')} changed, and KV depends on none: {listed(names)}")
    if phrase:
        reasons.append(f"{phrase}, and KV depends on none of them")
    if keys:
        reasons.append(f"{count_of(len(keys), 'configuration key')} changed, and KV depends on none: {listed(keys)}")
    return reasons


def config_reasons(new: Fingerprint, config: Sequence[ConfigChange]) -> list[str]:
    """One sentence for each configuration key that KV depends on, or that nobody knows."""
    reasons = []
    for change in config:
        if change.affects_kv is False:
            continue
        where = "config.json" if new.format is Format.SAFETENSORS else "the metadata"
        changed = f"{where} changed in {change.key!r}"
        if change.affects_kv is None:
            reasons.append(f"{changed}, and no rule tells whether KV depends on it")
            continue
        is_unknown = key_effect(change.key, new.rule) is KeyEffect.UNKNOWN
        why = f"which the rule {new.rule.name} does not know, so it counts" if is_unknown else "on which KV depends"
        reasons.append(f"{changed}, {why}: every layer is invalid")
    return reasons


def file_reasons(files: Sequence[FileChange]) -> list[str]:
    """One sentence for each file beside the configuration; all of them count, whatever the rule."""
    reasons = []
    for one in files[:_GROUPS_SHOWN]:
        why = "on which KV depends" if is_known_file(one.name) else "which no list of ours knows, so it counts"
        reasons.append(f"{one.described}, {why}: every layer is invalid")
    if len(files) > _GROUPS_SHOWN:
        reasons.append(f"and {len(files) - _GROUPS_SHOWN} more files beside config.json changed")
    return reasons


def tensor_reasons(old: Fingerprint, new: Fingerprint, tensors: TensorChanges) -> list[str]:
    """What is known of tensors in another layout, then one sentence per first touched layer, earliest first."""
    inside = [(name, name in one.old) for one in tensors.relaid for name in one.changed]
    candidates = [
        *((name, (old.rule, new.rule)) for name in (*tensors.changed, *_reclassified(old, new))),
        *((name, (new.rule,)) for name in tensors.added),
        *((name, (old.rule,)) for name in tensors.removed),
        *((name, (old.rule if is_old else new.rule,)) for name, is_old in inside),
    ]
    groups: dict[tuple[int, bool, str], list[str]] = {}
    for name, rules in candidates:
        impacts = [tensor_impact(name, rule) for rule in rules]
        touched = [(impact.first_layer, impact.is_known) for impact in impacts if impact.first_layer is not None]
        if touched:
            head = draft_head_of(name, new.config or {}) or draft_head_of(name, old.config or {}) or ""
            groups.setdefault((*min(touched), head), []).append(name)
    reasons = [*_renamed_reason(old, new, tensors), *relaid_reasons(tensors.relaid)]
    reasons += [
        _tensor_reason(layer, group, is_known=is_known, head=head, rule=new.rule)
        for (layer, is_known, head), group in sorted(groups.items())[:_GROUPS_SHOWN]
    ]
    if len(groups) > _GROUPS_SHOWN:
        reasons.append(f"and others that touch only later layers ({len(groups) - _GROUPS_SHOWN} more groups)")
    return reasons


def _renamed_reason(old: Fingerprint, new: Fingerprint, tensors: TensorChanges) -> list[str]:
    """A sentence about tensors under other names, where KV depends on one of them."""
    touching = [
        pair
        for pair in tensors.renamed
        if any(
            tensor_impact(name, side.rule).first_layer is not None for name, side in ((pair.old, old), (pair.new, new))
        )
    ]
    if not touching:
        return []
    rest = f", and {len(touching) - 1} more like it" if len(touching) > 1 else ""
    return [f"renamed, proven equal content: {touching[0].old!r} as {touching[0].new!r}{rest}: {SAME_WEIGHTS}"]


def _tensor_reason(layer: int, group: Sequence[str], *, is_known: bool, head: str, rule: Rule) -> str:
    number = count_of(len(group), "tensor")
    if head:
        return (
            f"{number} of a draft head ({head}) changed, whose KV is made from the model's hidden states and lies "
            f"under the same block hashes, so old KV counts as invalid from layer {layer} on: {listed(sorted(group))}"
        )
    if is_known and layer == rule.layers:
        return (
            f"{number} changed that the last hidden state is made by, and of that the release's draft head makes its "
            f"KV, under the same block hashes: from layer {layer} on, {listed(sorted(group))}"
        )
    why = "" if is_known else f", which the rule {rule.name} does not know, so they count"
    return f"{number} changed that may touch KV from layer {layer} on{why}: {listed(sorted(group))}"


def _reclassified(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Unchanged tensors that count for other layers than before: tied embeddings make an output layer count."""
    return [
        name
        for name, payload in new.tensor_digests.items()
        if old.tensor_digests.get(name) == payload and tensor_impact(name, old.rule) != tensor_impact(name, new.rule)
    ]


def draft_reasons(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Why equal digests do not prove that KV of a release which drafts for another model is valid."""
    kinds = [draft_model(side.config or {}, side.tensor_digests) for side in (old, new)]
    kind = next((kind for kind in kinds if kind is not None), None)
    if kind is None:
        return []
    return [
        f"the release drafts for another model ({kind}): its KV is made from that model's hidden states, so it is "
        "valid only as long as that model is the same too"
    ]


def base_reason(base: KvStatus) -> str:
    """What holds for KV that adapters had no part in, where KV made with some of them is invalid."""
    if base is KvStatus.VALID:
        return "KV of the base alone stays valid in every layer"
    return "whether KV of the base alone stays valid is not known"


def all_names(tensors: TensorChanges) -> list[str]:
    """Every tensor that is known to differ, sorted; one with equal content under another name does not."""
    return sorted([*tensors.added, *tensors.removed, *tensors.changed, *changed_inside(tensors.relaid)])


def count_of(number: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
