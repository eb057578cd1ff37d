"""The page of a diff."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelease.printable import first_of, listed
from kvrelease.release.comparison import Compared, TensorChanges
from kvrelease.release.diff_record import Diff, KvImpact, KvStatus
from kvrelease.release.file_changes import FileChange, FileEdit
from kvrelease.release.relayout import Relaid
from kvrelease.release.runtime_change import RuntimeStatus
from kvrelease.release.text_changes import value_shown
from kvrelease.release.tokenizer_change import ProbeChange, TokenizerChange
from kvrelease.report.document import (
    Block,
    Cell,
    Commands,
    Document,
    Facts,
    Notes,
    Table,
    Verdict,
    first_lines,
    first_rows,
    number,
    word,
)
from kvrelease.report.drift import drift_blocks

# Of tensors, files and settings: a fine-tune changes hundreds.
SHOWN = 12
_WHOLE = {
    FileEdit.ADDED: ("absent", "present"),
    FileEdit.REMOVED: ("present", "absent"),
    FileEdit.CHANGED: ("present", "other content"),
}
_AFFECTS = {True: "yes", False: "no", None: "unknown"}


def diff_document(found: Diff) -> Document:
    """What changed, and whether the old KV survives."""
    kv = found.kv
    blocks: list[Block] = [Verdict(word=word(str(kv.status)), reason=found.summary), Facts(pairs=_facts(found))]
    if kv.reasons:
        blocks.append(Notes(title="Reasons", lines=kv.reasons))
    if kv.notes:
        blocks.append(Notes(title="Notes", lines=kv.notes))
    if found.config:
        rows = tuple(
            (change.key, _value(change.old), _value(change.new), _AFFECTS[change.affects_kv]) for change in found.config
        )
        blocks.append(Table(title="Configuration", columns=("key", "old", "new", "affects KV"), rows=rows))
    blocks += _files(found.files)
    blocks += _runtime(found)
    if found.tokenizer is not None:
        blocks += _tokenizer(found.tokenizer)
    blocks += [
        Commands(title=f"Chat template {change.name!r}", lines=change.excerpt)
        for change in found.templates
        if change.excerpt
    ]
    if found.generation:
        defaults = tuple((one.key, _value(one.old), _value(one.new)) for one in found.generation)
        blocks.append(Table(title="Generation defaults", columns=("key", "old", "new"), rows=defaults))
    if lines := tensor_lines(found.tensors):
        blocks.append(Notes(title="Tensors", lines=lines))
    blocks += drift_blocks(found)
    if found.left_out:
        blocks.append(Notes(title="Left out", lines=found.left_out))
    if found.advice:
        blocks.append(Notes(title="What to do", lines=found.advice))
    return Document(title=f"{found.old.name} → {found.release.name}: is the old KV still valid?", blocks=tuple(blocks))


def tensor_lines(tensors: TensorChanges) -> tuple[str, ...]:
    """One line for each tensor that differs, cut after a dozen."""
    lines = [
        *(f"changed {name}" for name in tensors.changed),
        *(f"added {name}" for name in tensors.added),
        *(f"removed {name}" for name in tensors.removed),
        *(f"renamed {one.old} → {one.new}" for one in tensors.renamed),
        *(_relaid(one) for one in tensors.relaid),
    ]
    return first_lines(lines, SHOWN)


def _relaid(one: Relaid) -> str:
    """One line about tensors in another layout."""
    inside = f" ({len(one.changed)} changed in it)" if one.changed and len(one.old) + len(one.new) > 2 else ""
    return f"re-laid-out, {one.status}: {first_of(one.old)} → {first_of(one.new)}{inside}"


def _facts(found: Diff) -> tuple[tuple[str, Cell], ...]:
    kv = found.kv
    return (
        ("changed digests", ", ".join(found.changed) or "none"),
        *((("not comparable", ", ".join(found.unknown)),) if found.unknown else ()),
        *_layers(kv),
        ("tensors", _tensors(found)),
        *_adapters(found),
        ("runtime", found.runtime.sentence.removeprefix("the runtime ").removeprefix("was ")),
        ("old", f"{found.old.source} ({found.old.kv_name or 'no kv name'})"),
        ("new", f"{found.release.source} ({found.release.kv_name or 'no kv name'})"),
    )


def _layers(kv: KvImpact) -> tuple[tuple[str, str], ...]:
    """Layers that keep valid KV; where adapters were replaced, with them and without."""
    row = "layers with valid KV", f"{number(kv.valid_layers)} of {number(kv.layers)}"
    if not kv.adapters:
        return (row,)
    base = kv.layers if kv.base is KvStatus.VALID else None
    with_them, of = row
    return (
        (f"{with_them}, with {listed(kv.adapters)}", of),
        (f"{with_them}, without", f"{number(base)} of {number(kv.layers)}"),
    )


def _tensors(found: Diff) -> str:
    """How many tensors differ, as far as they could be compared."""
    tensors = found.tensors
    names = f"{len(tensors.added)} added, {len(tensors.removed)} removed"
    match tensors.compared:
        case Compared.NOTHING:
            return "not compared"
        case Compared.NAMES:
            return f"which of them changed is not known: contents not compared; by their names, {names}"
        case Compared.CONTENTS:
            relaid = sum(len(one.old) for one in tensors.relaid)
            more = f", {relaid} re-laid-out" if relaid else ""
            rest = "; contents not compared" if "weights" in found.unknown else ""
            return f"{len(tensors.changed)} changed, {names}, {len(tensors.renamed)} renamed{more}{rest}"


def _adapters(found: Diff) -> tuple[tuple[str, str], ...]:
    """A row about adapters, where there are any changes."""
    kinds = (("changed", found.adapters.changed), ("added", found.adapters.added), ("removed", found.adapters.removed))
    text = ", ".join(f"{name} {kind}" for kind, names in kinds for name in names)
    return (("adapters", text),) if text else ()


def _files(found: Sequence[FileChange]) -> list[Block]:
    """What changed in the files beside the configuration."""
    rows = []
    for one in found:
        rows += [(one.name, value.key, *value_shown(value)) for value in one.values]
        if not one.values:
            before, after = _WHOLE[one.edit]
            rows.append((one.name, "the whole file", before, after))
    if not rows:
        return []
    table = Table(title="Files beside config.json", columns=("file", "what", "old", "new"), rows=tuple(rows))
    return [first_rows(table, SHOWN)]


def _runtime(found: Diff) -> list[Block]:
    """The fields of the runtime that differ, or that one side does not state."""
    if found.runtime.status is RuntimeStatus.NOT_COMPARED or not found.runtime.fields:
        return []
    rows = tuple((one.field, one.old or "not stated", one.new or "not stated") for one in found.runtime.fields)
    return [Table(title="Runtime", columns=("field", "old", "new"), rows=rows)]


def _tokenizer(found: TokenizerChange) -> list[Block]:
    """The parts of the tokenizer, with a few tokens of each kind."""
    blocks: list[Block] = []
    facts: list[tuple[str, Cell]] = []
    if (parts := _parts(found)) is not None:
        facts.append(("parts of the tokenizer", parts))
    if found.probe is not None:
        facts.append(("a fixed text becomes", _probe(found.probe)))
    if facts:
        blocks.append(Facts(pairs=tuple(facts)))
    if found.vocabulary is not None:
        rows = tuple((one.token, _id(one.old), _id(one.new)) for one in found.vocabulary.samples)
        blocks.append(Table(title="Tokens (a few of each kind)", columns=("token", "old id", "new id"), rows=rows))
    if found.values:
        rows = tuple((one.key, _value(one.old), _value(one.new)) for one in found.values)
        table = Table(title="Settings of the tokenizer", columns=("setting", "old", "new"), rows=rows)
        blocks.append(first_rows(table, SHOWN))
    if found.not_read:
        blocks.append(Notes(title="Not read of the tokenizer", lines=found.not_read))
    return blocks


def _parts(found: TokenizerChange) -> str | None:
    """Which parts changed, as far as both sides say; None where a side says none of its parts."""
    if found.lacks is not None:
        known = f"{', '.join(found.parts)}; what else " if found.parts else ""
        return f"{known}{'not known' if not known else 'is not known'}: {found.lacks}"
    if found.parts is None:
        return None
    return ", ".join(found.parts) or "the same: the files differ in form alone"


def _probe(found: ProbeChange) -> str:
    if found.is_equal:
        return f"the same {found.old} token ids"
    before, after = (", ".join(str(one) for one in ids) or "nothing" for ids in (found.old_ids, found.new_ids))
    place = (found.first_difference or 0) + 1
    by = f"; made by {found.libraries[0]} and {found.libraries[1]}" if found.libraries else ""
    return f"other ids ({found.old} → {found.new}); from number {place} on: {before} → {after}{by}"


def _id(number_: int | None) -> str:
    return "none" if number_ is None else str(number_)


def _value(value: object) -> str:
    return "none" if value is None else str(value)
