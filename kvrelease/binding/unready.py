"""A replica that cannot be asked: the others are, and the report names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from kvrelease.artifacts import Fault, fault_of
from kvrelease.engines.base import shown_replica
from kvrelease.errors import KvreleaseError, most_serious

T = TypeVar("T")


class Unready(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that could not be opened or prepared; nothing was generated on it.

    Attributes:
        url: which one.
        name: of which `url` is one address; None where the URL is what was given.
        rank: data-parallel rank; None where the engine has one cache.
        error: what was tried, and what was found.
    """

    url: str
    name: str | None = None
    rank: int | None = None
    error: KvreleaseError

    @property
    def shown(self) -> str:
        """How people read which replica this is."""
        return shown_replica(self.url, name=self.name, rank=self.rank)

    @property
    def fault(self) -> Fault:
        """The same as part of a report."""
        return fault_of(self.error, where=self.shown)


def ready_ones(found: Iterable[T | Unready]) -> tuple[tuple[T, ...], tuple[Unready, ...]]:
    """Those that can be asked, and those that cannot, each in their order."""
    ready: list[T] = []
    unready: list[Unready] = []
    for one in found:
        if isinstance(one, Unready):
            unready.append(one)
        else:
            ready.append(one)
    return tuple(ready), tuple(unready)


def require_one_ready(found: Sequence[T | Unready]) -> tuple[tuple[T, ...], tuple[Unready, ...]]:
    """As `ready_ones`, where at least one can be asked.

    Raises:
        KvreleaseError: none can; the most serious of the reasons.
    """
    ready, unready = ready_ones(found)
    if unready and not ready:
        raise most_serious([one.error for one in unready])
    return ready, unready
