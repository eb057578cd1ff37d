"""What one replica is asked just before its cache is emptied, and just after: the evidence of a flush.

It comes after everything else, because it destroys what was there. When it comes, of all ranks behind a URL, is
`flushes`' business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec.structs import replace

from kvrelease.binding.deployment import Replica
from kvrelease.binding.flushing import Flushing
from kvrelease.binding.observe import Leg
from kvrelease.engines.base import Request
from kvrelease.errors import UsageError
from kvrelease.verify.asking import suspects_of
from kvrelease.verify.evidence import FlushEvidence, Isolation, Recheck, ReplicaEvidence
from kvrelease.verify.floor import judging_floor
from kvrelease.verify.ladder import Ladder
from kvrelease.verify.recheck import probes_to_recheck
from kvrelease.verify.repeated_legs import RepeatedLegs
from kvrelease.verify.repeats import in_turn
from kvrelease.verify.uniques import Observe


class LastResort:
    """The flush of one replica's cache, where the user permits it.

    Args:
        replica: under test.
        is_allowed: its cache may be emptied.
        ladder: told where the flush isolates nothing.
        production: the production legs of each probe.
        refer_by: sends the reference leg of one way.
        repeated: sends repeats.
        seen: everything observed so far.
        as_production: the request of a prompt as users send it.
        observe: sends a request.
        tell: shown while it goes on.

    Attributes:
        flush: what came of it; None while nothing was to be emptied.
        rechecks: stale probes, asked again after it.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        is_allowed: bool,
        ladder: Ladder,
        production: Mapping[str, Sequence[Leg]],
        refer_by: Callable[[Isolation, str], Awaitable[Leg | None]],
        repeated: RepeatedLegs,
        seen: Callable[[], ReplicaEvidence],
        as_production: Callable[[str], Request],
        observe: Observe,
        tell: Callable[[str], None],
    ) -> None:
        self.flush: FlushEvidence | None = None
        self.rechecks: list[Recheck] = []
        self._replica = replica
        self._is_allowed = is_allowed
        self._ladder = ladder
        self._production = production
        self._refer_by = refer_by
        self._repeated = repeated
        self._seen = seen
        self._as_production = as_production
        self._observe = observe
        self._tell = tell

    @property
    def is_wanted(self) -> bool:
        """Whether it is allowed, and isolates reference legs, or tells cache from model after a failure."""
        return self._is_allowed and bool(self._unreferred() or probes_to_recheck(self._seen()))

    async def prepare(self) -> None:
        """What has to be asked while the cache is as it was: production's repeats, and a hit that proves the flush.

        Raises:
            KvreleaseError: the engine failed.
        """
        for prompt_id in self._unreferred():
            # What this release computed itself, as far as the ledger knows, can hardly be stale: it is not asked again.
            if not self._replica.identity.capabilities.reference_heals and any(
                leg.cached_tokens and leg.foreign_tokens != 0 for leg in self._production[prompt_id]
            ):
                await self._repeated.all_of_production(prompt_id)
        asked_after = self._unreferred() or probes_to_recheck(self._seen())
        probe = max(asked_after, key=lambda one: self._production[one][-1].cached_tokens or 0)
        leg = await self._observe(replace(self._as_production(probe), max_tokens=1))
        if not leg.cached_tokens:
            if self._unreferred():
                why = "nothing hits now, or nobody witnesses it, so that a flush emptied anything could not be shown"
                self._ladder.failed(Isolation.FLUSH, probe=probe, why=why)
            return
        answered = self._replica.observer.spent.requests
        self.flush = FlushEvidence(probe=probe, cached_before=leg.cached_tokens, requests_before=answered)

    @property
    def is_prepared(self) -> bool:
        """Whether everything is asked that has to be before the cache is emptied."""
        return self.flush is not None and not self.flush.is_done

    async def empty(self, flushing: Flushing) -> None:
        """Empties the cache, and sends the probes that have no reference leg once more as production.

        Raises:
            KvreleaseError: the engine failed.
        """
        if self.flush is None:
            return
        self._tell(f"emptying the cache of {self._replica.identity.shown} (--allow-flush)")
        try:
            says_done = await flushing.flush(self._replica)
        except UsageError as error:
            self.flush = replace(self.flush, refusal=error.message)
            if self._unreferred():
                self._ladder.failed(Isolation.FLUSH, probe=self.flush.probe, why=error.message)
            return
        self.flush = replace(self.flush, is_done=True, says_done=says_done)
        probe, stale = self.flush.probe, probes_to_recheck(self._seen())
        is_for_reference = probe in self._unreferred()
        others = [one for one in self._unreferred() if one != probe]
        leg = await (self._refer_by(Isolation.FLUSH, probe) if is_for_reference else self._recheck(probe))
        self.flush = replace(self.flush, cached_after=None if leg is None else leg.cached_tokens)
        if not self.flush.is_proved:
            return
        for prompt_id in stale:
            if prompt_id != probe:
                await self._recheck(prompt_id)
        for prompt_id in others:
            await self._refer_by(Isolation.FLUSH, prompt_id)
        seen = self._seen()
        suspects = suspects_of(seen.probes, floor=judging_floor(seen))
        asked_before = [one for one in suspects if one.repeats.production and not one.repeats.clean]
        await self._repeated.all_clean(one.id for one in in_turn(asked_before))
        await self._replica.observer.require_same_process()

    async def _recheck(self, prompt_id: str) -> Leg:
        """A stale probe as production, over an emptied cache."""
        leg = await self._observe(self._as_production(prompt_id))
        self.rechecks.append(Recheck(probe=prompt_id, leg=leg))
        return leg

    def _unreferred(self) -> list[str]:
        """Probes of which no reference leg was proved cold."""
        return [probe.id for probe in self._seen().probes if probe.cold is None]
