"""The page of a record."""

from kvrelease.report.document import Block, Document, Facts, Notes, Table, first_rows, number
from kvrelease.verify.record import Record

SHOWN = 10


def record_document(found: Record) -> Document:
    """What was observed."""
    rows = tuple(
        (
            one.id,
            one.prefix,
            number(one.leg.prompt_tokens),
            number(one.leg.cached_tokens),
            one.leg.observation.text.strip().replace("\n", " ")[:60],
        )
        for one in found.observations
    )
    blocks: list[Block] = [
        Facts(
            pairs=(
                ("namespace", found.namespace),
                ("key space", found.key_space or "unsalted"),
                ("engine", f"{found.engine.kind} {found.engine.version or '?'} at {found.engine.url}"),
                ("observations", number(len(found.observations))),
                ("foreign tokens", number(found.foreign_tokens)),
            )
        ),
        first_rows(
            Table(
                title="Observations",
                columns=("prompt", "prefix", "tokens", "cached", "answer begins"),
                rows=rows,
            ),
            SHOWN,
        ),
    ]
    notes = []
    if found.interrupted:
        notes.append("interrupted: prompts that are not listed in the artifact were not observed")
    notes += [fault.shown for fault in found.faults]
    if found.foreign_tokens:
        notes.append("hits that this release did not compute: a baseline of what users got, but no golden record")
    if notes:
        blocks.append(Notes(title="Notes", lines=tuple(notes)))
    return Document(title=f"Record of {found.release.name}", blocks=tuple(blocks))
