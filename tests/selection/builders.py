"""Logs for tests of selection."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from kvrelease.selection.select import OpenLog
from kvrelease.workload.logged import LoggedRequest
from kvrelease.workload.place import Place
from kvrelease.workload.prompt_set import PromptKind


def chat(
    system: str,
    user: str,
    *,
    line: int = 1,
    at_s: float | None = None,
    model: str | None = None,
    salt: str | None = None,
    weight: float = 1.0,
) -> LoggedRequest:
    """A chat request with a system prompt."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return LoggedRequest(
        place=Place(source="log.jsonl", line=line),
        at_s=at_s,
        kind=PromptKind.CHAT,
        body={"messages": messages},
        model=model,
        salt=salt,
        weight=weight,
    )


def trace(*hashes: int, tokens: int | None = None, line: int = 1, at_s: float | None = None) -> LoggedRequest:
    """A request of a trace without text."""
    return LoggedRequest(
        place=Place(source="trace.jsonl", line=line),
        at_s=at_s,
        kind=None,
        body=None,
        model=None,
        salt=None,
        prompt_tokens=tokens,
        block_hashes=hashes,
    )


def opened(requests: Sequence[LoggedRequest]) -> OpenLog:
    """A log that can be read any number of times."""

    def open_log(_pass: str) -> Iterator[LoggedRequest]:
        return iter(requests)

    return open_log


def words(rng: random.Random, characters: int) -> str:
    """Text that shares nothing with other such text."""
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(characters))


def desk_log(requests: int, *, seed: int = 0, desks: int = 6, timed: bool = True) -> list[LoggedRequest]:
    """Requests over a few system prompts, the first ones far more frequent, each with a question of its own."""
    rng = random.Random(seed)
    systems = [words(rng, 1000) for _ in range(desks)]
    shares = [1 / (number + 1) for number in range(desks)]
    return [
        chat(rng.choices(systems, shares)[0], words(rng, 200), line=number + 1, at_s=float(number) if timed else None)
        for number in range(requests)
    ]
