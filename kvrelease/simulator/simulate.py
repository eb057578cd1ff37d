"""A run of traffic through replicas with prefix caches: who hits what.

Pure: the clock is simulated, and only as fine as it must be to tell which requests overlap.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from kvrelease.simulator.routing import Router, Routing, route_by
from kvrelease.simulator.traffic import RequestSize, SimulatedRequest


class Holding(Protocol):
    """What a request in flight holds of a cache."""

    @property
    def hits(self) -> int:
        """Leading blocks that were cached when it began."""


H = TypeVar("H", bound=Holding)


class Cache(Protocol[H]):
    """What a simulated replica caches with: `SimulatedBlocks`, `SlotCache`."""

    evicted: int

    def peek(self, blocks: Sequence[Hashable]) -> int:
        """Leading blocks that would hit now."""

    def request(
        self, blocks: Sequence[Hashable], *, hit_limit: int | None, tail_blocks: int, answer_blocks: int
    ) -> int | None:
        """Leading blocks that hit, of a request that nobody overlaps; None when it does not fit an empty cache."""

    def begin(
        self, blocks: Sequence[Hashable], *, hit_limit: int | None, tail_blocks: int, answer_blocks: int
    ) -> H | None:
        """Room for a request; None when there is none now."""

    def computed(self, hold: H) -> None:
        """Its prompt is computed."""

    def finish(self, hold: H) -> None:
        """It is over."""


class Speeds(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests take, which decides who overlaps whom.

    Attributes:
        prefill_tokens_per_s: of one request's prompt, hits taken off.
        decode_tokens_per_s: of one request's answer.
        follows_arrivals: requests come when they came (`at_s`); else the next one comes as soon as one of
            `concurrency` is over.
    """

    prefill_tokens_per_s: float = 10_000.0
    decode_tokens_per_s: float = 50.0
    follows_arrivals: bool = False


class ReplicaFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica did.

    Attributes:
        requests: sent there.
        prompt_tokens: of them.
        hit_tokens: of these.
        evicted: blocks that were overwritten (symbols, with slots).
        refused: requests that do not fit an empty replica; nothing of them is computed.
    """

    requests: int
    prompt_tokens: int
    hit_tokens: int
    evicted: int
    refused: int


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome.

    Attributes:
        hit_tokens: [requests] in the order given.
        hit_rate: hits over prompt tokens, by weight, 0 … 1; None without prompt tokens.
        cacheable_hit_rate: hits over the most that could hit, by weight; None likewise.
        replicas: in order.
    """

    hit_tokens: Sequence[int]
    hit_rate: float | None
    cacheable_hit_rate: float | None
    replicas: tuple[ReplicaFigures, ...]

    @property
    def evicted(self) -> int:
        """Of all replicas."""
        return sum(replica.evicted for replica in self.replicas)


def simulate(
    traffic: Iterable[SimulatedRequest],
    caches: Sequence[Cache[H]],
    *,
    block_tokens: int,
    routing: Routing | Router = Routing.ROUND_ROBIN,
    seed: int = 0,
    concurrency: int = 1,
    speeds: Speeds | None = None,
) -> Simulation:
    """Sends traffic through replicas.

    Args:
        traffic: read once, one request at a time.
        caches: [replicas] one each; warm ones may be given.
        block_tokens: of a block; 1 for slots of token ids.
        routing: which replica a request goes to: a named policy, or one of your own (`routing.Target` is what it sees).
        seed: of a named policy.
        concurrency: requests in flight in all, or with `speeds.follows_arrivals` on each replica, others wait there.
        speeds: how long requests take; by default, with more than one in flight, that of `Speeds()`.

    Returns:
        Hits per request and the figures; memory beyond the caches grows by 8 bytes a request.
    """
    assert concurrency >= 1, "somebody has to be served"
    route = route_by(routing, seed=seed) if isinstance(routing, Routing) else routing
    run = _Run(caches, block_tokens=block_tokens, route=route, speeds=speeds or Speeds(), limit=concurrency)
    if concurrency == 1 and speeds is None:
        run.one_by_one(traffic)
    elif speeds is not None and speeds.follows_arrivals:
        run.as_they_came(traffic)
    else:
        run.closed_loop(traffic)
    return run.outcome()


class _Admitted(NamedTuple, Generic[H]):
    """A request that a replica has begun.

    Attributes:
        hold: what it holds; None where it is over already: it was alone, or does not fit an empty cache.
        size: what it needs.
        hit_tokens: of its prompt; 0 for one that does not fit an empty cache.
    """

    hold: H | None
    size: RequestSize
    hit_tokens: int


