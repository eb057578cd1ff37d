"""The protocol of a reload in place as a state machine: which step comes next, whatever became of the last one.

Nothing touched: back to the old release. Something may have been touched, and nobody can say that it was not: closed.
The gate opens into a namespace only where the weights behind it are known to be that namespace's, or where an engine
that said "done" is all there is to go by, which the verdict then says. docs/reload.md draws it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import msgspec

from kvrelease.artifacts import Verdict


class Step(enum.StrEnum):
    """What is done, in the words of the report."""

    HOLD = "hold"
    DRAIN = "drain"
    ASK_OLD = "ask the old weights"
    SWAP = "load the new weights"
    ASK_AGAIN = "ask whether the old weights are still there"
    ASK_NEW = "ask the new weights"
    FLUSH = "empty the prefix cache"
    RESUME_NEW = "resume in the new namespace"
    RESUME_OLD = "resume in the old namespace"
    CLOSE = "close"


_QUESTIONS = (Step.ASK_OLD, Step.ASK_AGAIN, Step.ASK_NEW)


class Outcome(enum.StrEnum):
    """What became of a step."""

    DONE = "done"
    UNPROVEN = "unproven"  # asked, and nothing could be told from it
    DISAGREES = "disagrees"  # other weights answer than those that should
    REFUSED = "refused"  # and nothing was changed
    FAILED = "failed"  # an answer, and it says no
    LOST = "no answer"  # what was asked for may still be going on
    LATE = "not in time"
    INTERRUPTED = "interrupted"


class Ending(enum.StrEnum):
    """What clients meet afterwards."""

    NEW = "new"  # the new release, in its namespace
    OLD = "old"  # the old one, in its own
    CLOSED = "closed"  # 503
    UNKNOWN = "unknown"  # nobody could be told; a hold that nobody ends closes the gate by itself


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One step that was taken.

    Attributes:
        step: which.
        outcome: what became of it.
        seconds: it took.
        detail: what was found, one sentence; empty for nothing.
    """

    step: Step
    outcome: Outcome
    seconds: float
    detail: str = ""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about the way before the first step.

    Attributes:
        was_open: the old release was being served. If not, nobody knows whose weights the engine has, and there is
            nothing to go back to.
        asks: there are prompts to ask the weights with.
        flushes: the engine's own cache may be emptied.
    """

    was_open: bool
    asks: bool
    flushes: bool


def next_step(taken: Sequence[Taken], *, start: Start) -> Step | None:
    """The next step after those that were taken; None at the end."""
    return _AFTER[taken[-1].step](taken, start) if taken else Step.HOLD


def _back(start: Start) -> Step:
    return Step.RESUME_OLD if start.was_open else Step.CLOSE


def _is_good(taken: Sequence[Taken]) -> bool:
    return _went_well(taken[-1])


def _went_well(one: Taken) -> bool:
    """Of a question, an answer that tells nothing is no reason to stop; anything else is done or not."""
    return one.outcome is Outcome.DONE or (one.outcome is Outcome.UNPROVEN and one.step in _QUESTIONS)


def _after_hold(taken: Sequence[Taken], start: Start) -> Step | None:
    if taken[-1].outcome is Outcome.INTERRUPTED:
        return _back(start)  # it is held all the same
    return Step.DRAIN if _is_good(taken) else None


def _after_drain(taken: Sequence[Taken], start: Start) -> Step:
    if not _is_good(taken):
        return _back(start)
    return Step.ASK_OLD if start.asks else Step.SWAP


def _after_asking_old(taken: Sequence[Taken], start: Start) -> Step:
    return Step.SWAP if _is_good(taken) else _back(start)


def _after_swap(taken: Sequence[Taken], start: Start) -> Step:
    match taken[-1].outcome:
        case Outcome.DONE if start.asks:
            return Step.ASK_NEW
        case Outcome.DONE:
            return _into_the_new(start)
        case Outcome.REFUSED if not start.asks:
            return _back(start)
        case Outcome.REFUSED | Outcome.FAILED if start.asks:
            return Step.ASK_AGAIN
        case _:
            return Step.CLOSE


def _after_asking_again(taken: Sequence[Taken], start: Start) -> Step:
    outcome = taken[-1].outcome
    is_untouched = outcome is Outcome.UNPROVEN and _outcome_of(Step.SWAP, taken) is Outcome.REFUSED
    return _back(start) if outcome is Outcome.DONE or is_untouched else Step.CLOSE


def _after_asking_new(taken: Sequence[Taken], start: Start) -> Step:
    return _into_the_new(start) if _is_good(taken) else Step.CLOSE


def _into_the_new(start: Start) -> Step:
    return Step.FLUSH if start.flushes else Step.RESUME_NEW


_AFTER: Mapping[Step, Callable[[Sequence[Taken], Start], Step | None]] = {
    Step.HOLD: _after_hold,
    Step.DRAIN: _after_drain,
    Step.ASK_OLD: _after_asking_old,
    Step.SWAP: _after_swap,
    Step.ASK_AGAIN: _after_asking_again,
    Step.ASK_NEW: _after_asking_new,
    # The new namespace hits nothing old, whether the cache was emptied or not.
    Step.FLUSH: lambda _taken, _start: Step.RESUME_NEW,
    Step.RESUME_NEW: lambda taken, _start: None if _is_good(taken) else Step.CLOSE,
    Step.RESUME_OLD: lambda taken, _start: None if _is_good(taken) else Step.CLOSE,
    Step.CLOSE: lambda _taken, _start: None,
}


def ending_of(taken: Sequence[Taken], *, start: Start) -> Ending:
    """What clients meet after these steps, of which the last was the last."""
    last = taken[-1]
    if last.step is Step.HOLD:
        untouched = Ending.OLD if start.was_open else Ending.CLOSED
        return untouched if last.outcome is Outcome.REFUSED else Ending.UNKNOWN
    if last.outcome is not Outcome.DONE:
        return Ending.UNKNOWN
    return {Step.RESUME_NEW: Ending.NEW, Step.RESUME_OLD: Ending.OLD, Step.CLOSE: Ending.CLOSED}[last.step]


def verdict_of(taken: Sequence[Taken], *, ending: Ending) -> Verdict:
    """Pass only where the new release is served and its weights were told by their answers."""
    if ending is not Ending.NEW:
        return Verdict.FAIL
    return Verdict.PASS if _outcome_of(Step.ASK_NEW, taken) is Outcome.DONE else Verdict.INCONCLUSIVE


def decisive(taken: Sequence[Taken], *, ending: Ending) -> Taken | None:
    """The step because of which it ended so: the first that went wrong, or the question that was left open."""
    if ending is Ending.NEW:
        return next((one for one in taken if one.step is Step.ASK_NEW and one.outcome is not Outcome.DONE), None)
    return next((one for one in taken if not _went_well(one)), None)


def may_have_swapped(taken: Sequence[Taken]) -> bool:
    """Whether the engine may have other weights than before."""
    return _outcome_of(Step.SWAP, taken) not in (None, Outcome.REFUSED)


def _outcome_of(step: Step, taken: Sequence[Taken]) -> Outcome | None:
    return next((one.outcome for one in taken if one.step is step), None)
