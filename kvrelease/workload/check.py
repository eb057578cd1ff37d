"""What `kvrelease prompts check` says of a prompt set: what it holds, what its prompts share, what looks wrong."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.artifacts import Artifact
from kvrelease.workload.body import images_of, whole_text
from kvrelease.workload.grouping import MAX_COMPARED_CHARACTERS, UNSHARED, prefix_labels
from kvrelease.workload.prompt_set import Prompt, PromptKind, PromptSet, canonical_json
from kvrelease.workload.volatile import Volatility, volatile_prefixes

_VOLATILE_WORDS = {
    Volatility.UUID: "a UUID",
    Volatility.DATE_TIME: "a date with a time of day",
    Volatility.CURRENT_DATE: "a current date or time",
    Volatility.TIMESTAMP: "a timestamp",
    Volatility.TEMPLATE: "an unfilled template placeholder",
    Volatility.REQUEST_ID: "an id of a request, session or user",
}


class WarningCode(enum.StrEnum):
    """What looks wrong in a prompt set."""

    VOLATILE_PREFIX = "volatile-prefix"
    OWN_SALT = "own-salt"
    IMAGES = "images"
    SAME_BODY = "same-body"
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


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of one label.

    Attributes:
        prefix: the label.
        prompts: how many carry it.
        share: their part of the traffic, 0 … 1.
        characters: length of what their texts have in common from the start (the whole text for a single prompt).
    """

    prefix: str
    prompts: int
    share: float
    characters: int


class PromptsReport(Artifact, frozen=True, kw_only=True, tag="kvrelease/prompts"):
    """What a prompt set holds.

    Attributes:
        name: of the set.
        source: where it was read.
        digest: `kvprompts1:…`, of what would be sent and how often.
        prompts: how many.
        chat: of these, for the chat route.
        completions: for the completions route.
        total_weight: sum of the weights.
        largest_share: part of the traffic of the heaviest prompt, 0 … 1.
        effective_prompts: 1 / sum of squared shares: how many equally frequent prompts would be as varied.
        shared_prefixes: most traffic first.
        warnings: what looks wrong; the set is usable all the same.
    """

    name: str
    source: str
    digest: str
    prompts: int
    chat: int
    completions: int
    total_weight: float
    largest_share: float
    effective_prompts: float
    shared_prefixes: tuple[SharedPrefix, ...]
    warnings: tuple[PromptsWarning, ...]


def check_prompt_set(prompt_set: PromptSet) -> PromptsReport:
    """The report of a loaded prompt set."""
    shares = prompt_set.shares
    labels = prefix_labels(prompt_set)
    chat = sum(prompt.kind is PromptKind.CHAT for prompt in prompt_set.prompts)
    return PromptsReport(
        name=prompt_set.name,
        source=prompt_set.source,
        digest=prompt_set.digest,
        prompts=len(prompt_set.prompts),
        chat=chat,
        completions=len(prompt_set.prompts) - chat,
        total_weight=prompt_set.total_weight,
        largest_share=max(shares.values()),
        effective_prompts=1 / sum(share**2 for share in shares.values()),
        shared_prefixes=_shared_prefixes(prompt_set, labels, shares),
        warnings=(
            *_volatile(prompt_set),
            *_own_salts(prompt_set),
            *_images(prompt_set),
            *_same_bodies(prompt_set),
            *_nothing_shared(labels),
        ),
    )


def _shared_prefixes(
    prompt_set: PromptSet, labels: Mapping[str, str], shares: Mapping[str, float]
) -> tuple[SharedPrefix, ...]:
    members: dict[str, list[Prompt]] = {}
    for prompt in prompt_set.prompts:
        members.setdefault(labels[prompt.id], []).append(prompt)
    prefixes = [
        SharedPrefix(
            prefix=label,
            prompts=len(prompts),
            share=min(math.fsum(shares[prompt.id] for prompt in prompts), 1.0),
            characters=_common_characters([whole_text(prompt)[:MAX_COMPARED_CHARACTERS] for prompt in prompts]),
        )
        for label, prompts in members.items()
    ]
    return tuple(sorted(prefixes, key=lambda prefix: (-prefix.share, prefix.prefix)))


def _common_characters(texts: Sequence[str]) -> int:
    # What the smallest and the largest text share, all between them share too.
    first, last = min(texts), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(first), len(last)))


def _volatile(prompt_set: PromptSet) -> list[PromptsWarning]:
    return [
        PromptsWarning(
            code=WarningCode.VOLATILE_PREFIX,
            prompt_ids=finding.prompt_ids,
            message=f"{_VOLATILE_WORDS[finding.volatility]} at character {finding.character} of the prefix of "
            f"{_named(finding.prompt_ids)}: when it changes, nothing behind it can be hit; move it to the prompt's end",
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
    message = "no two prompts share a prefix: only exact repeats can hit, and a probe says nothing of other traffic"
    return [PromptsWarning(code=WarningCode.NOTHING_SHARED, prompt_ids=(), message=message)]


def number_of(count: int, one: str) -> str:
    """A count with its noun."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def _named(ids: tuple[str, ...]) -> str:
    """The first few ids, and how many more."""
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ("prompt " if len(ids) == 1 else "prompts ") + ", ".join(ids[:3]) + more
