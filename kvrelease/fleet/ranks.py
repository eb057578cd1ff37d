"""Which data-parallel ranks of an engine to ask, each being a cache of its own behind one URL."""

from __future__ import annotations

from kvrelease.engines.base import EngineIdentity, EngineKind, RankPin
from kvrelease.errors import UsageError

OFF = 1

# The kinds that route by a request's header.
_WITH_RANKS = (EngineKind.VLLM, EngineKind.SGLANG)


def parse_ranks(text: str) -> int | None:
    """The number of ranks in `auto`, `off` or a number; None for `auto`.

    Raises:
        UsageError: it is none of these.
    """
    match text.strip().lower():
        case "auto":
            return None
        case "off" | "false":  # YAML reads a bare `off` as false
            return OFF
        case word if word.isdecimal() and 1 <= int(word) <= 4096:
            return int(word)
        case word:
            raise UsageError(f"--data-parallel {word!r}: it is auto, off, or a number of ranks")


def pins_of(identity: EngineIdentity, *, wanted: int | None, listed: int | None) -> tuple[RankPin, ...]:
    """The ranks to ask one by one; empty where the engine is asked as a whole.

    Args:
        identity: of the engine, asked as a whole.
        wanted: number of ranks; None for those that its counters tell apart.
        listed: the one rank that a list of replicas names; None for all.

    Raises:
        UsageError: ranks are wanted of an engine that cannot be asked for one.
    """
    told = identity.ranks
    if identity.kind not in _WITH_RANKS:
        if listed is not None or wanted not in (None, OFF):
            raise UsageError(
                f"a data-parallel rank is named for {identity.url}, and an engine of kind {identity.kind} has none",
                hint="leave out the rank and --data-parallel",
            )
        return ()
    if listed is not None:
        return (RankPin(rank=listed, routed_as=told.index(listed) if listed in told else listed),)
    if wanted is None:
        # One series is an engine without ranks, or the one rank that a server of a larger group has to itself.
        return tuple(RankPin(rank=rank, routed_as=place) for place, rank in enumerate(told)) if len(told) > 1 else ()
    if wanted == OFF:
        return ()
    numbers = told if len(told) == wanted else range(wanted)
    return tuple(RankPin(rank=rank, routed_as=place) for place, rank in enumerate(numbers))
