"""The page of a fingerprint."""

import shlex

from kvrelease.release.adapter import AdapterDigest
from kvrelease.release.content import Format
from kvrelease.release.fingerprint import Fingerprint, why_unnamed
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.mode import Mode
from kvrelease.release.sampling import DetectionBound
from kvrelease.report.document import Block, Commands, Document, Facts, Notes, Table, Text, number


def fingerprint_document(found: Fingerprint) -> Document:
    """What a release is; or an adapter, where its base is not known."""
    is_adapter = found.rule.name == ADAPTER_RULE
    is_fast = found.mode is Mode.FAST
    names = found.digests.__struct_fields__
    # Of an adapter alone, the digest of its content stands in the place of the kv digest.
    digests = tuple(
        ("adapter" if is_adapter and name == "kv" else name, getattr(found.digests, name) or "none") for name in names
    )
    layers = () if is_adapter else (("layers", number(len(found.layers)) if found.layers else "not known to any rule"),)
    facts = Facts(
        pairs=(
            ("kv name", found.release.kv_name or ("none: only mode full names a cache" if is_fast else "none")),
            ("source", found.release.source),
            *digests,
            ("tensors", number(found.tensors)),
            *layers,
            ("fast", found.fast or "none"),
            *((("made for", _made_for(found.adapters[0])),) if is_adapter and found.adapters else ()),
            ("read", _what_was_read(found)),
        )
    )
    missed = (bound_table(found.bound),) if found.bound is not None else ()
    warnings = (Notes(title="Warnings", lines=found.warnings),) if found.warnings else ()
    adapters = () if is_adapter else _adapters(found)
    title = f"{'Adapter' if is_adapter else 'Release'} {found.release.name}"
    following = Commands(title="Next", lines=_next(found, shlex.quote(found.release.source)))
    return Document(title=title, blocks=(facts, *adapters, *missed, *warnings, following))


def _next(found: Fingerprint, source: str) -> tuple[str, ...]:
    """The commands that an operator is likely to want."""
    if found.rule.name == ADAPTER_RULE:
        return (f"kvrelease fingerprint BASE --adapter {source}",)
    if found.mode is Mode.FAST:
        return (f"kvrelease fingerprint {source} --mode full",)
    if why_unnamed(found) is not None:  # the warnings say what would give it a kv name
        return (f"kvrelease diff OLD {source}",)
    engine = "llamacpp" if found.format is Format.GGUF else "vllm"
    return (f"kvrelease diff OLD {source}", f"kvrelease namespace {source} --engine {engine}")


def _adapters(found: Fingerprint) -> tuple[Block, ...]:
    """What each adapter makes with the base, and under which name it must not be served again."""
    if not found.adapters:
        return ()
    rows = tuple(
        (one.name, one.kv_name or "none", number(one.tensors), one.source, _made_for(one)) for one in found.adapters
    )
    return (
        Table(title="Adapters", columns=("name", "kv name", "tensors", "source", "made for"), rows=rows),
        Text(
            text="Serve every version of an adapter under a name of its own: engines key its KV by that name, not by "
            "its weights."
        ),
    )


def _made_for(adapter: AdapterDigest) -> str:
    """The base that an adapter's configuration names, with its revision."""
    base, revision = (adapter.uncounted.get(key) for key in ("base_model_name_or_path", "revision"))
    return f"{base}@{revision}" if base and revision else f"{base or 'not said'}"


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
