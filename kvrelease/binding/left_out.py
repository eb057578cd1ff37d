"""Prompts of a set that an engine does not take, told one by one: the others go on.

Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from kvrelease.artifacts import Fault
from kvrelease.errors import ExitCode, KvreleaseError, PromptTooLong, Refused

# What a server answers to a body that it does not take; another status is about the server, and not about this prompt.
_OF_THE_BODY = (400, 413, 422)
# Told one by one in a message; the artifact has all of them.
_MAX_TOLD = 5


class Why(enum.StrEnum):
    """Why a prompt is left out."""

    TOO_LONG = "too-long"
    REFUSED = "refused"
    NO_IDS = "no-ids"

    @property
    def words(self) -> str:
        """The same for people."""
        return _WORDS[self]


_WORDS = {
    Why.TOO_LONG: "too long for the engine's context",
    Why.REFUSED: "refused by the server",
    Why.NO_IDS: "the server tells no token ids of it (images, as a rule)",
}


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt that is not sent, or not again.

    Attributes:
        prompt: its id.
        why: what kind of reason.
        detail: what was found; nothing of the prompt's text.
    """

    prompt: str
    why: Why
    detail: str


def left_out_for(error: KvreleaseError, *, prompt: str) -> LeftOut | None:
    """What an error says of this one prompt; None where it is about the server."""
    match error:
        case PromptTooLong():
            return LeftOut(prompt=prompt, why=Why.TOO_LONG, detail=error.message)
        case Refused() if error.status in _OF_THE_BODY and not error.was_throttled:
            return LeftOut(prompt=prompt, why=Why.REFUSED, detail=error.message)
        case _:
            return None


def told(left_out: Sequence[LeftOut]) -> str:
    """Which prompts were left out and why, the first few by name."""
    shown = [f"{one.prompt}, {one.why.words} ({one.detail})" for one in left_out[:_MAX_TOLD]]
    more = [f"and {len(left_out) - _MAX_TOLD} more"] if len(left_out) > _MAX_TOLD else []
    prompts = "1 prompt was" if len(left_out) == 1 else f"{len(left_out)} prompts were"
    return f"{prompts} left out: {', '.join([*shown, *more])}"


def faults_of(left_out: Iterable[LeftOut], *, where: str) -> tuple[Fault, ...]:
    """The same as parts of a report, one for each reason: a prompt that does not fit is the set's fault (exit 4).

    Args:
        left_out: by one replica.
        where: how people read which one.
    """
    found = tuple(left_out)
    by_why = {why: tuple(one for one in found if one.why is why) for why in Why}
    return tuple(
        Fault(
            where=where,
            exit_code=int(ExitCode.INPUT if why is Why.TOO_LONG else ExitCode.INCONCLUSIVE),
            message=f"{where}: {told(those)}",
            hint=_HINTS[why],
        )
        for why, those in by_why.items()
        if those
    )


_BUDGET = "or allow for them with --max-error-rate"
_HINTS = {
    Why.TOO_LONG: f"shorten or drop them, serve a longer context (vLLM --max-model-len, llama.cpp -c), {_BUDGET}",
    Why.REFUSED: f"correct or drop them, {_BUDGET}",
    Why.NO_IDS: f"drop them (nothing tells whose their hits are), {_BUDGET}",
}
