"""Finds what changes with time near the front of shared prefixes: it makes every prefix new, and warming useless.

The tests of a prompt set look the same every day, while production writes today's date into the system prompt; then
nothing that was prewarmed is ever hit.

Source:
    Public reports: dimagi/open-chat-studio#3625, open-webui/open-webui#28527, Mintplex-Labs/anything-llm#6398,
    unslothai/unsloth#9177, CherryHQ/cherry-studio#16398.
"""

from __future__ import annotations

import enum
import re

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.body import opening_text, whole_text
from kvrelease.workload.prompt_set import PromptKind, PromptSet

# Without a system message the shared part is not known from one prompt alone; what stands in the first thousand
# characters (about one or two hundred words) spoils nearly everything behind it.
MAX_HEAD_CHARACTERS = 1_000
MAX_OPENING_CHARACTERS = 262_144  # a system prompt beyond this is no front any more


class Volatility(enum.StrEnum):
    """What kind of changing text was found."""

    UUID = "uuid"
    DATE_TIME = "date-time"
    CURRENT_DATE = "current-date"
    TIMESTAMP = "timestamp"
    TEMPLATE = "template"
    REQUEST_ID = "request-id"


_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_DATE = (
    rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{4}}"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)? {_MONTH},? \d{{4}})"
)
_NOW = (
    r"(?:today(?:'s date)?|current (?:date|time|day|datetime)|date(?: and time)?|time now|the time is|now is|it is now)"
)
# Ordered: where several match at one spot, the first names it. A plain date (a policy "as of 2024-01-01") is no
# finding: only one with a time of day, or one that says that it is today's.
_PATTERNS = (
    (Volatility.UUID, re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)),
    (
        Volatility.TEMPLATE,
        re.compile(
            r"\{\{?\s{0,4}[\w.$]{0,40}(?:date|time|now|today|weekday|uuid|session|request_id|user_name|user_id|clipboard)"
            r"[\w.]{0,40}(?:\(\))?\s{0,4}\}?\}"
            r"|strftime(?:_now)?\b|%Y-%m-%d|\$\(date\b|<(?:current_)?(?:date|time|datetime|timestamp)>",
            re.IGNORECASE,
        ),
    ),
    (Volatility.DATE_TIME, re.compile(rf"{_DATE}[T,]? {{0,2}}(?:at )?\d{{1,2}}:\d{{2}}", re.IGNORECASE)),
    (
        Volatility.CURRENT_DATE,
        re.compile(
            rf"\b{_NOW}\b[ :=(]{{0,3}}(?:is |it's )?"
            rf"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,? )?"
            rf"(?:the )?(?:{_DATE}|\d{{1,2}}:\d{{2}})",
            re.IGNORECASE,
        ),
    ),
    (
        Volatility.TIMESTAMP,
        re.compile(r"\b(?:timestamp|unix time|epoch|time)\b[ :=\"]{0,4}1\d{9}(?:\d{3})?\b", re.IGNORECASE),
    ),
    (
        Volatility.REQUEST_ID,
        re.compile(
            r"\b(?:request|session|conversation|trace|correlation|user|ticket)[ _-]?id\b"
            r"[ :=#\"]{1,4}(?=[\w-]{0,60}\d)[\w-]{4,64}",
            re.IGNORECASE,
        ),
    ),
)


class VolatilePrefix(msgspec.Struct, frozen=True, kw_only=True):
    """One changing spot, and the prompts whose prefix it spoils.

    Attributes:
        volatility: what kind of text it is; the text itself is not repeated.
        character: 1-based position of the first one in the head of the first prompt.
        prompt_ids: in the set's order.
    """

    volatility: Volatility
    character: int
    prompt_ids: tuple[str, ...]


def head_of(body: JsonObject, *, kind: PromptKind, opening: str) -> str:
    """Where changing text spoils a prompt: its `opening_text`, or the first thousand characters where that is empty."""
    return opening[:MAX_OPENING_CHARACTERS] or whole_text(body, kind=kind)[:MAX_HEAD_CHARACTERS]


def volatile_prefixes(prompt_set: PromptSet) -> tuple[VolatilePrefix, ...]:
    """The kinds of changing text in the heads (`head_of`) of a set's prompts, one finding per kind and place."""
    by_head: dict[str, tuple[tuple[Volatility, int], ...]] = {}
    found: dict[tuple[Volatility, int], list[str]] = {}
    for prompt in prompt_set.prompts:
        head = head_of(prompt.body, kind=prompt.kind, opening=opening_text(prompt.body))
        if head not in by_head:
            by_head[head] = volatile_spots(head)
        for spot in by_head[head]:
            found.setdefault(spot, []).append(prompt.id)
    return tuple(
        VolatilePrefix(volatility=volatility, character=character, prompt_ids=tuple(ids))
        for (volatility, character), ids in sorted(found.items(), key=lambda item: item[0][1])
    )


def volatile_spots(text: str) -> tuple[tuple[Volatility, int], ...]:
    """The first spot of each kind in a text: (kind, 1-based character)."""
    spots = []
    for volatility, pattern in _PATTERNS:
        match = pattern.search(text)
        if match is not None:
            spots.append((volatility, match.start() + 1))
    return tuple(spots)
