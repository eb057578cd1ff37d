"""Who asks what, and which worker answers: an upgrade as its users see it."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence

import msgspec

from kvrelease.workload.prompt_set import Prompt


class Worker(enum.StrEnum):
    """Which release a worker serves."""

    OLD = "old"
    NEW = "new"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the traffic, and the worker that it is routed to."""

    prompt_id: str
    worker: Worker


# The share of traffic that the new worker gets: before the upgrade, during the canary, and after it.
SHARES = (0.0, 0.2, 1.0)


def draw_traffic(prompts: Sequence[Prompt], *, requests: int, seed: int) -> tuple[Turn, ...]:
    """[requests] turns, drawn by traffic weight, in equal parts before, during and after the canary.

    Args:
        prompts: with their weights.
        requests: how many, at least one for each part.
        seed: of the draw and of which requests the canary takes.
    """
    choose = random.Random(seed)  # noqa: S311 - traffic, no secret
    drawn = choose.choices(prompts, weights=[prompt.weight for prompt in prompts], k=requests)
    turns: list[Turn] = []
    for part, share in enumerate(SHARES):
        ids = [prompt.id for prompt in drawn[part * requests // len(SHARES) : (part + 1) * requests // len(SHARES)]]
        moved = set(choose.sample(range(len(ids)), round(share * len(ids))))
        turns += [
            Turn(prompt_id=prompt_id, worker=Worker.NEW if place in moved else Worker.OLD)
            for place, prompt_id in enumerate(ids)
        ]
    return tuple(turns)
