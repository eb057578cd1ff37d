"""One request of a traffic log, whatever format the log has."""

from __future__ import annotations

import enum

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.workload.place import Place
from kvrelease.workload.prompt_set import PromptKind


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a traffic log.

    Attributes:
        place: file and line; `id` is the request's own id where the log gives one (`custom_id` of a batch file).
        at_s: when it came: Unix seconds, or seconds from a trace's start; None when not told.
        kind: the route that the body is for; None for traces without text.
        body: the OpenAI body, without salts; None for traces without text.
        model: the served name or adapter that the request asked for; None when not told.
        salt: the tenant's own salt (`cache_salt`, `extra_key`), taken out of the body; None without one.
        weight: requests that this one stands for, > 0.
        prompt_tokens: as the log says; None when it does not.
        block_hashes: names of the prompt's blocks, in order (Mooncake's `hash_ids`, blocks of 512 tokens).
    """

    place: Place
    at_s: float | None
    kind: PromptKind | None
    body: JsonObject | None
    model: str | None
    salt: str | None
    weight: float = 1.0
    prompt_tokens: int | None = None
    block_hashes: tuple[int, ...] = ()


class PassedOver(enum.StrEnum):
    """Why a record of a log is no request to warm for."""

    FAILED = "failed calls"
    OWN_CACHE = "answers from the gateway's own cache"
    OTHER_CALL = "calls other than chat and completions"
    OTHER_SPAN = "spans of no inference"
