"""In which part a tokenizer changed, and whether a fixed text still becomes the same token ids. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from kvrelease.release.details import MERGES, VOCABULARY, Probe, TokenizerParts
from kvrelease.release.text_changes import ValueChange, compare_values
from kvrelease.release.tokenizer_parts import ADDED, FAST_TOKENIZER, Anatomy

_SAMPLES = 5
_FIRST = (VOCABULARY, MERGES, ADDED)
_VALUE_CHARS = 120
_TOKEN_CHARS = 80


class TokenSample(msgspec.Struct, frozen=True, kw_only=True):
    """A token whose id is another one; None where a side does not have it."""

    token: str
    old: int | None
    new: int | None


class VocabularyChange(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens differ, and a few of each kind."""

    added: int
    removed: int
    moved: int
    samples: tuple[TokenSample, ...]


class MergesChange(msgspec.Struct, frozen=True, kw_only=True):
    """How many merges differ; with none added and none removed, their order does."""

    added: int
    removed: int


class ProbeChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a fixed text becomes.

    Attributes:
        is_equal: the ids are the same.
        old: number of ids.
        new: likewise.
        first_difference: place of the first id that differs, from 0; None where none does.
        old_ids: a few, from there on.
        new_ids: likewise.
        libraries: that made them, where they are two versions.
    """

    is_equal: bool
    old: int
    new: int
    first_difference: int | None
    old_ids: tuple[int, ...]
    new_ids: tuple[int, ...]
    libraries: tuple[str, ...] = ()


class TokenizerChange(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a tokenizer that changed.

    Attributes:
        parts: names of those that are known to differ; None where a side does not say its parts, or not all of them and
            none is known to differ.
        vocabulary: None where it did not change, or where its tokens are not at hand.
        merges: likewise.
        values: small settings that differ: `part.key`, or the whole part.
        counts: part → items before and after, of the parts that differ; None where a side has no such part.
        probe: None where a side has none.
        not_read: what is compared as a whole only, and why.
        sentence: in words.
        lacks: which side does not say its parts although the other one does, and why; None where both do.
    """

    parts: tuple[str, ...] | None
    vocabulary: VocabularyChange | None
    merges: MergesChange | None
    values: tuple[ValueChange, ...]
    counts: dict[str, tuple[int | None, int | None]]
    probe: ProbeChange | None
    not_read: tuple[str, ...]
    sentence: str
    lacks: str | None = None


def compare_tokenizers(
    old: TokenizerParts | None, new: TokenizerParts | None, anatomies: tuple[Anatomy, Anatomy] | None
) -> TokenizerChange:
    """What changed between two tokenizers whose digests differ.

    Args:
        old: None where the fingerprint does not say.
        new: likewise.
        anatomies: of both, where both can be read.
    """
    if old is None or new is None or old.algorithm != new.algorithm:
        return _only("the tokenizer changed; a saved or fast fingerprint does not say in which part")
    names = sorted(
        old.parts.keys() | new.parts.keys(),
        key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name),
    )
    said = [name for name in names if old.says(name) and new.says(name)]
    parts = tuple(name for name in said if old.parts.get(name) != new.parts.get(name))
    lacks = _lacks(old, new) if len(said) < len(names) else None
    found = TokenizerChange(
        parts=None if lacks is not None and not parts else parts,
        vocabulary=None if anatomies is None else _compare_vocabularies(*anatomies),
        merges=None if anatomies is None else _compare_merges(*anatomies),
        values=() if anatomies is None else _compare_small(parts, *anatomies),
        counts={
            name: (old.counts.get(name), new.counts.get(name)) for name in (VOCABULARY, MERGES, ADDED) if name in parts
        },
        probe=_compare_probes(old.probe, new.probe),
        not_read=tuple(dict.fromkeys((*old.not_read, *new.not_read))),
        sentence="",
        lacks=lacks,
    )
    return msgspec.structs.replace(found, sentence=_sentence(found))


def tokenizer_on_one_side(*, is_new: bool) -> TokenizerChange:
    """One release has a tokenizer, the other one has none."""
    return _only("the new release brings a tokenizer, the old one had none" if is_new else "the tokenizer is gone")


def _only(sentence: str) -> TokenizerChange:
    return TokenizerChange(
        parts=None,
        vocabulary=None,
        merges=None,
        values=(),
        counts={},
        probe=None,
        not_read=(),
        sentence=sentence,
    )


def _compare_vocabularies(old: Anatomy, new: Anatomy) -> VocabularyChange | None:
    if old.vocabulary is None or new.vocabulary is None or old.vocabulary == new.vocabulary:
        return None
    before, after = old.vocabulary, new.vocabulary
    added = sorted(after.keys() - before.keys(), key=lambda token: after[token])
    removed = sorted(before.keys() - after.keys(), key=lambda token: before[token])
    moved = sorted(
        (token for token in before.keys() & after.keys() if before[token] != after[token]),
        key=lambda token: before[token],
    )
    samples = [
        TokenSample(token=token[:_TOKEN_CHARS], old=before.get(token), new=after.get(token))
        for kind in (added, removed, moved)
        for token in kind[:_SAMPLES]
    ]
    return VocabularyChange(added=len(added), removed=len(removed), moved=len(moved), samples=tuple(samples))


