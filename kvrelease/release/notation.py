"""What is written in another way and means the same: not a change, and still worth a word. Pure."""

from __future__ import annotations

from kvrelease.printable import listed
from kvrelease.release.fingerprint import Fingerprint

_NEW_NOTATION = "rope_parameters"


def notation_notes(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Differences in form between two releases."""
    before, after = old.details, new.details
    if before is None or after is None:
        return []
    notes = []
    if _NEW_NOTATION in after.rope_keys and before.rope_keys and _NEW_NOTATION not in before.rope_keys:
        notes.append(
            "config.json now writes its rotary parameters as rope_parameters, as transformers 5 does: it needs "
            "an engine that reads them; one that knows only rope_theta takes its own default, and makes other KV"
        )
    for aliases, others, verb in (
        (after.aliases, before.aliases, "stores"),
        (before.aliases, after.aliases, "leaves out"),
    ):
        names = [name for name in aliases if name not in others]
        if names:
            notes.append(f"the new release {verb} {listed(names)}, an alias of what it is tied to: no change")
    return notes
