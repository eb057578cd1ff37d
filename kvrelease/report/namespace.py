"""The page of a namespace."""

import json
import shlex
from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.binding.bound import BoundCheck
from kvrelease.binding.namespace import NamespaceReport
from kvrelease.report.document import Block, Commands, Document, Facts, Notes, Table, Verdict, word


def namespace_document(found: NamespaceReport) -> Document:
    """The namespace, and how to bind an engine to it; where one was asked, whether it is."""
    runtime = ", ".join(f"{name}={value}" for name, value in found.runtime.fields.items())
    settings = found.settings
    blocks: list[Block] = [
        Facts(
            pairs=(
                ("namespace", found.namespace),
                ("kv name", found.kv_name),
                ("runtime", f"{found.runtime.name} ({runtime or 'nothing declared'})"),
                ("not declared", ", ".join(found.runtime.unread) or "nothing"),
                ("epoch", f"{found.epoch}{' (new)' if found.is_new else ''}"),
            )
        )
    ]
    if found.verdict is not None:
        blocks.insert(0, Verdict(word=word(found.verdict), reason=found.reason or ""))
    if found.checked is not None:
        blocks.append(_asked(found.checked))
    parts = (
        ("Environment of the engine", tuple(f"{name}={shlex.quote(value)}" for name, value in settings.env.items())),
        ("Flags of the engine", (shlex.join(settings.flags),) if settings.flags else ()),
        ("Field of every request's body", _fields(settings.body)),
        ("Directory of its own, for whichever of these stores is in use", _by_value(settings.directories)),
        ("Prefix of its own, likewise", _by_value(settings.prefixes)),
        ("Beside the engine", _by_value(settings.beside)),
    )
    blocks += [Commands(title=title, lines=lines) for title, lines in parts if lines]
    if settings.limits:
        blocks.append(Notes(title="Out of reach", lines=settings.limits))
    if found.warnings:
        blocks.append(Notes(title="Warnings", lines=found.warnings))
    return Document(title=f"Binding {found.release.name} on {found.engine}", blocks=tuple(blocks))


def _asked(check: BoundCheck) -> Table:
    return Table(
        title=f"Asked: {check.engine} {check.version or '(version not told)'} at {check.url}",
        columns=("setting", "is so", "found"),
        rows=tuple((finding.id, word(finding.answer), finding.detail) for finding in check.findings),
    )


def _fields(body: JsonObject) -> tuple[str, ...]:
    return tuple(f'"{name}": {json.dumps(value)}' for name, value in body.items())


def _by_value(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Each value, and below it the settings that it goes into: several stores have one directory."""
    lines: list[str] = []
    for value in dict.fromkeys(settings.values()):
        lines += [value, *(f"  {name}" for name, other in settings.items() if other == value)]
    return tuple(lines)
