"""When caches are emptied for the reference leg, where the user permits it: last of all, and once for each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvrelease.artifacts import Fault, fault_of
from kvrelease.binding.flushing import Flushing
from kvrelease.errors import KvreleaseError
from kvrelease.verify.legs import Collector


class Flushes:
    """The last resort of each replica that wants it, when everything else of every replica is recorded.

    A flush empties all ranks behind a URL: what each of them has to be asked before is asked first.
    """

    def __init__(self, collectors: Sequence[Collector], flushing: Flushing) -> None:
        """Knows all of `collectors`, of which some may want `flushing`."""
        self._flushing = flushing
        self._by_url: dict[str, list[Collector]] = {}
        for collector in collectors:
            self._by_url.setdefault(collector.replica.identity.url, []).append(collector)
        self._left_out: list[Collector] = []

    def leave_out(self, collector: Collector) -> None:
        """A replica that failed is asked no more."""
        self._left_out.append(collector)

    async def run(self, *, save: Callable[[], None]) -> list[Fault]:
        """Flushes what wants it; the faults of those that failed meanwhile, or whose evidence could not be saved.

        Of an engine whose evidence could not be saved nothing was emptied.
        """
        faults: list[Fault] = []
        for all_of_url in self._by_url.values():
            wanting = [one for one in all_of_url if one.last_resort.is_wanted and one not in self._left_out]
            try:
                for one in wanting:
                    await one.last_resort.prepare()
                if any(one.last_resort.is_prepared for one in wanting):
                    save()
                for one in wanting:
                    await one.last_resort.empty(self._flushing)
            except KvreleaseError as error:
                faults.append(fault_of(error, where=all_of_url[0].replica.identity.shown))
            finally:
                self._forget(one for one in all_of_url if one not in wanting)
        return faults

    def _forget(self, others: Iterable[Collector]) -> None:
        """Other ranks of an engine that was emptied hold nothing any more either."""
        for one in others:
            if self._flushing.has_emptied(one.replica):
                self._flushing.forget(one.replica)
