"""One name for each of several that a model type reads alike. Pure, and frozen with the rules that use it.

Source: transformers 5.24.0, configuration_utils.py (`attribute_map`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value


def rename_keys(
    entries: JsonObject, warnings: list[str], names: Mapping[str, str], *, is_null_absent: bool = False
) -> None:
    """One name for each of several, in place.

    Args:
        entries: of `config.json`, absent keys not filled in yet.
        warnings: takes contradictions; keys that contradict each other stay, and count.
        names: other name → the one that the library writes.
        is_null_absent: a key that is null, under either name, says nothing. A rule keeps what it was published with.
    """
    for other, name in names.items():
        if other not in entries:
            continue
        if is_null_absent and entries[other] is None:
            del entries[other]
            continue
        says_nothing = entries.get(name) is None if is_null_absent else name not in entries
        if says_nothing or same_value(entries[name], entries[other]):
            entries[name] = entries.pop(other)
        else:
            warnings.append(
                f"config.json says {name} {entries[name]!r} and {other} {entries[other]!r}, which are one thing; "
                "engines differ"
            )
