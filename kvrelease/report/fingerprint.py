"""The page of a fingerprint."""

import shlex

from kvrelease.release.content import Format
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.mode import Mode
from kvrelease.release.sampling import DetectionBound
from kvrelease.report.document import Commands, Document, Facts, Notes, Table, number


def fingerprint_document(found: Fingerprint) -> Document:
    """What a release is."""
    is_fast = found.mode is Mode.FAST
    names = found.digests.__struct_fields__
    digests = tuple((name, getattr(found.digests, name) or "none") for name in names)
    facts = Facts(
        pairs=(
            ("kv name", found.release.kv_name or ("none: only mode full names a cache" if is_fast else "none")),
            ("source", found.release.source),
            *digests,
            ("tensors", number(found.tensors)),
            ("layers", number(len(found.layers)) if found.layers else "not known to any rule"),
            ("fast", found.fast or "none"),
            ("read", _what_was_read(found)),
        )
    )
    missed = (bound_table(found.bound),) if found.bound is not None else ()
    warnings = (Notes(title="Warnings", lines=found.warnings),) if found.warnings else ()
    source = shlex.quote(found.release.source)
    engine = "llamacpp" if found.format is Format.GGUF else "vllm"
    lines = (
        (f"kvrelease fingerprint {source} --mode full",)
        if is_fast
        else (f"kvrelease diff OLD {source}", f"kvrelease namespace {source} --engine {engine}")
    )
    following = Commands(title="Next", lines=lines)
    return Document(title=f"Release {found.release.name}", blocks=(facts, *missed, *warnings, following))


def bound_table(bound: DetectionBound) -> Table:
    """What a fast reading can have missed."""
    rows = tuple(
        (f"{unseen.share * 100:g} %", _chance(unseen.contiguous), _chance(unseen.scattered)) for unseen in bound.unseen
    )
    return Table(
        title=f"A change of one tensor goes unseen with at most this probability ({number(bound.tensors_sampled)} "
        f"tensors sampled, {number(bound.tensors_whole)} read whole)",
        columns=("share changed", "in one piece", "scattered by chance"),
        rows=rows,
    )


def _chance(probability: float) -> str:
    return f"{probability:.4f}" if probability >= 0.0001 or probability == 0 else "under 0.0001"


def _what_was_read(found: Fingerprint) -> str:
    total = f"{found.bytes / 1e6:,.1f} MB"
    if found.bound is not None:
        return f"{found.bound.bytes_read / 1e6:,.1f} of {total} in {found.seconds:.2f} s ({found.mode})"
    remembered = f", {found.remembered_bytes / 1e6:,.1f} MB of it remembered" if found.remembered_bytes else ""
    return f"{total} in {found.seconds:.2f} s ({found.mode}{remembered})"
