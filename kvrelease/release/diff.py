"""What changed between two releases, and whether the old one's KV is still valid under the new one. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from kvrelease.artifacts import Verdict
from kvrelease.release.adapter_diff import adapter_notes, ungiven_adapters
from kvrelease.release.comparison import (
    AdapterChanges,
    Sameness,
    are_of_one_kind,
    compare_adapters,
    compare_tensors,
    parts_that_are,
)
from kvrelease.release.config_change import compare_config
from kvrelease.release.diff_advice import advice
from kvrelease.release.diff_record import Diff, KvStatus
from kvrelease.release.diff_summary import summarise
from kvrelease.release.drift_figures import DriftReport
from kvrelease.release.extra_files import changed_extra, compare_extra, extra_notes
from kvrelease.release.file_changes import changed_code, changed_files, compare_releases
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.kv_verdict import is_one_edition, judge_kv
from kvrelease.release.notation import notation_notes
from kvrelease.release.relayout import Relaid
from kvrelease.release.runtime_change import NOT_COMPARED, RuntimeChange, RuntimeStatus
from kvrelease.release.text_diff import Texts, compare_text


def diff_fingerprints(
    old: Fingerprint,
    new: Fingerprint,
    *,
    texts: Texts | None = None,
    runtime: RuntimeChange = NOT_COMPARED,
    relaid: tuple[Relaid, ...] | None = None,
    ungiven: Collection[str] = (),
) -> Diff:
    """What changed from `old` to `new`; pure, and complete from saved fingerprints alone.

    Args:
        old: the release before.
        new: the one after.
        texts: what the text side of both consists of; None where a side was saved: then parts are told, no contents.
        runtime: what comparing the runtimes said.
        ungiven: `old`, `new`: the sides of which nobody said which adapters they are served with.
        relaid: what reading proved of tensors that were laid out anew; None where none was read for that.
    """
    parts = compare_releases(old, new) | {"extra": compare_extra(old, new)}
    unsaid = ungiven_adapters(old, new, ungiven)
    if unsaid is not None:
        parts["adapters"] = Sameness.UNKNOWN
        if not any(found is Sameness.CHANGED for name, found in parts.items() if name not in _BESIDE):
            parts["release"] = Sameness.UNKNOWN
    is_one_kind = are_of_one_kind(old, new)
    one_alone = ADAPTER_RULE in (old.rule.name, new.rule.name) and not is_one_kind
    if one_alone:
        parts["adapters"] = Sameness.UNKNOWN
    if not is_one_kind:
        # Two formats store the tokenizer in two ways; of the text side only templates are one text in both. An adapter
        # has none of its own.
        names = parts if old.format is new.format else _OF_ONE_FORMAT
        parts |= {name: Sameness.UNKNOWN for name in names if parts[name] is Sameness.CHANGED}
        if parts["template"] is not Sameness.CHANGED and parts["release"] is Sameness.CHANGED:
            parts["release"] = Sameness.UNKNOWN
    tensors = compare_tensors(old, new)
    if relaid is not None:
        tensors = msgspec.structs.replace(tensors, relaid=relaid)
    # Entries of two makings may differ in form alone.
    config = compare_config(old, new) if is_one_edition(old, new) and is_one_kind else ()
    if config and parts["config"] is Sameness.UNKNOWN:
        # Digests of two rules say nothing about each other; entries do.
        parts |= {"config": Sameness.CHANGED, "release": Sameness.CHANGED}
    changed = parts_that_are(Sameness.CHANGED, parts)
    text = compare_text(old, new, changed, texts)
    code, files = ((), ()) if one_alone else (changed_code(old, new), changed_files(old, new))
    adapters = AdapterChanges() if one_alone or unsaid is not None else compare_adapters(old, new)
    kv = judge_kv(
        old,
        new,
        tensors=tensors,
        config=config,
        files=files,
        code=code,
        adapters=adapters,
        ungiven=unsaid,
        runtime=runtime,
    )
    notes = (
        *text.notes,
        *extra_notes(old, new),
        *notation_notes(old, new),
        *adapter_notes(old, new, adapters, told=kv.adapters),
    )
    found = Diff(
        old=old.release,
        release=new.release,
        changed=changed,
        unknown=parts_that_are(Sameness.UNKNOWN, parts),
        tensors=tensors,
        kv=msgspec.structs.replace(kv, notes=notes),
        config=config,
        drift=(),
        summary="",
        adapters=adapters,
        tokenizer=text.tokenizer,
        templates=text.templates,
        generation=text.generation,
        code=code,
        files=files,
        extra=changed_extra(old, new),
        runtime=runtime,
    )
    return msgspec.structs.replace(found, summary=summarise(found), advice=advice(found, old=old, new=new))


def with_drift(found: Diff, measured: DriftReport) -> Diff:
    """A diff that also says how far tensors moved."""
    return msgspec.structs.replace(
        found, drift=measured.tensors, drift_layers=measured.layers, drift_notes=measured.notes
    )


def needs_weights(part: str) -> bool:
    """Whether a verdict on that part asks what the weights hold, so that they are worth a download."""
    return part in ("weights", "any")


def diff_verdict(found: Diff, *, part: str) -> Verdict:
    """Whether a part of the release stayed: pass yes, fail no, inconclusive not known.

    Args:
        found: the diff.
        part: `kv` (the old KV is valid), `runtime` or `adapters`, the name of a digest (it did not change), `code`,
            `preprocessor` or `extra`, or `any` (old KV is valid, and none of all these changed; a runtime that was not
            compared is none).
    """
    if part == "kv":
        return _OF_KV[found.kv.status]
    runtime = found.runtime.status
    changed = {*found.changed, *(["adapters"] if found.adapters.count else [])}
    changed |= {"runtime"} if runtime is RuntimeStatus.DIFFERENT else set()
    unknown = {*found.unknown, *(["runtime"] if runtime is RuntimeStatus.UNKNOWN else [])}
    # Equal digests do not answer for KV of a draft model, an adapter alone, or weights without their configuration.
    changed |= {"kv"} if found.kv.status is KvStatus.INVALID else set()
    unknown |= {"kv"} if found.kv.status is KvStatus.UNKNOWN else set()
    if part in changed or (part == "any" and changed):
        return Verdict.FAIL
    is_unknown = part in unknown or (part == "any" and unknown)
    is_unknown = is_unknown or (part == "runtime" and runtime is RuntimeStatus.NOT_COMPARED)
    return Verdict.INCONCLUSIVE if is_unknown else Verdict.PASS


# What two formats write in two ways, so that digests of the two say nothing about each other.
_OF_ONE_FORMAT = ("weights", "kv", "config", "code", "preprocessor", "tokenizer", "generation")
# What the digest of the release does not cover, itself included.
_BESIDE = ("release", "kv", "extra")
_OF_KV = {
    KvStatus.VALID: Verdict.PASS,
    KvStatus.INVALID: Verdict.FAIL,
    KvStatus.UNKNOWN: Verdict.INCONCLUSIVE,
}
