"""The page of a fingerprint."""

import shlex

from kvrelease.release.content import Format
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.report.document import Commands, Document, Facts, Notes, number


def fingerprint_document(found: Fingerprint) -> Document:
    """What a release is."""
    names = found.digests.__struct_fields__
    digests = tuple((name, getattr(found.digests, name) or "none") for name in names)
    facts = Facts(
        pairs=(
            ("kv name", found.release.kv_name or "none"),
            ("source", found.release.source),
            *digests,
            ("tensors", number(found.tensors)),
            ("layers", number(len(found.layers)) if found.layers else "not known to any rule"),
            ("read", f"{found.bytes / 1e6:,.1f} MB in {found.seconds:.2f} s ({found.mode})"),
        )
    )
    warnings = (Notes(title="Warnings", lines=found.warnings),) if found.warnings else ()
    source = shlex.quote(found.release.source)
    engine = "llamacpp" if found.format is Format.GGUF else "vllm"
    following = Commands(
        title="Next", lines=(f"kvrelease diff OLD {source}", f"kvrelease namespace {source} --engine {engine}")
    )
    return Document(title=f"Release {found.release.name}", blocks=(facts, *warnings, following))
