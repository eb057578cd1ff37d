"""What changed between two releases, and whether the old one's KV is still valid under the new one. Pure."""

from __future__ import annotations

import msgspec

from kvrelease.artifacts import Verdict
from kvrelease.release.adapter_diff import adapter_notes, adapter_reasons
from kvrelease.release.canonical import same_value
from kvrelease.release.comparison import (
    Sameness,
    compare_adapters,
    compare_parts,
    compare_tensors,
    parts_that_are,
)
from kvrelease.release.diff_record import ConfigChange, Diff, KvStatus
from kvrelease.release.diff_summary import summarise
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import config_affects_kv
from kvrelease.release.kv_verdict import impact_of, is_one_family, judge_kv


def diff_fingerprints(old: Fingerprint, new: Fingerprint) -> Diff:
    """What changed from `old` to `new`; pure, and complete from saved fingerprints alone."""
    parts = compare_parts(old, new)
    changed = parts_that_are(Sameness.CHANGED, parts)
    unknown = parts_that_are(Sameness.UNKNOWN, parts)
    tensors = compare_tensors(old, new)
    # Entries of two makings may differ in form alone.
    config = _compare_config(old, new) if is_one_family(old, new) else ()
    # Two formats store the tokenizer in two ways; of the text side only templates are one text in both.
    told = changed if old.format is new.format else tuple(name for name in changed if name == "template")
    adapters = compare_adapters(old, new)
    kv = judge_kv(old, new, told, tensors, config)
    if kv.status is KvStatus.VALID and adapters.changed:
        kv = impact_of(KvStatus.INVALID, kv.layers, 0, (*adapter_reasons(old, new, adapters), *kv.reasons))
    kv = msgspec.structs.replace(kv, reasons=(*kv.reasons, *adapter_notes(adapters)))
    return Diff(
        old=old.release,
        release=new.release,
        changed=changed,
        unknown=unknown,
        tensors=tensors,
        kv=kv,
        config=config,
        drift=(),
        summary=summarise(told, unknown, tensors, config, kv, adapters=adapters),
        adapters=adapters,
    )


def diff_verdict(found: Diff, *, part: str) -> Verdict:
    """Whether a part of the release stayed: pass yes, fail no, inconclusive not known.

    Args:
        found: the diff.
        part: `kv` (the old KV is valid), the name of a digest (it did not change), or `any` (none did).
    """
    if part == "kv":
        return {
            KvStatus.VALID: Verdict.PASS,
            KvStatus.INVALID: Verdict.FAIL,
            KvStatus.UNKNOWN: Verdict.INCONCLUSIVE,
        }[found.kv.status]
    if part in found.changed or (part == "any" and found.changed):
        return Verdict.FAIL
    is_unknown = part in found.unknown or (part == "any" and found.unknown)
    return Verdict.INCONCLUSIVE if is_unknown else Verdict.PASS


def _compare_config(old: Fingerprint, new: Fingerprint) -> tuple[ConfigChange, ...]:
    before, after = old.config or {}, new.config or {}
    return tuple(
        ConfigChange(
            key=key,
            old=before.get(key),
            new=after.get(key),
            affects_kv=config_affects_kv(key, old.rule) or config_affects_kv(key, new.rule),
        )
        for key in sorted(before.keys() | after.keys())
        if (key in before) != (key in after) or not same_value(before.get(key), after.get(key))
    )
