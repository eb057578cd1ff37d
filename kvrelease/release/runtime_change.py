"""Whether two runtimes make the same KV of the same weights: the fields that differ, by name. Pure.

KV is made by weights *and* engine: another engine version, dtype, KV dtype or layout makes other bytes under the same
keys. So old KV is invalid where the runtime differs, whatever the weights.
"""

from __future__ import annotations

import enum

import msgspec


class RuntimeStatus(enum.StrEnum):
    """What comparing two runtimes tells."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"  # a field that only one side states
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
    """

    status: RuntimeStatus
    fields: tuple[RuntimeField, ...]
    unread: tuple[str, ...]
    sentence: str


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
    silent = next((side for side in (old, new) if not side.fields and side.name is None), None)
    if silent is not None:
        return _not_compared(f"{silent.source} states none")
    unread = tuple(name for name in known_fields if name not in old.fields and name not in new.fields)
    status, fields, sentence = _compare(old, new)
    if status is RuntimeStatus.SAME and unread and (old.fields or new.fields):
        sentence += f"; neither states {', '.join(unread)}"
    return RuntimeChange(status=status, fields=fields, unread=unread, sentence=sentence)


def _not_compared(why: str) -> RuntimeChange:
    sentence = f"the runtime was not compared: {why}; under a new engine version old KV is unusable by default"
    return msgspec.structs.replace(NOT_COMPARED, sentence=sentence)


def _compare(old: StatedRuntime, new: StatedRuntime) -> tuple[RuntimeStatus, tuple[RuntimeField, ...], str]:
    """By the fields; by the names of the digests where a side has nothing else."""
    fields = [
        RuntimeField(field=name, old=old.fields.get(name), new=new.fields.get(name))
        for name in sorted(old.fields.keys() | new.fields.keys())
    ]
    differing = tuple(one for one in fields if None not in (one.old, one.new) and one.old != one.new)
    if differing:
        said = ", ".join(f"{one.field} {one.old} → {one.new}" for one in differing)
        sentence = f"the runtime changed ({said}): the same weights make other KV, or KV in another layout"
        return RuntimeStatus.DIFFERENT, differing, sentence
    if old.name is not None and old.name == new.name:
        return RuntimeStatus.SAME, (), f"the runtime is the same: both namespaces say {old.name}"
    if old.name is not None and new.name is not None and not (old.fields and new.fields):
        sentence = f"the runtime changed: the namespaces say {old.name} and {new.name}, and not by which field"
        return RuntimeStatus.DIFFERENT, (), sentence
    one_sided = tuple(one for one in fields if None in (one.old, one.new))
    if one_sided or not fields:
        said = ", ".join(one.field for one in one_sided) or "its namespace"
        return (
            RuntimeStatus.UNKNOWN,
            one_sided,
            f"whether the runtime changed is not known: only one side states {said}",
        )
    return RuntimeStatus.SAME, (), f"the runtime is the same in all that is stated ({', '.join(old.fields)})"
