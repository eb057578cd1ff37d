"""What adapters that differ between two releases mean for the KV that they made. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvrelease.printable import listed
from kvrelease.release.adapter import AdapterDigest
from kvrelease.release.comparison import AdapterChanges
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.text_changes import compare_values, values_shown

# What an adapter was made for; in no digest, and told where it changed.
_BASE_KEYS = ("base_model_name_or_path", "revision")


def replaced_adapters(old: Fingerprint, new: Fingerprint, changes: AdapterChanges) -> tuple[str, ...]:
    """Names under which another adapter is served than before, so that KV made with it is invalid whatever the base.

    Not those that are others because of their base alone, and none of an adapter without its base.
    """
    if ADAPTER_RULE in (old.rule.name, new.rule.name):
        return ()
    before, after = ({adapter.name: adapter.content for adapter in side.adapters} for side in (old, new))
    return tuple(name for name in changes.changed if before[name] != after[name])


def adapter_reasons(old: Fingerprint, new: Fingerprint, names: Sequence[str]) -> tuple[str, ...]:
    """One sentence for each adapter that is another one under its old name.

    Args:
        old: the release before.
        new: the one after.
        names: of those adapters.
    """
    before, after = ({adapter.name: adapter for adapter in side.adapters} for side in (old, new))
    return tuple(
        f"the adapter {name!r} is another one ({what_changed(before[name], after[name])}): KV made with it under that "
        "name is invalid, and engines key KV by the name: serve it under a new one"
        for name in names
    )


def what_changed(old: AdapterDigest, new: AdapterDigest) -> str:
    """In what an adapter is another one: its weights, its settings, the base that it was made for."""
    if old.content == new.content:
        return "the same adapter on another base"
    settings = compare_values(old.config, new.config)
    what = []
    if old.weights is None or new.weights is None:
        what.append(
            "whether its weights changed a saved fingerprint does not say" if settings else "its weights changed"
        )
    else:
        what.append("its weights changed" if old.weights != new.weights else "its weights are the same")
    if settings:
        what.append(f"its configuration changed in {values_shown(settings)}")
    made_for = compare_values(*({key: side.uncounted.get(key) for key in _BASE_KEYS} for side in (old, new)))
    if made_for:
        what.append(f"it was made for another base: {values_shown(made_for)}")
    return "; ".join(what)


def ungiven_adapters(old: Fingerprint, new: Fingerprint, ungiven: Collection[str]) -> str | None:
    """Why adapters are not compared; None where both sides say theirs, or neither side has any.

    Args:
        old: the release before.
        new: the one after.
        ungiven: `old`, `new`: the sides of which nobody said which adapters they are served with.
    """
    if ADAPTER_RULE in (old.rule.name, new.rule.name):
        return None
    for age, other in (("new", old), ("old", new)):
        if age in ungiven and other.adapters:
            names = listed([one.name for one in other.adapters])
            return (
                f"which adapters the {age} release is served with was not given, and the other one is served with "
                f"{names}, so KV that was made with them was not compared, only KV of the base; give a fingerprint "
                "that was saved with its adapters (kvrelease fingerprint BASE --adapter NAME=DIR -o FILE.json)"
            )
    return None


def adapter_notes(
    old: Fingerprint, new: Fingerprint, changes: AdapterChanges, *, told: Collection[str]
) -> tuple[str, ...]:
    """What adapters that came, went or are there mean for old KV.

    Args:
        old: the release before.
        new: the one after.
        changes: which differ.
        told: names of those that are among the reasons already.
    """
    notes = []
    are_alone = all(side.rule.name == ADAPTER_RULE for side in (old, new))  # then one, whatever the two are called
    before, after = ({adapter.name: adapter for adapter in side.adapters} for side in (old, new))
    for name in changes.changed:
        if name not in told:
            pair = (old.adapters[0], new.adapters[0]) if are_alone else (before[name], after[name])
            notes.append(f"the adapter {name!r} is another one ({what_changed(*pair)})")
    served = [one for one in new.adapters if one.kv_name is not None]
    if served and changes.count:
        notes.append(
            "stores outside the engine may key KV by tokens and model alone, and hand one adapter's KV to "
            f"another: give each a namespace of its own ({', '.join(f'{one.name!r}: {one.kv_name}' for one in served)})"
        )
    if changes.added:
        notes.append(
            f"new adapters: {listed(changes.added)}; if an engine served another one under such a name, old KV "
            "may still lie under it"
        )
    if changes.removed:
        notes.append(f"adapters that are gone: {listed(changes.removed)}")
    return tuple(notes)
