"""What an operator does about the old KV. Pure."""

from __future__ import annotations

import shlex

from kvrelease.printable import listed
from kvrelease.release.algorithm import EDITION, edition_of
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.fingerprint import Fingerprint, why_unnamed
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.mode import Mode
from kvrelease.release.runtime_change import RuntimeStatus


def advice(found: Diff, *, old: Fingerprint, new: Fingerprint) -> tuple[str, ...]:
    """What to do, the first thing first: where old KV is unknown, what would make it known.

    Args:
        found: the diff.
        old: the release before.
        new: the one after.
    """
    if found.kv.status is KvStatus.VALID:
        kv_name = found.release.kv_name
        kept = f"the kv name stays {kv_name}: " if kv_name and kv_name == found.old.kv_name else ""
        return (
            f"{kept}keep the cache where engine, version and settings stay too; only then is its namespace the same",
        )
    is_unknown = KvStatus.UNKNOWN in (found.kv.status, found.kv.base)
    tells = _what_tells(found, old, new) if is_unknown else None
    return (
        *(() if tells is None else (tells,)),
        *([_for_adapters(found, new)] if found.kv.adapters else []),
        *([_binding(found, new)] if found.kv.base is not KvStatus.VALID else []),
        "prefer that to a flush: a flush also empties what the old release and other models still serve, and every "
        "prompt of all of them is computed again at once",
        "KV without a namespace of ours, in whatever store, directory or file, counts as another release's: nothing in "
        "it says which weights made it, and equal shapes prove nothing",
    )


def _binding(found: Diff, new: Fingerprint) -> str:
    """How the new release gets a namespace that the old one never had: the command alone may print the old one's."""
    command = f"kvrelease namespace {shlex.quote(found.release.source)} --engine KIND"
    obstacle = why_unnamed(new)
    is_old_name = found.release.kv_name is not None and found.release.kv_name == found.old.kv_name
    if obstacle is not None:
        _, step = obstacle
        how = f"it has no kv name yet: {step}; then {command}"
    elif is_old_name and found.runtime.status in (RuntimeStatus.DIFFERENT, RuntimeStatus.UNKNOWN):
        how = (
            "declare what it is served under as runtime: in kvrelease.yaml first, without which its namespace is the "
            f"old one; then {command}"
        )
    elif is_old_name:
        how = f"{command} --new-epoch; without a new epoch its namespace is the old one"
    else:
        how = command
    return (
        "engines and stores key KV by tokens, in every process and under every release alike, and none can be relied "
        f"on to clear it when weights change: bind the new release to a namespace of its own ({how}), so that old "
        "entries are never read"
    )


def _for_adapters(found: Diff, new: Fingerprint) -> str:
    """What keeps requests with an adapter from the KV of another one that had its name; a base's namespace does not."""
    kv_names = {one.name: one.kv_name for one in new.adapters}
    named = ", ".join(f"{name!r}: {kv_names[name]}" for name in found.kv.adapters if kv_names.get(name) is not None)
    salted = f", or salt the requests with each by its kv name ({named})" if named else ""
    base = "; the base keeps its namespace, and its cache" if found.kv.base is KvStatus.VALID else ""
    return (
        f"serve {listed(found.kv.adapters)} under names that no adapter was served under before{salted}: the "
        f"namespace of the base says nothing of them{base}"
    )


def _what_tells(found: Diff, old: Fingerprint, new: Fingerprint) -> str | None:
    """How what is unknown becomes known; None where the reason says it, or nothing could."""
    sides = (old, new)
    partial = [side for side in sides if edition_of(side.digests.kv) != EDITION or side.mode is not Mode.FULL]
    alone = [side for side in sides if side.rule.name == ADAPTER_RULE]
    bare = [side for side in sides if side.config is None]
    if alone:
        adapter = shlex.quote(alone[0].release.source)
        if len(alone) == 1:
            is_new = alone[0] is new
            base = shlex.quote((old if is_new else new).release.source)
            files = ("BASE.json", "WITH.json")
            first, second = files if is_new else reversed(files)
            return (
                f"save the base alone and with its adapter, and compare those files: kvrelease fingerprint {base} -o "
                f"BASE.json, kvrelease fingerprint {base} --adapter {adapter} -o WITH.json, then kvrelease diff "
                f"{first} {second}"
            )
        return (
            "save base and adapter together on both sides, and compare those files: kvrelease fingerprint BASE "
            f"--adapter {adapter} -o FILE.json"
        )
    if bare:
        names = " and ".join(dict.fromkeys(shlex.quote(side.release.source) for side in bare))
        return f"give the model's directory, with its config.json: {names} is weights alone"
    if partial:
        commands = dict.fromkeys(
            f"kvrelease fingerprint {shlex.quote(one.release.source)} -o FILE.json" for one in partial
        )
        return f"fingerprint it in full, and compare again: {', and '.join(commands)}"
    if found.runtime.status is RuntimeStatus.UNKNOWN:
        stated = ", ".join(one.field for one in found.runtime.fields)
        more = f" and whatever else one side states of its runtime ({stated})" if stated else ""
        return f"state engine, version{more} in both files, and compare again"
    return None
