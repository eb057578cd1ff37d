"""What an operator does about the old KV. Pure."""

from __future__ import annotations

import shlex

from kvrelease.release.diff_record import Diff, KvStatus


def advice(found: Diff) -> tuple[str, ...]:
    """What to do, the first thing first."""
    new = found.release
    if found.kv.status is KvStatus.VALID:
        kept = f"the kv name stays {new.kv_name}: " if new.kv_name and new.kv_name == found.old.kv_name else ""
        return (
            f"{kept}keep the cache where engine, version and settings stay too; only then is its namespace the same",
        )
    name = f"kvrelease namespace {shlex.quote(new.source)} --engine KIND"
    return (
        "engines and stores key KV by tokens, in every process and under every release alike, and none can be relied "
        f"on to clear it when weights change: bind the new release to a namespace of its own ({name}), so that old "
        "entries are never read",
        "prefer that to a flush: a flush also empties what the old release and other models still serve, and every "
        "prompt of all of them is computed again at once",
        "KV without a namespace of ours, in whatever store, directory or file, counts as another release's: nothing in "
        "it says which weights made it, and equal shapes prove nothing",
    )
