"""Whether a release is still the one that was published beside it. Pure."""

from __future__ import annotations

from kvrelease.artifacts import Artifact, ReleaseRef, Verdict
from kvrelease.release.checkpoint import listed
from kvrelease.release.comparison import (
    Sameness,
    TensorChanges,
    compare_digests,
    compare_parts,
    compare_samples,
    compare_tensors,
    parts_that_are,
)
from kvrelease.release.file_changes import compare_beside
from kvrelease.release.fingerprint import Fingerprint
from kvrelease.release.impact import ADAPTER_RULE
from kvrelease.release.mode import Mode
from kvrelease.release.sampling import DetectionBound
from kvrelease.release.stored import StoredAnswer, proves

PUBLISHED_NAME = "kvrelease.json"


class ReleaseCheck(Artifact, frozen=True, kw_only=True, tag="kvrelease/check"):
    """What comparing a release with its published fingerprint says.

    Attributes:
        release: as it is now.
        published: as it was published.
        mode: how much of the release was read.
        verdict: pass where it is the published one, or where no change was seen by a fast check that was asked for.
        reason: one sentence.
        changed: names of the digests that differ; `samples` for the fast digest, `adapter 'NAME'` for an adapter.
        unknown: names of the digests that could not be compared.
        tensors: which tensors differ; empty where only samples were compared.
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


def check_release(published: Fingerprint, found: Fingerprint) -> ReleaseCheck:
    """Whether `found` is what was published.

    A fast check passes when it sees no change: that is what was asked, and the bound says what it is worth. A full one
    against a published fingerprint of which only the samples can be compared is inconclusive.
    """
    parts = compare_parts(published, found)
    # Derived from the others, and kv named by a rule that may have improved since: told where that was one rule.
    derived = {"release"} if parts["kv"] is Sameness.CHANGED and found.rule.name != ADAPTER_RULE else {"release", "kv"}
    parts = {name: sameness for name, sameness in parts.items() if name not in derived}
    if parts["weights"] is Sameness.UNKNOWN or found.mode is Mode.FAST:
        del parts["weights"]
        parts = {"samples": compare_samples(published, found), **parts}
    parts |= _compare_adapters(published, found)
    # Of files that no digest covers, only a change is known of every publication.
    parts |= {name: one for name, one in compare_beside(published, found).items() if one is Sameness.CHANGED}
    changed = parts_that_are(Sameness.CHANGED, parts)
    unknown = parts_that_are(Sameness.UNKNOWN, parts)
    tensors = compare_tensors(published, found)
    is_sampled = "samples" in parts
    verdict, reason = _judge(published, found, changed, unknown, tensors, is_sampled=is_sampled)
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
    )


def check_stated(published: Fingerprint, answer: StoredAnswer, *, seconds: float) -> ReleaseCheck | None:
    """Whether a place states the hashes of the very files that were published; None where only reading can tell.

    That is more than samples say, and no tensor is read: but it is the place's word.
    """
    if not proves(answer, published):
        return None
    names = ("config", "tokenizer", "template", "generation")
    parts = {name: compare_digests(getattr(published.digests, name), getattr(answer, name)) for name in names}
    parts |= {_adapter(one.name): Sameness.UNKNOWN for one in published.adapters}
    changed = parts_that_are(Sameness.CHANGED, parts)
    unknown = parts_that_are(Sameness.UNKNOWN, parts)
    nothing = TensorChanges(added=(), removed=(), changed=(), renamed=())
    verdict, reason = _judge_parts(published, changed, unknown, nothing) or (
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
    tensors: TensorChanges,
    *,
    is_sampled: bool,
) -> tuple[Verdict, str]:
    if (judged := _judge_parts(published, changed, unknown, tensors)) is not None:
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
    published: Fingerprint, changed: tuple[str, ...], unknown: tuple[str, ...], tensors: TensorChanges
) -> tuple[Verdict, str] | None:
    """The verdict of parts that differ or cannot be compared; None where all that were compared are the same."""
    if changed:
        names = [*tensors.changed, *tensors.added, *tensors.removed, *(pair.new for pair in tensors.renamed)]
        names += [name for one in tensors.relaid for name in one.new]
        which = f"; tensors: {listed(sorted(names))}" if names else ""
        return Verdict.FAIL, f"not the release that was published: {', '.join(changed)} changed{which}"
    if unknown:
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
