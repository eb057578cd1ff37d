"""Whether two runtimes make the same KV of the same weights: the fields that differ, by name. Pure.

KV is made by weights *and* engine: another engine version, dtype, KV dtype or layout makes other bytes under the same
keys. So old KV is invalid where the runtime differs, whatever the weights.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.release.runtime_spelling import one_spelling

# Every other field has a default, which is meant where none is stated; engine and version have none.
_WITHOUT_DEFAULT = ("engine", "version")


class RuntimeStatus(enum.StrEnum):
    """What comparing two runtimes tells."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"  # a field that only one side states, or that none does and that has no default
    NOT_COMPARED = "not compared"


class StatedRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says about a runtime.

    Attributes:
        source: the file.
        fields: name → value.
        name: the characters of its digest in a namespace; None where nobody declared one, or the file does not say.
    """

    source: str
    fields: dict[str, str]
    name: str | None


class RuntimeField(msgspec.Struct, frozen=True, kw_only=True):
    """One field; None where a side does not state it."""

    field: str
    old: str | None
    new: str | None


class RuntimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """What comparing the runtimes says.

    Attributes:
        status: whether they are the same.
        fields: that differ, or that one side does not state.
        unread: fields that change KV and that neither side states.
        sentence: in words.
        unrecognised: fields that a side states and that we do not know; they are compared all the same.
    """

    status: RuntimeStatus
    fields: tuple[RuntimeField, ...]
    unread: tuple[str, ...]
    sentence: str
    unrecognised: tuple[str, ...] = ()


NOT_COMPARED = RuntimeChange(
    status=RuntimeStatus.NOT_COMPARED,
    fields=(),
    unread=(),
    sentence="the runtime was not compared: under another engine version, dtype or layout old KV is unusable by "
    "default, whatever the weights (--old-runtime, --new-runtime)",
)


def compare_runtimes(
    old: StatedRuntime | None, new: StatedRuntime | None, *, known_fields: tuple[str, ...]
) -> RuntimeChange:
    """What two runtimes have in common.

    Args:
        old: None where no file was given.
        new: likewise.
        known_fields: that change KV's bytes or layout, as far as we know.
    """
    if old is None or new is None:
        return NOT_COMPARED
    unread = tuple(name for name in known_fields if name not in old.fields and name not in new.fields)
    unrecognised = tuple(sorted((old.fields.keys() | new.fields.keys()) - set(known_fields)))
    status, fields, sentence = _compare(old, new)
    if status is RuntimeStatus.SAME and unread:
        sentence += f"; neither states {', '.join(unread)}"
    if unrecognised:
        sentence += f"; kvrelease knows no field {', '.join(unrecognised)}"
    return RuntimeChange(status=status, fields=fields, unread=unread, sentence=sentence, unrecognised=unrecognised)


def _compare(old: StatedRuntime, new: StatedRuntime) -> tuple[RuntimeStatus, tuple[RuntimeField, ...], str]:
    """By the fields; by the names of the digests where a side has nothing else."""
    fields = [
        RuntimeField(field=name, old=old.fields.get(name), new=new.fields.get(name))
        for name in sorted(old.fields.keys() | new.fields.keys())
    ]
    differing = tuple(one for one in fields if _differs(one))
    if differing:
        said = ", ".join(f"{one.field} {one.old} → {one.new}" for one in differing)
        sentence = f"the runtime changed ({said}): the same weights make other KV, or KV in another layout"
        return RuntimeStatus.DIFFERENT, differing, sentence
    silent = dict.fromkeys(side.source for side in (old, new) if not side.fields and side.name is None)
    if silent:
        # Nothing declared is a runtime too, and nobody knows which: its namespace is another one than a declared one's.
        why = f"{_NOT_KNOWN}: {' and '.join(silent)} {'declares' if len(silent) == 1 else 'declare'} none"
        return RuntimeStatus.UNKNOWN, tuple(fields), why
    has_names_alone = not (old.fields and new.fields)
    if has_names_alone and old.name is not None and new.name is not None:
        return _compare_names(old, new)
    one_sided = tuple(one for one in fields if None in (one.old, one.new))
    if one_sided:
        said = ", ".join(one.field for one in one_sided)
        return RuntimeStatus.UNKNOWN, one_sided, f"{_NOT_KNOWN}: only one side states {said}"
    said = ", ".join(old.fields)
    if lacking := _lacking(old.fields):
        why = f"{_NOT_KNOWN}: neither side states {lacking}; what both state is the same ({said})"
        return RuntimeStatus.UNKNOWN, (), why
    return RuntimeStatus.SAME, (), f"the runtime is the same in all that is stated ({said}){_in_two_spellings(fields)}"


_NOT_KNOWN = "whether the runtime changed is not known"


def _compare_names(old: StatedRuntime, new: StatedRuntime) -> tuple[RuntimeStatus, tuple[RuntimeField, ...], str]:
    """By the names of the digests, of which at least one side says no more."""
    if old.name != new.name:
        sentence = f"the runtime changed: its name was {old.name} and is {new.name}, and no file says by which field"
        return RuntimeStatus.DIFFERENT, (), sentence
    declared = old.fields or new.fields
    if not declared:
        why = (
            f"{_NOT_KNOWN}: both namespaces say {old.name}, and neither file says whether "
            f"{', '.join(_WITHOUT_DEFAULT)} are declared in it; give a namespace artifact, or the YAML that declares it"
        )
        return RuntimeStatus.UNKNOWN, (), why
    said = ", ".join(declared)
    if lacking := _lacking(declared):
        return (
            RuntimeStatus.UNKNOWN,
            (),
            f"{_NOT_KNOWN}: its name is {old.name} on both sides ({said}), without {lacking}",
        )
    return RuntimeStatus.SAME, (), f"the runtime is the same: its name is {old.name} on both sides ({said})"


def _differs(one: RuntimeField) -> bool:
    """Whether both sides state the field, and not the same."""
    if one.old is None or one.new is None:
        return False
    return one_spelling(one.field, one.old) != one_spelling(one.field, one.new)


def _lacking(fields: Mapping[str, str]) -> str:
    """Fields that have no default and are not stated, as a list in words; empty where all are."""
    return ", ".join(name for name in _WITHOUT_DEFAULT if name not in fields)


def _in_two_spellings(fields: Sequence[RuntimeField]) -> str:
    """What is written in two ways, which makes two namespaces of one runtime."""
    two = ", ".join(f"{one.field} {one.old}, {one.new}" for one in fields if one.old != one.new)
    return f", though written in two ways ({two}), so that their namespaces differ" if two else ""
