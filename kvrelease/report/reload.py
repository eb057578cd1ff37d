"""The page of a reload in place."""

from __future__ import annotations

from kvrelease.binding.reloading.plan import Ending, Outcome
from kvrelease.binding.reloading.result import ReloadReport, ReplicaReload
from kvrelease.report.document import Block, Document, Facts, Notes, Table, Text, Tone, Verdict, Word, number, word

_ENDINGS = {
    Ending.NEW: Word(text="new release", tone=Tone.GOOD),
    Ending.OLD: Word(text="old release", tone=Tone.UNSURE),
    Ending.CLOSED: Word(text="nobody: closed", tone=Tone.BAD),
    Ending.UNKNOWN: Word(text="not known", tone=Tone.BAD),
}
_TONES = {Outcome.DONE: Tone.GOOD, Outcome.UNPROVEN: Tone.UNSURE}


def reload_document(found: ReloadReport) -> Document:
    """What serves now, and how each replica got there."""
    blocks: list[Block] = []
    if found.verdict is None:
        blocks.append(Text(text=found.reason))
    else:
        blocks.append(Verdict(word=word(str(found.verdict)), reason=found.reason))
    blocks += [
        Facts(pairs=(("release", found.release.name), ("namespace", found.namespace))),
        Table(
            title="Replicas",
            columns=("replica", "namespace before", "gate before", "serves now", "held for", "waited"),
            rows=tuple(_row(one) for one in found.replicas),
        ),
    ]
    blocks += [_steps(one) for one in found.replicas if one.steps]
    faults = dict.fromkeys(fault.shown for fault in found.faults)
    notes = [*faults, *(f"{url}: left alone" for url in found.not_reached)]
    if found.interrupted:
        notes.append("interrupted: no further step and no further replica was begun")
    if notes:
        blocks.append(Notes(title="Notes", lines=tuple(notes)))
    advice = tuple(f"{one.url}: {one.next_step}" for one in found.replicas if one.next_step)
    if advice:
        blocks.append(Notes(title="What to do now", lines=advice))
    return Document(title=f"Reloading {found.release.name} in place", blocks=tuple(blocks))


def _row(one: ReplicaReload) -> tuple[str | Word, ...]:
    now = "untouched" if one.ending is None else _ENDINGS[one.ending]
    return (one.url, one.old_namespace, one.gate, now, number(one.hold_s, digits=1, unit=" s"), number(one.held))


def _steps(one: ReplicaReload) -> Table:
    return Table(
        title=f"Steps at {one.url}",
        columns=("step", "seconds", "outcome", "found"),
        rows=tuple(
            (
                str(taken.step),
                number(taken.seconds, digits=2),
                Word(text=str(taken.outcome), tone=_TONES.get(taken.outcome, Tone.BAD)),
                taken.detail,
            )
            for taken in one.steps
        ),
    )
