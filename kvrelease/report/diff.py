"""The page of a diff."""

from kvrelease.release.comparison import TensorChanges
from kvrelease.release.diff_record import Diff
from kvrelease.report.document import Block, Document, Facts, Notes, Table, Verdict, number, word

# A fine-tune changes hundreds of tensors; the JSON has them all.
SHOWN = 12


def diff_document(found: Diff) -> Document:
    """What changed, and whether the old KV survives."""
    tensors = found.tensors
    kv = found.kv
    blocks: list[Block] = [
        Verdict(word=word(str(kv.status)), reason=found.summary),
        Facts(
            pairs=(
                ("changed digests", ", ".join(found.changed) or "none"),
                *((("not comparable", ", ".join(found.unknown)),) if found.unknown else ()),
                ("layers with valid KV", f"{number(kv.valid_layers)} of {number(kv.layers)}"),
                (
                    "tensors",
                    f"{len(tensors.changed)} changed, {len(tensors.added)} added, {len(tensors.removed)} removed, "
                    f"{len(tensors.renamed)} renamed",
                ),
                *_adapters(found),
                ("old", f"{found.old.source} ({found.old.kv_name or 'no kv name'})"),
                ("new", f"{found.release.source} ({found.release.kv_name or 'no kv name'})"),
            )
        ),
    ]
    if kv.reasons:
        blocks.append(Notes(title="Reasons", lines=kv.reasons))
    if found.config:
        rows = tuple(
            (change.key, str(change.old), str(change.new), "yes" if change.affects_kv else "no")
            for change in found.config
        )
        blocks.append(Table(title="Configuration", columns=("key", "old", "new", "affects KV"), rows=rows))
    if lines := tensor_lines(tensors):
        blocks.append(Notes(title="Tensors", lines=lines))
    return Document(title=f"{found.old.name} → {found.release.name}: is the old KV still valid?", blocks=tuple(blocks))


def tensor_lines(tensors: TensorChanges) -> tuple[str, ...]:
    """One line for each tensor that differs, cut after a dozen."""
    lines = [
        *(f"changed {name}" for name in tensors.changed),
        *(f"added {name}" for name in tensors.added),
        *(f"removed {name}" for name in tensors.removed),
        *(f"renamed {one.old} → {one.new}" for one in tensors.renamed),
    ]
    rest = [f"… and {len(lines) - SHOWN} more (all of them in --format json)"] if len(lines) > SHOWN else []
    return (*lines[:SHOWN], *rest)


def _adapters(found: Diff) -> tuple[tuple[str, str], ...]:
    """A row about adapters, where there are any changes."""
    kinds = (("changed", found.adapters.changed), ("added", found.adapters.added), ("removed", found.adapters.removed))
    text = ", ".join(f"{name} {kind}" for kind, names in kinds for name in names)
    return (("adapters", text),) if text else ()
