"""What looks wrong in a prompt set, although it can be used: one function a warning."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from kvrelease.printable import number_of
from kvrelease.workload.body import images_of
from kvrelease.workload.grouping import UNSHARED
from kvrelease.workload.prompt_set import PromptSet, canonical_json
from kvrelease.workload.tokens import Tokens, begun_twice, too_long
from kvrelease.workload.volatile import Volatility, volatile_prefixes

_VOLATILE_WORDS = {
    Volatility.UUID: "a UUID",
    Volatility.DATE_TIME: "a date with a time of day",
    Volatility.CURRENT_DATE: "a current date or time",
    Volatility.TIMESTAMP: "a timestamp",
    Volatility.TEMPLATE: "an unfilled template placeholder",
    Volatility.REQUEST_ID: "an id of a request, session or user",
}


_GOOD_UNTIL = {
    Volatility.UUID: "for the one request or session that has it",
    Volatility.DATE_TIME: "until that time changes",
    Volatility.CURRENT_DATE: "until that date or time changes",
    Volatility.TIMESTAMP: "until that time changes",
    Volatility.TEMPLATE: "for no request (unless it is sent unfilled)",
    Volatility.REQUEST_ID: "for the one request, session or user that has it",
}


class WarningCode(enum.StrEnum):
    """What looks wrong in a prompt set."""

    VOLATILE_PREFIX = "volatile-prefix"
    OWN_SALT = "own-salt"
    IMAGES = "images"
    SAME_BODY = "same-body"
    TEMPLATE_CLOCK = "template-clock"
    DOUBLE_BOS = "double-bos"
    TOO_LONG = "too-long"
    NOT_COUNTED = "not-counted"
    NOT_SEARCHED = "not-searched"
    NOTHING_SHARED = "nothing-shared"


class PromptsWarning(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that looks wrong.

    Attributes:
        code: what.
        prompt_ids: where, in the set's order; empty for the set as a whole.
        message: for people; quotes no prompt text.
    """

    code: WarningCode
    prompt_ids: tuple[str, ...]
    message: str


def prompt_warnings(
    prompt_set: PromptSet, labels: Mapping[str, str], *, tokens: Tokens | None, unseen: tuple[str, ...]
) -> tuple[PromptsWarning, ...]:
    """All that looks wrong.

    Args:
        prompt_set: the prompts.
        labels: of their shared prefixes, by prompt id.
        tokens: their ids; None when nobody counted.
        unseen: prompts that could not be searched for secrets.
    """
    return (
        *_volatile(prompt_set),
        *_own_salts(prompt_set),
        *_images(prompt_set),
        *_same_bodies(prompt_set),
        *_nothing_shared(labels),
        *(() if tokens is None else _of_tokens(prompt_set, tokens)),
        *_not_searched(unseen),
    )


def _volatile(prompt_set: PromptSet) -> list[PromptsWarning]:
    return [
        PromptsWarning(
            code=WarningCode.VOLATILE_PREFIX,
            prompt_ids=finding.prompt_ids,
            message=f"{_VOLATILE_WORDS[finding.volatility]} at character {finding.character} of the prefix of "
            f"{_named(finding.prompt_ids)}: what is warmed is good {_GOOD_UNTIL[finding.volatility]}; then nothing "
            "behind it can be hit; move it to the prompt's end",
        )
        for finding in volatile_prefixes(prompt_set)
    ]


def _own_salts(prompt_set: PromptSet) -> list[PromptsWarning]:
    salted = [prompt for prompt in prompt_set.prompts if prompt.salt is not None]
    if not salted:
        return []
    ids = tuple(prompt.id for prompt in salted)
    spaces = len({prompt.salt for prompt in salted})
    message = (
        f"{_named(ids)} {'has a salt of its own' if len(ids) == 1 else 'have salts of their own'} "
        f"({number_of(spaces, 'tenant')}): blocks are shared within a tenant only, and each needs its own warming"
    )
    return [PromptsWarning(code=WarningCode.OWN_SALT, prompt_ids=ids, message=message)]


def _images(prompt_set: PromptSet) -> list[PromptsWarning]:
    ids = tuple(prompt.id for prompt in prompt_set.prompts if images_of(prompt.body))
    if not ids:
        return []
    message = (
        f"{_named(ids)} {'refers' if len(ids) == 1 else 'refer'} to images: engines key them by content, so that the "
        "same address must give the same picture, and an engine that serves text only cannot be warmed with them"
    )
    return [PromptsWarning(code=WarningCode.IMAGES, prompt_ids=ids, message=message)]


def _same_bodies(prompt_set: PromptSet) -> list[PromptsWarning]:
    by_body: dict[tuple[bytes, str | None], list[str]] = {}
    for prompt in prompt_set.prompts:
        by_body.setdefault((canonical_json(prompt.body), prompt.salt), []).append(prompt.id)
    return [
        PromptsWarning(
            code=WarningCode.SAME_BODY,
            prompt_ids=tuple(ids),
            message=f"{_named(tuple(ids))} have the same body: keep one, with the sum of the weights",
        )
        for ids in by_body.values()
        if len(ids) > 1
    ]


def _nothing_shared(labels: Mapping[str, str]) -> list[PromptsWarning]:
    if len(labels) < 2 or set(labels.values()) != {UNSHARED}:
        return []
    message = (
        "no two prompts of the set begin alike (a set that was chosen may have one for each prefix): whether traffic "
        "does, the set does not show"
    )
    return [PromptsWarning(code=WarningCode.NOTHING_SHARED, prompt_ids=(), message=message)]


def _of_tokens(prompt_set: PromptSet, tokens: Tokens) -> list[PromptsWarning]:
    found = [
        (
            WarningCode.DOUBLE_BOS,
            begun_twice(tokens),
            ("begins", "begin"),
            "with two tokens that begin a text: the tokenizer adds one, so take it out of the prompt, unless "
            "production sends it too",
        ),
        (
            WarningCode.TOO_LONG,
            too_long(prompt_set, tokens),
            ("does", "do"),
            f"not fit the context of {tokens.context_tokens} tokens together with what is to be generated",
        ),
        (
            WarningCode.NOT_COUNTED,
            tuple(prompt.id for prompt in prompt_set.prompts if prompt.id in tokens.unknown),
            ("has", "have"),
            "no known number of tokens: " + "; ".join(sorted(set(tokens.unknown.values()))[:3]),
        ),
    ]
    warnings = [
        PromptsWarning(code=code, prompt_ids=ids, message=f"{_named(ids)} {verbs[len(ids) > 1]} {message}")
        for code, ids, verbs, message in found
        if ids
    ]
    if tokens.reads_clock:
        message = (
            "the chat template writes the current date into prompts: what is warmed is good until the date changes "
            "in the engine's time zone"
        )
        warnings.append(PromptsWarning(code=WarningCode.TEMPLATE_CLOCK, prompt_ids=(), message=message))
    return warnings


def _not_searched(ids: tuple[str, ...]) -> list[PromptsWarning]:
    if not ids:
        return []
    message = f"{_named(ids)} {'is' if len(ids) == 1 else 'are'} token ids: no secrets were looked for in them"
    return [PromptsWarning(code=WarningCode.NOT_SEARCHED, prompt_ids=ids, message=message)]


def _named(ids: tuple[str, ...]) -> str:
    """The first few ids, and how many more."""
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ("prompt " if len(ids) == 1 else "prompts ") + ", ".join(ids[:3]) + more
