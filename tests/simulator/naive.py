"""An independent prefix cache, written as vLLM writes it: pages with ids, reference counts and one list of free pages.

Slow and plain. Source: vLLM 0.32, vllm/v1/core/block_pool.py and kv_cache_utils.py.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(eq=False)
class Page:
    """One physical block."""

    users: int = 0
    key: object | None = None


@dataclasses.dataclass(eq=False)
class Flight:
    """A request in flight."""

    hits: int
    pages: list[Page]
    keys: list[object]
    entered: int


class NaiveCache:
    """The queue as a list, the map from key to pages as lists in order of insertion."""

    def __init__(self, capacity: int, *, hits_in_flight: bool) -> None:
        self.free = [Page() for _ in range(capacity)]
        self.cached: dict[object, list[Page]] = {}
        self.hits_in_flight = hits_in_flight
        self.evicted = 0

    def begin(self, blocks: list[object], *, limit: int, tail: int, answer: int) -> Flight | None:
        hit: list[Page] = []
        for key in blocks[:limit]:
            if not self.cached.get(key):
                break
            hit.append(self.cached[key][0])
        keys = [*blocks, *(object() for _ in range(answer))]
        needed = len(keys) - len(hit) + tail
        if needed > len(self.free) - sum(page.users == 0 for page in hit):
            return None
        for page in hit:
            if page.users == 0:
                self.free.remove(page)
            page.users += 1
        pages = list(hit)
        for _ in range(needed):
            page = self.free.pop(0)
            if page.key is not None:
                self.cached[page.key].remove(page)
                page.key = None
                self.evicted += 1
            page.users = 1
            pages.append(page)
        flight = Flight(hits=len(hit), pages=pages, keys=keys, entered=len(hit))
        if self.hits_in_flight:
            self.enter(flight, len(blocks))
        return flight

    def enter(self, flight: Flight, upto: int) -> None:
        for position in range(flight.entered, upto):
            page = flight.pages[position]
            page.key = flight.keys[position]
            self.cached.setdefault(page.key, []).append(page)
        flight.entered = max(flight.entered, upto)

    def finish(self, flight: Flight) -> None:
        self.enter(flight, len(flight.keys))
        first: list[Page] = []
        last: list[Page] = []
        for page in reversed(flight.pages):
            page.users -= 1
            if page.users == 0:
                (first if page.key is None else last).append(page)
        self.free = [*first, *self.free, *last]
