"""The page of a check against the published fingerprint."""

from kvrelease.release.check import ReleaseCheck
from kvrelease.report.diff import SHOWN, tensor_lines
from kvrelease.report.document import Block, Document, Facts, Notes, Verdict, first_lines, word
from kvrelease.report.fingerprint import bound_table


def check_document(found: ReleaseCheck) -> Document:
    """Whether a release is the published one."""
    blocks: list[Block] = [
        Verdict(word=word(str(found.verdict)), reason=found.reason),
        Facts(
            pairs=(
                ("release", found.release.source),
                ("published", f"{found.published.name} ({found.published.kv_name or 'no kv name'})"),
                ("changed digests", ", ".join(found.changed) or "none"),
                ("not comparable", ", ".join(found.unknown) or "none"),
                ("read", f"{found.mode}, in {found.seconds:.2f} s"),
            )
        ),
    ]
    if lines := tensor_lines(found.tensors):
        blocks.append(Notes(title="Tensors", lines=lines))
    if found.files:
        blocks.append(Notes(title="Files", lines=first_lines([one.described for one in found.files], SHOWN)))
    if found.bound is not None:
        blocks.append(bound_table(found.bound))
    if found.warnings:
        blocks.append(Notes(title="Warnings", lines=found.warnings))
    return Document(title=f"{found.release.name}: is it what was published?", blocks=tuple(blocks))
