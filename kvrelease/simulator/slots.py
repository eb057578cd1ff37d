"""The prompt cache of a server with slots, as llama.cpp has it: each slot remembers the last prompt it served.

Pure. A prompt is a sequence of symbols, such as token ids.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from kvrelease.chain import common_prefix

# llama.cpp's `--slot-prompt-similarity`. Source: llama.cpp b11434, common/common.h (`slot_prompt_similarity`).
DEFAULT_SIMILARITY = 0.1


class SlotHold:
    """A slot in use.

    Attributes:
        hits: leading symbols that it kept.
    """

    __slots__ = ("hits", "prompt", "slot")

    def __init__(self, *, hits: int, prompt: Sequence[Hashable], slot: int) -> None:
        self.hits = hits
        self.prompt = prompt
        self.slot = slot


class SlotCache:
    """A few slots, one prompt each: the most alike is taken, else the one unused for longest.

    Alike is the common prefix over the length of the new prompt, which must exceed a threshold; of equal ones the
    first slot wins. Among slots unused for equally long, so at the start, the last one is taken. What a slot held
    beyond the common prefix is lost. Neither the prompts that the server keeps in host memory (`--cache-ram`), nor
    reuse of shifted chunks, nor the tokens that were generated are simulated.

    Attributes:
        evicted: symbols that were lost to another prompt so far.

    Source:
        llama.cpp b11434, tools/server/server-context.cpp (`get_available_slot`).
    """

    def __init__(self, slots: int, *, similarity: float = DEFAULT_SIMILARITY) -> None:
        """Makes empty ones.

        Args:
            slots: `-np`, >= 1.
            similarity: `--slot-prompt-similarity`, 0 … 1; 0 never looks for a similar prompt, as the server does.
        """
        assert slots >= 1, "a server has at least one slot"
        self.evicted = 0
        self._similarity = similarity
        self._prompts: list[Sequence[Hashable]] = [()] * slots
        self._used_at = [-1] * slots
        self._busy = [False] * slots
        self._clock = 0

    def peek(self, symbols: Sequence[Hashable]) -> int:
        """How many leading symbols would be kept now; changes nothing."""
        slot = self._choose(symbols)
        return 0 if slot is None else common_prefix(self._prompts[slot], symbols)

    def most_alike(self, symbols: Sequence[Hashable], *, among: Iterable[int]) -> int:
        """Of these slots, the one that would keep most; of equal ones the one unused for longest, then the last."""
        return max(
            among,
            key=lambda slot: (common_prefix(self._prompts[slot], symbols), -self._used_at[slot], slot),
        )

    def request(
        self,
        symbols: Sequence[Hashable],
        *,
        hit_limit: int | None = None,
        tail_blocks: int = 1,
        answer_blocks: int = 0,
        slot: int | None = None,
    ) -> int:
        """A request that nobody else overlaps: how many of its leading symbols were kept."""
        hold = self.begin(symbols, hit_limit=hit_limit, tail_blocks=tail_blocks, answer_blocks=answer_blocks, slot=slot)
        assert hold is not None, "somebody else is being served"
        self.finish(hold)
        return hold.hits

    def begin(
        self,
        symbols: Sequence[Hashable],
        *,
        hit_limit: int | None = None,
        tail_blocks: int = 1,  # noqa: ARG002 - a slot has room for a whole context
        answer_blocks: int = 0,  # noqa: ARG002 - as above
        slot: int | None = None,
    ) -> SlotHold | None:
        """Takes a slot; None when all are busy, or the one that was asked for is.

        Args:
            symbols: [symbols] of the prompt.
            hit_limit: most symbols that can hit; the last token of a prompt is computed anew.
            tail_blocks: no matter here.
            answer_blocks: no matter here.
            slot: the slot that the request names (`id_slot`); None for the server's choice.
        """
        if slot is None:
            slot = self._choose(symbols)
        elif self._busy[slot]:
            return None
        if slot is None:
            return None
        common = common_prefix(self._prompts[slot], symbols)
        self.evicted += len(self._prompts[slot]) - common
        self._busy[slot] = True
        hits = common if hit_limit is None else min(common, hit_limit)
        return SlotHold(hits=hits, prompt=symbols, slot=slot)

    def computed(self, hold: SlotHold) -> None:
        """Nothing: no other request can use a slot that is busy."""

    def finish(self, hold: SlotHold) -> None:
        """Gives the slot back, with the prompt in it."""
        self._clock += 1
        self._prompts[hold.slot] = hold.prompt
        self._used_at[hold.slot] = self._clock
        self._busy[hold.slot] = False

    def _choose(self, symbols: Sequence[Hashable]) -> int | None:
        idle = [slot for slot, is_busy in enumerate(self._busy) if not is_busy]
        if not idle:
            return None
        if self._similarity and symbols:
            shared = {slot: common_prefix(self._prompts[slot], symbols) for slot in idle}
            best = max(idle, key=lambda slot: (shared[slot], -slot))
            if shared[best] / len(symbols) > self._similarity:
                return best
        return min(idle, key=lambda slot: (self._used_at[slot], -slot))
