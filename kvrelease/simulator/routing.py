"""Which replica a request goes to.

Pure: a policy sees how loaded the replicas are and, if it wants, what their caches would hit.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from blake3 import blake3

from kvrelease.simulator.traffic import SimulatedRequest


class Target(Protocol):
    """A replica, as a router sees it."""

    in_flight: int  # requests that were sent there and are not finished, waiting ones included
    prompt_tokens: int  # of the requests that have begun there

    def would_hit(self, request: SimulatedRequest) -> int:
        """Leading blocks of a request that are cached there now."""


Router = Callable[[SimulatedRequest, Sequence[Target]], int]


class Routing(enum.StrEnum):
    """The policies that can be named."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    STICKY = "sticky"
    PREFIX_AWARE = "prefix-aware"


# A busy replica is passed over when it has this many requests more than the idlest: one batch of a small engine. The
# routers that do this in production let it be set too (SGLang's `--balance-abs-threshold` is 64 of many more).
PREFIX_AWARE_SLACK = 8


def route_by(routing: Routing, *, seed: int = 0, slack: int = PREFIX_AWARE_SLACK) -> Router:
    """The policy of a name.

    - `round-robin`: one after the other.
    - `random`: uniformly, from a seed.
    - `least-loaded`: the fewest requests in flight, then the fewest prompt tokens begun so far, then the first.
    - `sticky`: the replica that a hash of the session names; requests of nobody's session go round.
    - `prefix-aware`: the replica that holds most leading blocks of the prompt *now*, as a router that follows the
      engines' cache events knows; among equal ones, and among those only that have at most `slack` requests in flight
      more than the idlest, the least loaded.

    Args:
        routing: which.
        seed: of `random` and of the hash of `sticky`.
        slack: see `prefix-aware`.
    """
    match routing:
        case Routing.ROUND_ROBIN:
            return _RoundRobin()
        case Routing.RANDOM:
            generator = random.Random(seed)  # noqa: S311 - a simulation
            return lambda _request, replicas: generator.randrange(len(replicas))
        case Routing.LEAST_LOADED:
            return lambda _request, replicas: min(range(len(replicas)), key=lambda index: _load(replicas, index))
        case Routing.STICKY:
            return _Sticky(seed)
        case Routing.PREFIX_AWARE:
            return lambda request, replicas: _prefix_aware(request, replicas, slack=slack)


def _load(replicas: Sequence[Target], index: int) -> tuple[int, int, int]:
    return replicas[index].in_flight, replicas[index].prompt_tokens, index


def _prefix_aware(request: SimulatedRequest, replicas: Sequence[Target], *, slack: int) -> int:
    idlest = min(replica.in_flight for replica in replicas)
    open_ones = [index for index, replica in enumerate(replicas) if replica.in_flight <= idlest + slack]
    return min(open_ones, key=lambda index: (-replicas[index].would_hit(request), *_load(replicas, index)))


class _RoundRobin:
    def __init__(self) -> None:
        self._sent = 0

    def __call__(self, _request: SimulatedRequest, replicas: Sequence[Target]) -> int:
        self._sent += 1
        return (self._sent - 1) % len(replicas)


class _Sticky:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._others = _RoundRobin()

    def __call__(self, request: SimulatedRequest, replicas: Sequence[Target]) -> int:
        if request.session is None:
            return self._others(request, replicas)
        digest = blake3(f"{self._seed} {request.session}".encode("utf-8", "surrogatepass")).digest(length=8)
        return int.from_bytes(digest, "little") % len(replicas)
