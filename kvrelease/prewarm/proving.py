"""Asking one replica again as production asks it: what hits now is resident."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from kvrelease.binding.control import with_nonce_in_front
from kvrelease.binding.deployment import Replica
from kvrelease.binding.observe import Leg, Witness
from kvrelease.binding.salts import probe_salt
from kvrelease.engines.base import Request
from kvrelease.prewarm.proof import Tally, second_witness, store_use, time_witness
from kvrelease.prewarm.result import SecondWitness, SlotResult, StoreUse, TimeWitness
from kvrelease.prewarm.sending import Sender

# Prompts asked a second time with a prefix that nobody has, where nobody tells cached tokens.
TIMED_PROMPTS = 5


class Proof:
    """What one replica shows when it is asked again.

    Args:
        replica: that was warmed.
        sender: to it.
        requests: by prompt id, as production sends them.
        note: told of each prompt that was asked again.
        heard: called after each request.

    Attributes:
        passes: over the sample, the last one last.
        by_slot: over slots by their numbers.
        slots: what each of these showed.
        second: the counters, beside the last pass; None before the first.
        store: what was asked of a store outside the process by the end of it.
        times: where nobody told hits, what times of the last pass suggest.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        sender: Sender,
        requests: Mapping[str, Request],
        note: Callable[[str, Leg], None],
        heard: Callable[[], None],
    ) -> None:
        self._observer = replica.observer
        self._has_salt = replica.identity.capabilities.has_salt
        self._sender = sender
        self._requests = requests
        self._note = note
        self._heard = heard
        self.passes: list[Tally] = []
        self.by_slot = Tally()
        self.slots: list[SlotResult] = []
        self.second: SecondWitness | None = None
        self.store: StoreUse | None = None
        self.times: TimeWitness | None = None

    @property
    def last(self) -> Tally:
        """The pass that counts; an empty one before the first."""
        return self.passes[-1] if self.passes else Tally()

    async def ask(self, prompt_ids: Sequence[str], *, with_times: bool) -> None:
        """One pass: as production does, one at a time.

        Args:
            prompt_ids: of the sample.
            with_times: nobody tells hits: the first few are asked uncached as well.
        """
        made = Tally()
        self.passes.append(made)
        before = await self._sender.counters() if self._observer.usage_speaks else None
        cold_s: list[float] = []
        warm_s: list[float] = []
        for number, prompt_id in enumerate(prompt_ids):
            cold = await self._uncached_ttft(prompt_id) if with_times and number < TIMED_PROMPTS else None
            leg = await self._tried(self._requests[prompt_id], prompt_id)
            if leg is None:
                continue
            made.add(leg)
            self._note(prompt_id, leg)
            if cold is not None and leg.observation.ttft_s is not None:
                cold_s.append(cold)
                warm_s.append(leg.observation.ttft_s)
        after = await self._sender.counters() if before is not None else None
        self.second = second_witness(made, before=before, after=after)
        self.store = store_use(after)
        if made.witness is Witness.NOBODY:
            self.times = time_witness(cold_s, warm_s)

    async def ask_slots(self, slot_of: Mapping[str, int]) -> None:
        """Asks each slot by its number for the prompt that was sent to it, and stops at the first that lost it.

        A server that empties idle slots into host memory computes the whole prompt when a request names an empty one.
        Source: https://github.com/ggml-org/llama.cpp/issues/28139.
        """
        for prompt_id, slot in sorted(slot_of.items(), key=lambda item: item[1]):
            leg = await self._tried(msgspec.structs.replace(self._requests[prompt_id], slot=slot), prompt_id)
            if leg is None:
                continue
            self.by_slot.add(leg)
            self.slots.append(
                SlotResult(
                    slot=slot,
                    prompt=prompt_id,
                    cached_tokens=leg.cached_tokens,
                    cacheable_tokens=leg.cacheable_tokens,
                )
            )
            if leg.hits_mostly is False:
                return

    async def _tried(self, request: Request, prompt_id: str) -> Leg | None:
        leg = await self._sender.tried(request, prompt_id=prompt_id)
        self._heard()
        return leg

    async def _uncached_ttft(self, prompt_id: str) -> float | None:
        """Time to the first token of the same prompt where nothing of it can hit; None where that cannot be asked.

        In a key space of its own where the engine has salts, else behind text that nobody has cached.
        """
        request = self._requests[prompt_id]
        if self._has_salt:
            cold: Request | None = msgspec.structs.replace(request, salt=probe_salt("cold"))
        else:
            cold = with_nonce_in_front(request)
        leg = None if cold is None else await self._sender.tried(cold)
        return None if leg is None else leg.observation.ttft_s
