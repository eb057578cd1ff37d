"""What adapters that differ between two releases mean for the KV that they made. Pure."""

from __future__ import annotations

from kvrelease.release.canonical import same_value
from kvrelease.release.checkpoint import listed
from kvrelease.release.comparison import AdapterChanges
from kvrelease.release.fingerprint import Fingerprint


def adapter_reasons(old: Fingerprint, new: Fingerprint, changes: AdapterChanges) -> tuple[str, ...]:
    """One sentence for each adapter that is another one under its old name, where the base is the same."""
    before, after = ({adapter.name: adapter for adapter in side.adapters} for side in (old, new))
    reasons = []
    for name in changes.changed:
        one, other = before[name].config, after[name].config
        keys = [key for key in sorted(one.keys() | other.keys()) if not same_value(one.get(key), other.get(key))]
        what = f"its configuration changed in {listed(keys)}" if keys else "its weights changed"
        reasons.append(
            f"the adapter {name!r} is another one ({what}): KV made with it under that name is invalid, and engines "
            "key KV by the name: serve it under a new one"
        )
    return (*reasons, "KV of the base alone stays valid in every layer")


def adapter_notes(changes: AdapterChanges) -> tuple[str, ...]:
    """What adapters that came or went mean for old KV."""
    notes = []
    if changes.added:
        notes.append(
            f"note: new adapters: {listed(changes.added)}; if an engine served another one under such a name, old KV "
            "may still lie under it"
        )
    if changes.removed:
        notes.append(f"note: adapters that are gone: {listed(changes.removed)}")
    return tuple(notes)
