"""Whether an engine is bound as its settings say: what it was found to tell, and the verdict; pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from kvrelease.artifacts import Verdict
from kvrelease.ledger.records import is_namespace_text


class BoundId(enum.StrEnum):
    """What is asked."""

    KEY_SPACE = "key-space"
    LABEL = "label"
    SERVED_NAME = "served-name"
    STORE = "store"
    HASH_ROOT = "hash-root"


class Answer(enum.StrEnum):
    """What was found; not known is no yes."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class BoundFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One question and its answer.

    Attributes:
        id: the question.
        answer: what was found.
        detail: what it rests on, or why it is not known.
        decides: whether an unknown answer leaves the verdict open; not where no engine of this kind has a route that
            could tell.
    """

    id: BoundId
    answer: Answer
    detail: str
    decides: bool = True


class BoundCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What one running engine was asked.

    Attributes:
        url: of the engine.
        engine: the kind that answered.
        version: of the engine; None when it does not tell.
        findings: in the order asked.
    """

    url: str
    engine: str
    version: str | None
    findings: tuple[BoundFinding, ...]


def judged(findings: Sequence[BoundFinding]) -> tuple[Verdict, str]:
    """The verdict over all findings, and why.

    A pass takes the proof that requests with these fields have a key space of their own. Labels are claims: one that is
    missing says that the engine was not started with these settings, and none that is there proves more.
    """
    wrong = [finding.id for finding in findings if finding.answer is Answer.NO]
    if wrong:
        return Verdict.FAIL, f"not bound as these settings say: {', '.join(wrong)}"
    is_proven = any(found.id is BoundId.KEY_SPACE and found.answer is Answer.YES for found in findings)
    unknown = [finding.id for finding in findings if finding.answer is Answer.UNKNOWN]
    open_ones = [finding.id for finding in findings if finding.answer is Answer.UNKNOWN and finding.decides]
    if open_ones or not is_proven:
        return Verdict.INCONCLUSIVE, f"not known: {', '.join(open_ones) or BoundId.KEY_SPACE}"
    beside = f"; not told by this engine: {', '.join(unknown)}" if unknown else ""
    return Verdict.PASS, f"requests with these fields have a key space of the namespace's own{beside}"


def key_space_finding(*, first: bool | None, again: bool | None, fresh: bool | None, shown: str) -> BoundFinding:
    """What three requests with one unique prompt say of the key space: twice in the namespace's, once in a fresh one.

    Args:
        first: whether the first request hit; None where nobody witnessed.
        again: whether the second did.
        fresh: whether the one in a key space that nobody had used did.
        shown: how many of how many tokens each hit, for people.
    """
    if first:
        # Nobody can have sent this prompt before, in whatever key space.
        answer, why = Answer.UNKNOWN, "a unique prompt hit when it was sent for the first time, so hits prove nothing"
    elif fresh:
        answer, why = Answer.NO, "the same prompt hit under a salt that nobody had used: some layer ignores salts"
    elif again is None or fresh is None:
        answer, why = Answer.UNKNOWN, "nobody told whether these requests hit"
    elif not again:
        answer, why = Answer.UNKNOWN, "a unique prompt that was sent twice did not hit, so a miss proves nothing"
    else:
        answer, why = Answer.YES, "a unique prompt that was sent twice hit in the namespace, and missed under another"
    return BoundFinding(id=BoundId.KEY_SPACE, answer=answer, detail=f"{why} ({shown})")


def label_finding(told: str | None, *, namespace: str, label: str) -> BoundFinding:
    """Whether the engine calls itself by the namespace.

    Args:
        told: what it says; None where it says nothing.
        namespace: that it should say.
        label: what this label is called.
    """
    if told is None:
        answer, detail = Answer.UNKNOWN, f"{label} is not told"
    elif told == namespace:
        answer, detail = Answer.YES, f"{label} is the namespace (a claim, and no proof)"
    elif is_namespace_text(told):
        answer, detail = Answer.NO, f"{label} is another namespace: {told}"
    else:
        answer, detail = Answer.NO, f"{label} is {told!r}"
    return BoundFinding(id=BoundId.LABEL, answer=answer, detail=detail)


def store_finding(*, connector: str | None, places: Sequence[str], names: Sequence[str]) -> BoundFinding:
    """Whether every place where a connector keeps entries is one of the namespace's own.

    Args:
        connector: its name.
        places: directories and prefixes that it uses; empty where none is told.
        names: what a place of the namespace's own is called, as a whole or as one part of a path.
    """
    shared = [place for place in places if not any(name in (place, *place.split("/")) for name in names)]
    if not places:
        answer, detail = Answer.UNKNOWN, f"{connector} does not tell where it keeps entries"
    elif shared:
        answer, detail = (
            Answer.NO,
            f"{connector} keeps entries in {', '.join(shared)}, not the namespace's own",
        )
    else:
        answer, detail = Answer.YES, f"{connector} keeps entries in {', '.join(places)}"
    return BoundFinding(id=BoundId.STORE, answer=answer, detail=detail)
