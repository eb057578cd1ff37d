"""Whether a release is still the one that was published beside it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvrelease.artifacts import Artifact, ReleaseRef, Verdict
from kvrelease.printable import listed
from kvrelease.release.auto_map import unread_tokenizer
from kvrelease.release.canonical import same_value
from kvrelease.release.comparison import (
    Sameness,
    TensorChanges,
    compare_digests,
    compare_parts,
    compare_samples,
    compare_tensors,
    parts_that_are,
)
from kvrelease.release.file_changes import (
    FileChange,
    changed_code,
    changed_files,
    code_unread,
    compare_releases,
    tokenizer_elsewhere,
    weights_unread,
)
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.mode import Mode
from kvrelease.release.sampling import DetectionBound
from kvrelease.release.side_files import PREPROCESSORS
from kvrelease.release.stored import StoredAnswer, proves
from kvrelease.release.tokenizer_beside import compare_beside

PUBLISHED_NAME = "kvrelease.json"


class ReleaseCheck(Artifact, frozen=True, kw_only=True, tag="kvrelease/check"):
    """What comparing a release with its published fingerprint says.

    Attributes:
        release: as it is now.
        published: as it was published.
        mode: how much of the release was read.
        verdict: pass where it is the published one, or where no change was seen by a fast check that was asked for.
        reason: one sentence.
        changed: names of the digests that differ, kv as the last one; `samples` for the fast digest, `adapter 'NAME'`
            for an adapter; `code` and `preprocessor` in place of `config` where its own entries are the same.
        unknown: names of the digests that could not be compared.
        tensors: which tensors differ; empty where only samples were compared.
        files: of code, and beside `config.json`, that differ.
        bound: what a fast check can have missed; None where every byte was compared, or the place's own hashes were.
        seconds: that reading took.
        warnings: what an operator should know about the release as it was read; none in an artifact that was saved
            before they were kept.
    """

    release: ReleaseRef
    published: ReleaseRef
    mode: Mode
    verdict: Verdict
    reason: str
    changed: tuple[str, ...]
    unknown: tuple[str, ...]
    tensors: TensorChanges
    bound: DetectionBound | None
    seconds: float
    warnings: tuple[str, ...] = ()
    files: tuple[FileChange, ...] = ()


def check_release(published: Fingerprint, found: Fingerprint) -> ReleaseCheck:
    """Whether `found` is what was published.

    A fast check passes when it sees no change: that is what was asked, and the bound says what it is worth. A full one
    against a published fingerprint of which only the samples can be compared is inconclusive.
    """
    parts = compare_releases(published, found)
    # Derived from the others, and kv named by a rule that may have improved since: told where that was one rule.
    del parts["release"]
    kv = parts.pop("kv")
    if _is_told_by_files(published, found, parts):
        del parts["config"]
    if compare_parts(published, found)["weights"] is Sameness.UNKNOWN or found.mode is Mode.FAST:
        weights = parts.pop("weights")
        parts = {"samples": compare_samples(published, found), **parts}
        if weights is Sameness.UNKNOWN and (weights_unread(found) or weights_unread(published)):
            parts["weights"] = weights
    parts |= _compare_adapters(published, found)
    if kv is Sameness.CHANGED and found.rule.name != ADAPTER_RULE:
        parts["kv"] = kv
    changed = parts_that_are(Sameness.CHANGED, parts)
    unknown = parts_that_are(Sameness.UNKNOWN, parts)
    tensors = compare_tensors(published, found)
    files = (*changed_code(published, found), *changed_files(published, found))
    is_sampled = "samples" in parts
    where = _named(tensors, files)
    verdict, reason = _judge(published, found, changed, unknown, where=where, is_sampled=is_sampled)
    return ReleaseCheck(
        release=found.release,
        published=published.release,
        mode=found.mode,
        verdict=verdict,
        reason=reason,
        changed=changed,
        unknown=unknown,
        tensors=tensors,
        bound=found.bound,
        seconds=found.seconds,
        warnings=found.warnings,
        files=files,
    )


def check_stated(published: Fingerprint, answer: StoredAnswer, *, seconds: float) -> ReleaseCheck | None:
    """Whether a place states the hashes of the very files that were published; None where only reading can tell.

    That is more than samples say, and no tensor is read: but it is the place's word.
    """
    if not proves(answer, published):
        return None
    names = ("config", "tokenizer", "template", "generation")
    parts = {name: compare_digests(getattr(published.digests, name), getattr(answer, name)) for name in names}
    # The place's answer has no digests of what lies beside the tokenizer's own files.
    beside = None if published.details is None else published.details.tokenizer_beside
    if parts["tokenizer"] is Sameness.SAME and (tokenizer_elsewhere(published) or beside):
        parts["tokenizer"] = Sameness.UNKNOWN
    parts |= {_adapter(one.name): Sameness.UNKNOWN for one in published.adapters}
    changed = parts_that_are(Sameness.CHANGED, parts)
    unknown = parts_that_are(Sameness.UNKNOWN, parts)
    nothing = TensorChanges(added=(), removed=(), changed=(), renamed=())
    verdict, reason = _judge_parts(published, published, changed, unknown, where="") or (
        Verdict.PASS,
        "the place states the hashes of the very weight files that were published; no tensor was read",
    )
    return ReleaseCheck(
        release=ReleaseRef(
            name=published.release.name, version=published.release.version, source=answer.address, kv_name=None
        ),
        published=published.release,
        mode=Mode.FAST,
        verdict=verdict,
        reason=reason,
        changed=changed,
        unknown=unknown,
        tensors=nothing,
        bound=None,
        seconds=seconds,
        warnings=answer.warnings,
    )


def _is_told_by_files(published: Fingerprint, found: Fingerprint, parts: Mapping[str, Sameness]) -> bool:
    """Whether the configuration differs in code and preprocessors alone, which have names of their own."""
    if Sameness.CHANGED not in (parts["code"], parts["preprocessor"]):
        return False
    before, after = (
        {key: value for key, value in (side.config or {}).items() if key not in PREPROCESSORS}
        for side in (published, found)
    )
    return parts["config"] is Sameness.CHANGED and same_value(before, after)


def _compare_adapters(published: Fingerprint, found: Fingerprint) -> dict[str, Sameness]:
    """What is known of each adapter, by `adapter NAME`; they are read whole in either mode.

    One that was published and is not here was not asked for, which is no change of the release.
    """
    if ADAPTER_RULE in (published.rule.name, found.rule.name):
        return {}  # an adapter alone: its tensors and configuration are compared like a release's
    before, after = ({one.name: one.content for one in side.adapters} for side in (published, found))
    return {
        _adapter(name): Sameness.UNKNOWN if name not in after else compare_digests(before.get(name), after[name])
        for name in sorted(before.keys() | after.keys())
    }


def _adapter(name: str) -> str:
    return f"adapter {name!r}"


def _judge(
    published: Fingerprint,
    found: Fingerprint,
    changed: tuple[str, ...],
    unknown: tuple[str, ...],
    *,
    where: str,
    is_sampled: bool,
) -> tuple[Verdict, str]:
    if (judged := _judge_parts(published, found, changed, unknown, where=where)) is not None:
        return judged
    if found.mode is Mode.FAST:
        return Verdict.PASS, f"no change was seen; {chances(found.bound)}"
    if is_sampled:
        what = "a fast one" if published.mode is Mode.FAST else f"of another algorithm (kvrelease {published.tool})"
        return Verdict.INCONCLUSIVE, (
            f"no change was seen, but the published fingerprint is {what}: only samples of the tensors can be compared"
        )
    return Verdict.PASS, "every digest is the published one"


def _judge_parts(
    published: Fingerprint,
    found: Fingerprint,
    changed: tuple[str, ...],
    unknown: tuple[str, ...],
    *,
    where: str,
) -> tuple[Verdict, str] | None:
    """The verdict of parts that differ or cannot be compared; None where all that were compared are the same."""
    if changed:
        return Verdict.FAIL, f"not the release that was published: {', '.join(changed)} changed{where}"
    if unknown:
        unread = _why_unread(published, found)
        if told := [f"{name} cannot be compared: {unread[name]}" for name in unknown if name in unread]:
            return Verdict.INCONCLUSIVE, "; ".join(told)
        missing = {_adapter(one.name): one.name for one in published.adapters}
        if all(name in missing for name in unknown):
            return Verdict.INCONCLUSIVE, (
                f"published with adapters that were not looked at: {listed([missing[name] for name in unknown])}; add "
                "--adapter NAME=DIR for each"
            )
        return Verdict.INCONCLUSIVE, (
            f"{', '.join(unknown)} cannot be compared: the published fingerprint was made in another way "
            f"(kvrelease {published.tool}); publish it again"
        )
    return None


def _named(tensors: TensorChanges, files: Sequence[FileChange]) -> str:
    """The tensors and files that differ, to end a sentence with."""
    names = [*tensors.changed, *tensors.added, *tensors.removed, *(pair.new for pair in tensors.renamed)]
    names += [name for one in tensors.relaid for name in one.new]
    found = (("tensors", sorted(names)), ("files", [one.name for one in files]))
    return "".join(f"; {what}: {listed(some)}" for what, some in found if some)


def _why_unread(published: Fingerprint, found: Fingerprint) -> dict[str, str]:
    """Parts that lie elsewhere, whatever was published: a sentence each."""
    why = {}
    if code := (*code_unread(found), *code_unread(published)):
        why["code"] = code[0]
    if weights := (*weights_unread(found), *weights_unread(published)):
        why["weights"] = weights[0]
    if places := sorted({*tokenizer_elsewhere(found), *tokenizer_elsewhere(published)}):
        why["tokenizer"] = unread_tokenizer(places)
    elif beside := compare_beside(published, found):
        why["tokenizer"] = beside
    return why


def chances(bound: DetectionBound | None) -> str:
    """What a fast reading can have missed, in words."""
    if bound is None or not bound.unseen:
        return "every byte of every tensor was read"
    # A tenth: the largest stated share that is not nearly always seen.
    tenth = next(unseen for unseen in bound.unseen if unseen.share == 0.1)
    smallest = bound.unseen[0]
    return (
        f"a change of a tenth of one tensor, in one piece, goes unseen with probability {tenth.contiguous:.2g} at "
        f"most, one of {smallest.share:.2%} with {smallest.contiguous:.4g}"
    )