def _compare_merges(old: Anatomy, new: Anatomy) -> MergesChange | None:
    if old.merges is None or new.merges is None or old.merges == new.merges:
        return None
    before, after = set(old.merges), set(new.merges)
    return MergesChange(added=len(after - before), removed=len(before - after))


def _compare_small(parts: Sequence[str], old: Anatomy, new: Anatomy) -> tuple[ValueChange, ...]:
    """Settings by key, and other small parts as a whole, shortened."""
    changes: list[ValueChange] = []
    for part in parts:
        before, after = old.values.get(part), new.values.get(part)
        if part in (VOCABULARY, MERGES) or (before is None and after is None):
            continue
        if isinstance(before, dict) and isinstance(after, dict) and "type" not in before:
            changes += [
                ValueChange(key=f"{part}: {one.key}", old=_short(one.old), new=_short(one.new))
                for one in compare_values(before, after)
            ]
        elif part == ADDED and isinstance(before, list) and isinstance(after, list):
            changes += _compare_added(before, after)
        else:
            changes.append(ValueChange(key=part, old=_short(before), new=_short(after)))
    return tuple(changes)


def _compare_added(old: list[object], new: list[object]) -> list[ValueChange]:
    """Added tokens by their text."""
    before, after = ({str(item.get("content")): item for item in side if isinstance(item, dict)} for side in (old, new))
    changes = []
    for one in compare_values(before, after):
        if isinstance(one.old, dict) and isinstance(one.new, dict):
            inner = compare_values(one.old, one.new)
            changes += [ValueChange(key=f"{ADDED}: {one.key}: {x.key}", old=x.old, new=x.new) for x in inner]
        else:
            changes.append(ValueChange(key=f"{ADDED}: {one.key}", old=_short(one.old), new=_short(one.new)))
    return changes


def _short(value: object) -> object:
    """A value as it is where it is short, else its JSON, cut."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _VALUE_CHARS:
        return value
    return f"{text[:_VALUE_CHARS]}…"


def _compare_probes(old: Probe | None, new: Probe | None) -> ProbeChange | None:
    if old is None or new is None or old.text != new.text:
        return None
    pairs = enumerate(zip(old.ids, new.ids, strict=False))
    first = next((place for place, (before, after) in pairs if before != after), None)
    if first is None and len(old.ids) != len(new.ids):
        first = min(len(old.ids), len(new.ids))
    shown = slice(0, 0) if first is None else slice(first, first + _SAMPLES)
    return ProbeChange(
        is_equal=old.ids == new.ids,
        old=len(old.ids),
        new=len(new.ids),
        first_difference=first,
        old_ids=old.ids[shown],
        new_ids=new.ids[shown],
        libraries=(old.library, new.library) if old.library != new.library else (),
    )


def _lacks(old: TokenizerParts, new: TokenizerParts) -> str | None:
    """Which side does not say what the other one does, and why."""
    says_vocabulary = [side.says(VOCABULARY) for side in (old, new)]
    if all(says_vocabulary):
        age = "old" if len(old.parts) < len(new.parts) else "new"
        return f"the {age} release has no {FAST_TOKENIZER}, and leaves its further steps to an engine's code"
    age, side = ("new", new) if says_vocabulary[0] else ("old", old)
    if side.damage is not None:
        return f"the {age} release's {side.damage}"
    if FAST_TOKENIZER in side.parts:
        return f"the {age} release's {FAST_TOKENIZER} is larger than is taken apart"
    others = sorted(name for name in side.parts if not name.endswith((".json", ".py")))
    beside = f", but {', '.join(others)}, which is not read" if others else ", and no other vocabulary that is read"
    return f"the {age} release has no {FAST_TOKENIZER}{beside}"


def _sentence(found: TokenizerChange) -> str:
    if found.lacks is not None:
        parts = ", ".join(_part(name, found) for name in found.parts or ())
        what = f"the tokenizer changed{f' in {parts}' if parts else ''}: {found.lacks}, so what else changed in it is "
        what += "not known"
    elif not found.parts:
        what = "the tokenizer's files changed, in form only: every part that is read is the same"
    else:
        what = f"the tokenizer changed in {', '.join(_part(name, found) for name in found.parts)}"
    return f"{what}; {_probe_words(found)}"


def _part(name: str, found: TokenizerChange) -> str:
    if name == VOCABULARY and found.vocabulary is not None:
        one = found.vocabulary
        kinds = ((one.added, "added"), (one.removed, "removed"), (one.moved, "at another id"))
        return f"its {name} ({', '.join(f'{number} {kind}' for number, kind in kinds if number)})"
    if name == MERGES and found.merges is not None:
        if not (found.merges.added or found.merges.removed):
            return f"its {name} (their order)"
        return f"its {name} ({found.merges.added} added, {found.merges.removed} removed)"
    if name in found.counts:
        before, after = found.counts[name]
        shown = ["none" if count is None else str(count) for count in (before, after)]
        return f"its {name} ({' → '.join(shown)})" if before != after else f"its {name}"
    return f"its {name}"


def _probe_words(found: TokenizerChange) -> str:
    probe = found.probe
    if probe is None:
        return "what a fixed text becomes was not compared"
    if probe.is_equal:
        return f"a fixed text still becomes the same {probe.old} token ids"
    first = (probe.first_difference or 0) + 1
    return f"a fixed text becomes other token ids, from number {first} on ({probe.old} → {probe.new} ids)"