class _Replica(Generic[H]):
    """One replica and its queue."""

    def __init__(self, cache: Cache[H], *, block_tokens: int) -> None:
        self.cache = cache
        self.in_flight = 0
        self.prompt_tokens = 0
        self.running = 0
        self.waiting: deque[tuple[int, SimulatedRequest]] = deque()
        self.requests = 0
        self.hit_tokens = 0
        self.refused = 0
        self._evicted_before = cache.evicted
        self._block_tokens = block_tokens

    def would_hit(self, request: SimulatedRequest) -> int:
        return min(self.cache.peek(request.blocks), request.size(self._block_tokens).hit_limit)

    def serve(self, request: SimulatedRequest) -> _Admitted[H]:
        """Begins and ends a request that nobody overlaps."""
        size = request.size(self._block_tokens)
        hits = self.cache.request(
            request.blocks, hit_limit=size.hit_limit, tail_blocks=size.tail_blocks, answer_blocks=size.answer_blocks
        )
        return self._admitted(size, hits, hold=None)

    def begin(self, request: SimulatedRequest) -> _Admitted[H] | None:
        """Begins a request; None when it has to wait for others."""
        size = request.size(self._block_tokens)
        hold = self.cache.begin(
            request.blocks, hit_limit=size.hit_limit, tail_blocks=size.tail_blocks, answer_blocks=size.answer_blocks
        )
        if hold is None and self.running:
            return None
        return self._admitted(size, None if hold is None else hold.hits, hold=hold)

    def _admitted(self, size: RequestSize, hits: int | None, *, hold: H | None) -> _Admitted[H]:
        hit_tokens = (hits or 0) * self._block_tokens
        self.prompt_tokens += size.tokens
        self.hit_tokens += hit_tokens
        self.running += hold is not None
        self.in_flight -= hold is None
        self.refused += hits is None
        return _Admitted(hold, size, hit_tokens)

    def figures(self) -> ReplicaFigures:
        return ReplicaFigures(
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            evicted=self.cache.evicted - self._evicted_before,
            refused=self.refused,
        )


class _Run(Generic[H]):
    """One simulation under way."""

    def __init__(
        self, caches: Sequence[Cache[H]], *, block_tokens: int, route: Router, speeds: Speeds, limit: int
    ) -> None:
        self._replicas = [_Replica(cache, block_tokens=block_tokens) for cache in caches]
        self._route = route
        self._speeds = speeds
        self._limit = limit
        self._block_tokens = block_tokens
        self._now_s = 0.0
        self._events: list[tuple[float, int, bool, int, H]] = []  # (when, tie, is over, replica, hold)
        self._ties = 0
        self._hits = array("q")
        # By weight, in tokens:
        self._hit = 0.0
        self._cacheable = 0.0
        self._tokens = 0.0

    def one_by_one(self, traffic: Iterable[SimulatedRequest]) -> None:
        for request in traffic:
            admitted = self._replicas[self._sent(request)].serve(request)
            self._count(len(self._hits) - 1, request, admitted)

    def closed_loop(self, traffic: Iterable[SimulatedRequest]) -> None:
        for request in traffic:
            while sum(replica.in_flight for replica in self._replicas) >= self._limit:
                self._step()
            self._submit(request)
        while self._events:
            self._step()

    def as_they_came(self, traffic: Iterable[SimulatedRequest]) -> None:
        for request in traffic:
            # A request without a time, or out of order, comes with the one before it.
            arrival_s = self._now_s if request.at_s is None else max(request.at_s, self._now_s)
            while self._events and self._events[0][0] <= arrival_s:
                self._step()
            self._now_s = arrival_s
            self._submit(request)
        while self._events:
            self._step()

    def outcome(self) -> Simulation:
        return Simulation(
            hit_tokens=self._hits,
            hit_rate=self._hit / self._tokens if self._tokens else None,
            cacheable_hit_rate=self._hit / self._cacheable if self._cacheable else None,
            replicas=tuple(replica.figures() for replica in self._replicas),
        )

    def _sent(self, request: SimulatedRequest) -> int:
        index = self._route(request, self._replicas)
        replica = self._replicas[index]
        replica.in_flight += 1
        replica.requests += 1
        self._hits.append(0)
        return index

    def _submit(self, request: SimulatedRequest) -> None:
        index = self._sent(request)
        self._replicas[index].waiting.append((len(self._hits) - 1, request))
        self._admit(index)

    def _admit(self, index: int) -> None:
        """Begins whatever waits and has room, in order of arrival."""
        replica = self._replicas[index]
        while replica.waiting and replica.running < self._limit:
            number, request = replica.waiting[0]
            admitted = replica.begin(request)
            if admitted is None:
                return
            replica.waiting.popleft()
            self._count(number, request, admitted)
            if admitted.hold is not None:
                prefill_s = (admitted.size.tokens - admitted.hit_tokens) / self._speeds.prefill_tokens_per_s
                ready_s = self._now_s + prefill_s
                over_s = ready_s + request.answer_tokens / self._speeds.decode_tokens_per_s
                self._schedule(ready_s, index, admitted.hold, is_over=False)
                self._schedule(over_s, index, admitted.hold, is_over=True)

    def _schedule(self, when_s: float, index: int, hold: H, *, is_over: bool) -> None:
        self._ties += 1
        heapq.heappush(self._events, (when_s, self._ties, is_over, index, hold))

    def _step(self) -> None:
        self._now_s, _tie, is_over, index, hold = heapq.heappop(self._events)
        replica = self._replicas[index]
        if not is_over:
            replica.cache.computed(hold)
            return
        replica.cache.finish(hold)
        replica.running -= 1
        replica.in_flight -= 1
        self._admit(index)

    def _count(self, number: int, request: SimulatedRequest, admitted: _Admitted[H]) -> None:
        self._hits[number] = admitted.hit_tokens
        weight = request.weight
        self._hit += weight * admitted.hit_tokens
        self._cacheable += weight * admitted.size.hit_limit * self._block_tokens
        self._tokens += weight * admitted.size.tokens
