"""Which entries of two configurations differ, in one form of both. Pure."""

from __future__ import annotations

from kvrelease.artifacts import JsonObject
from kvrelease.release.canonical import same_value
from kvrelease.release.diff_record import ConfigChange
from kvrelease.release.file_changes import split_config
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ALL_RULE, Rule, config_affects_kv, knows_keys
from kvrelease.release.model_config import canonical_config


def compare_config(old: Fingerprint, new: Fingerprint) -> tuple[ConfigChange, ...]:
    """The entries that differ; not those that only the table of one side's model type fills in.

    Args:
        old: the release before.
        new: the one after, of the same format and edition of the algorithms.
    """
    (before, _), (after, _) = split_config(old), split_config(new)
    filled: set[str] = set()
    if old.rule.family != new.rule.family:
        # Under `all.1` entries are as they are stated; under a table's rule unified, with what an engine fills in.
        before, after = (
            canonical_config(entries).entries if side.rule.name == ALL_RULE else entries
            for side, entries in ((old, before), (new, after))
        )
        filled = _filled_in(before) ^ _filled_in(after)
    return tuple(
        ConfigChange(
            key=key,
            old=before.get(key),
            new=after.get(key),
            affects_kv=_affects_kv(key, old.rule, new.rule),
        )
        for key in sorted(before.keys() | after.keys())
        if ((key in before) != (key in after) and key not in filled)
        or (key in before and key in after and not same_value(before.get(key), after.get(key)))
    )


def _affects_kv(key: str, *rules: Rule) -> bool | None:
    """Whether a change of the key makes KV another one, by either rule; None where a side follows none."""
    if not all(knows_keys(rule) for rule in rules):
        return None
    return any(config_affects_kv(key, rule) for rule in rules)


def _filled_in(entries: JsonObject) -> set[str]:
    """Keys that are there whether the file states them or not: the table of the model type gives them that value."""
    stated = {key: {name: value for name, value in entries.items() if name != key} for key in entries}
    return {
        key
        for key, rest in stated.items()
        if key in (again := canonical_config(rest).entries) and same_value(again[key], entries[key])
    }
