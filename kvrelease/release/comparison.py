"""Whether two digests, and the tensors under them, are the same: known only where they were made the same way. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from kvrelease.release.algorithm import name_of
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.mode import Mode
from kvrelease.release.relayout import Relaid, logical_name, propose_relayouts


class Sameness(enum.StrEnum):
    """What comparing two digests tells."""

    SAME = "same"
    CHANGED = "changed"
    UNKNOWN = "unknown"


class Renamed(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor whose content went on under another name."""

    old: str
    new: str


class Compared(enum.StrEnum):
    """How far the tensors of two releases could be compared."""

    CONTENTS = "contents"
    NAMES = "names"  # they were read in different ways: which of them changed is not known
    NOTHING = "nothing"  # of two formats, or a model and an adapter: every tensor is another one


class TensorChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Tensor names, raw and sorted; one that was renamed or laid out anew is neither added nor removed.

    Attributes:
        added: only in the new release.
        removed: only in the old one.
        changed: in both, with other content.
        renamed: with equal content under another name.
        relaid: whose names say that they are others in another layout, and what is known of their content.
        compared: what the lists are made of; without contents, `changed` is empty and says nothing.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    renamed: tuple[Renamed, ...]
    relaid: tuple[Relaid, ...] = ()
    compared: Compared = Compared.CONTENTS


class AdapterChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Names of adapters, sorted; a changed one makes other KV with its base than it did under that name before."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.added) + len(self.removed) + len(self.changed)


def compare_digests(old: str | None, new: str | None) -> Sameness:
    """Whether two digests say the same; unknown where their algorithms differ.

    A part that only one side has is a change.
    """
    if old == new:
        return Sameness.SAME
    if old is not None and new is not None and name_of(old) != name_of(new):
        return Sameness.UNKNOWN
    return Sameness.CHANGED


def parts_that_are(sameness: Sameness, parts: Mapping[str, Sameness]) -> tuple[str, ...]:
    """Names of the parts of which that is known, in their order."""
    return tuple(name for name, found in parts.items() if found is sameness)


def compare_parts(old: Fingerprint, new: Fingerprint) -> dict[str, Sameness]:
    """What comparing each digest of two fingerprints tells, by its name.

    Where one side was only sampled, so are the weights of the other: samples that differ prove a change, equal ones
    prove nothing. The release digest covers the others, so it tells no more than they do.
    """
    names = old.digests.__struct_fields__
    parts = {name: compare_digests(getattr(old.digests, name), getattr(new.digests, name)) for name in names}
    if Mode.FAST in (old.mode, new.mode):
        samples = compare_samples(old, new)
        parts["weights"] = samples if samples is Sameness.CHANGED else Sameness.UNKNOWN
        if parts["kv"] is Sameness.SAME:
            parts["kv"] = Sameness.UNKNOWN
    covered = [part for name, part in parts.items() if name not in ("release", "kv")]
    if Sameness.CHANGED in covered or compare_adapters(old, new).count:
        parts["release"] = Sameness.CHANGED
    elif Sameness.UNKNOWN in covered:
        parts["release"] = Sameness.UNKNOWN
    return parts


def compare_samples(old: Fingerprint, new: Fingerprint) -> Sameness:
    """Whether the samples of all tensors are the same; unknown where a side has no fast digest."""
    if old.fast is None or new.fast is None:
        return Sameness.UNKNOWN
    return compare_digests(old.fast, new.fast)


def compare_adapters(old: Fingerprint, new: Fingerprint) -> AdapterChanges:
    """The adapters by the names under which they are served; two adapters alone are one, whatever they are called.

    Where the bases were digested in different ways, only adapters that differ by themselves are known to be others.
    """
    alone = all(side.rule.name == ADAPTER_RULE for side in (old, new))
    before, after = (
        {new.release.name if alone else adapter.name: adapter for adapter in side.adapters} for side in (old, new)
    )

    def is_changed(name: str) -> bool:
        sameness = compare_digests(before[name].digest, after[name].digest)
        if sameness is Sameness.UNKNOWN:
            sameness = compare_digests(before[name].content, after[name].content)
        return sameness is Sameness.CHANGED

    return AdapterChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(name for name in before.keys() & after.keys() if is_changed(name))),
    )


def are_of_one_kind(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether both sides are models of one format, or both are adapters.

    A conversion renames every tensor, and an adapter has other tensors than its base, other settings and no text side.
    """
    are_adapters = [side.rule.name == ADAPTER_RULE for side in (old, new)]
    return old.format is new.format and are_adapters[0] == are_adapters[1]


def compare_tensors(old: Fingerprint, new: Fingerprint) -> TensorChanges:
    """Which tensors differ; in names alone where the two sides were read in different ways, none of two kinds."""
    if not are_of_one_kind(old, new):  # names say nothing either
        return TensorChanges(added=(), removed=(), changed=(), renamed=(), compared=Compared.NOTHING)
    before, after = old.tensor_digests, new.tensor_digests
    if compare_digests(old.digests.weights, new.digests.weights) is Sameness.UNKNOWN:
        return TensorChanges(
            added=tuple(sorted(after.keys() - before.keys())),
            removed=tuple(sorted(before.keys() - after.keys())),
            changed=(),
            renamed=(),
            compared=Compared.NAMES,
        )
    gone: dict[str, list[str]] = {}
    for name in sorted(before.keys() - after.keys(), reverse=True):
        gone.setdefault(before[name], []).append(name)
    added, renamed = [], []
    for name in sorted(after.keys() - before.keys()):
        if sources := gone.get(after[name]):
            renamed.append(Renamed(old=sources.pop(), new=name))
        else:
            added.append(name)
    changes = TensorChanges(
        added=tuple(added),
        removed=tuple(sorted(name for names in gone.values() for name in names)),
        changed=tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name])),
        renamed=tuple(renamed),
    )
    return _with_relayouts(changes)


def _with_relayouts(changes: TensorChanges) -> TensorChanges:
    """The same, with tensors told apart that their names say to be laid out anew.

    Equal content under a name that means another tensor (zero biases are all equal) is a renaming only where that
    name is not wanted for a layout.
    """
    loose = [pair for pair in changes.renamed if logical_name(pair.old) != logical_name(pair.new)]
    removed = {*changes.removed, *(pair.old for pair in loose)}
    added = {*changes.added, *(pair.new for pair in loose)}
    relaid = propose_relayouts(removed, added)
    used = {name for one in relaid for name in (*one.old, *one.new)}
    kept = tuple(pair for pair in changes.renamed if pair not in loose or used.isdisjoint((pair.old, pair.new)))
    return TensorChanges(
        added=tuple(sorted(added - used - {pair.new for pair in kept})),
        removed=tuple(sorted(removed - used - {pair.old for pair in kept})),
        changed=changes.changed,
        renamed=kept,
        relaid=relaid,
    )
