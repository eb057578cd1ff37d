"""What an operator does about the old KV. Pure."""

from __future__ import annotations

import shlex

from kvrelease.release.algorithm import EDITION, edition_of
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.fingerprint import Fingerprint
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
    name = f"kvrelease namespace {shlex.quote(found.release.source)} --engine KIND"
    is_unknown = KvStatus.UNKNOWN in (found.kv.status, found.kv.base)
    tells = _what_tells(found, old, new) if is_unknown else None
    return (
        *(() if tells is None else (tells,)),
        "engines and stores key KV by tokens, in every process and under every release alike, and none can be relied "
        f"on to clear it when weights change: bind the new release to a namespace of its own ({name}), so that old "
        "entries are never read",
        "prefer that to a flush: a flush also empties what the old release and other models still serve, and every "
        "prompt of all of them is computed again at once",
        "KV without a namespace of ours, in whatever store, directory or file, counts as another release's: nothing in "
        "it says which weights made it, and equal shapes prove nothing",
    )


def _what_tells(found: Diff, old: Fingerprint, new: Fingerprint) -> str | None:
    """How what is unknown becomes known; None where the reason says it, or nothing could."""
    sides = (old, new)
    partial = [side for side in sides if edition_of(side.digests.kv) != EDITION or side.mode is not Mode.FULL]
    alone = [side for side in sides if side.rule.name == ADAPTER_RULE]
    bare = [side for side in sides if side.config is None]
    if alone:
        adapter = shlex.quote(alone[0].release.source)
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
