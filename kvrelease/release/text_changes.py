"""What changed in the text side, in records and in words: tokenizer, chat templates, generation defaults. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value
from kvrelease.release.details import Details, TemplatePart

# Longer templates are told apart by their digests alone: comparing lines takes time that grows with their square.
_MAX_LINES = 2000
_EXCERPT_LINES = 16
_EXCERPT_CHARS = 120
_KEYS_SHOWN = 5
_VALUE_CHARS = 40


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """One setting; None where a side does not have it."""

    key: str
    old: object
    new: object


class TemplateChange(msgspec.Struct, frozen=True, kw_only=True):
    """One chat template that differs.

    Attributes:
        name: of it; the one without a name is `default`.
        old_lines: None where the old release does not have it.
        new_lines: None where the new one does not.
        added_lines: None where the texts could not be compared, as of saved fingerprints.
        removed_lines: likewise.
        excerpt: the first lines of a unified diff, cut; empty where the texts could not be compared.
    """

    name: str
    old_lines: int | None
    new_lines: int | None
    added_lines: int | None = None
    removed_lines: int | None = None
    excerpt: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """In a few words."""
        if self.old_lines is None:
            return f"{self.name!r} is new ({self.new_lines} lines)"
        if self.new_lines is None:
            return f"{self.name!r} is gone"
        if self.added_lines is None:
            return f"{self.name!r} changed ({self.old_lines} → {self.new_lines} lines)"
        return f"{self.name!r} changed (+{self.added_lines} −{self.removed_lines} of {self.new_lines} lines)"


def compare_values(old: Mapping[str, object] | None, new: Mapping[str, object] | None) -> tuple[ValueChange, ...]:
    """Which settings differ, sorted by key."""
    before, after = old or {}, new or {}
    return tuple(
        ValueChange(key=key, old=before.get(key), new=after.get(key))
        for key in sorted(before.keys() | after.keys())
        if (key in before) != (key in after) or not same_value(before.get(key), after.get(key))
    )


def compare_nested(old: JsonObject, new: JsonObject, *, inside: str = "") -> tuple[ValueChange, ...]:
    """Likewise, with settings inside others by their path, such as `size.height`."""
    changes: list[ValueChange] = []
    for one in compare_values(old, new):
        key = f"{inside}{one.key}"
        if isinstance(one.old, dict) and isinstance(one.new, dict):
            changes += compare_nested(one.old, one.new, inside=f"{key}.")
        else:
            changes.append(ValueChange(key=key, old=one.old, new=one.new))
    return tuple(changes)


def values_shown(changes: Sequence[ValueChange]) -> str:
    """`temperature 0.6 → 0.7, top_k none → 20`, cut after a handful."""
    shown = []
    for one in changes[:_KEYS_SHOWN]:
        old, new = value_shown(one)
        shown.append(f"{_cut(one.key, 0)} {old} → {new}")
    rest = len(changes) - len(shown)
    return ", ".join([*shown, *([f"{rest} more"] if rest else [])])


def value_shown(change: ValueChange) -> tuple[str, str]:
    """Both values as texts; long ones are cut to where they differ."""
    old, new = ("none" if value is None else str(value) for value in (change.old, change.new))
    if max(len(old), len(new)) <= _VALUE_CHARS:
        return old, new
    same = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(0, same - _VALUE_CHARS // 3)
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int) -> str:
    end = start + _VALUE_CHARS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def compare_templates(
    old: Mapping[str, TemplatePart],
    new: Mapping[str, TemplatePart],
    texts: tuple[Mapping[str, str], Mapping[str, str]] | None,
) -> tuple[TemplateChange, ...]:
    """Which templates differ, and by which lines where both texts are at hand.

    Args:
        old: name → template.
        new: likewise.
        texts: name → text of the old and the new one; None where a side was saved.
    """
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is not None and after is not None and before.digest == after.digest:
            continue
        change = TemplateChange(
            name=name,
            old_lines=None if before is None else before.lines,
            new_lines=None if after is None else after.lines,
        )
        if texts is not None and name in texts[0] and name in texts[1]:
            change = _with_lines(change, texts[0][name], texts[1][name])
        changes.append(change)
    return tuple(changes)


def shadowed_notes(old: Details, new: Details) -> list[str]:
    """What templates that nobody but some engines read mean."""
    notes = []
    for side, details in (("old", old), ("new", new)):
        if details.shadowed:
            notes.append(
                f"the {side} release has two chat templates that differ: the .jinja file counts here, as for "
                "transformers and vLLM; engines that read only tokenizer_config.json render other prompts"
            )
    changed = [
        name
        for name in old.shadowed.keys() & new.shadowed.keys()
        if old.shadowed[name].digest != new.shadowed[name].digest
    ]
    if changed and old.templates == new.templates:
        notes.append("of the two, only the template in tokenizer_config.json changed, which the .jinja file overrides")
    return notes


def _with_lines(change: TemplateChange, old: str, new: str) -> TemplateChange:
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > _MAX_LINES:
        return change
    lines = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    added = sum(1 for line in lines if line.startswith("+"))
    removed = sum(1 for line in lines if line.startswith("-"))
    shown = _windows(lines)[:_EXCERPT_LINES]
    if len(lines) > _EXCERPT_LINES:
        shown.append(f"… and {len(lines) - _EXCERPT_LINES} more lines")
    return msgspec.structs.replace(change, added_lines=added, removed_lines=removed, excerpt=tuple(shown))


def _windows(lines: Sequence[str]) -> list[str]:
    """The lines of a diff, long ones cut to where the first difference is: many templates are a single line."""
    cut, starts = [], {}
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("-") and following.startswith("+"):
            first = next(
                (place for place, (a, b) in enumerate(zip(line[1:], following[1:], strict=False)) if a != b),
                min(len(line), len(following)) - 1,
            )
            starts[number] = starts[number + 1] = max(0, first - _EXCERPT_CHARS // 3)
        cut.append(_window(line, starts.get(number, 0)))
    return cut


def _window(line: str, start: int) -> str:
    body = line[1:]
    if len(body) <= _EXCERPT_CHARS:
        return line
    end = start + _EXCERPT_CHARS
    return f"{line[:1]}{'…' if start else ''}{body[start:end]}{'…' if end < len(body) else ''}"
