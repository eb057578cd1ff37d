"""The page of a namespace."""

import json
import shlex

from kvrelease.artifacts import JsonObject
from kvrelease.binding.namespace import NamespaceReport
from kvrelease.report.document import Block, Commands, Document, Facts, Notes


def namespace_document(found: NamespaceReport) -> Document:
    """The namespace, and how to bind an engine to it."""
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
    parts = (
        ("Environment of the engine", tuple(f"{name}={shlex.quote(value)}" for name, value in settings.env.items())),
        ("Flags of the engine", (shlex.join(settings.flags),) if settings.flags else ()),
        ("Field of every request's body", tuple(_field(settings.body))),
        ("Directories of its own", tuple(f"{name}: …/{value}" for name, value in settings.directories.items())),
    )
    blocks += [Commands(title=title, lines=lines) for title, lines in parts if lines]
    if settings.limits:
        blocks.append(Notes(title="Out of reach", lines=settings.limits))
    if found.warnings:
        blocks.append(Notes(title="Warnings", lines=found.warnings))
    return Document(title=f"Binding {found.release.name} on {found.engine}", blocks=tuple(blocks))


def _field(body: JsonObject) -> list[str]:
    return [f'"{name}": {json.dumps(value)}' for name, value in body.items()]
