"""Which prompts an engine with slots keeps, each in a slot of its own by number, and what sending them costs; pure.

A slot holds one prompt, and a request goes to the slot that is most like it. Prompts that share a system prompt would
therefore follow each other through one slot while the others stay empty, and the second user to come at the same time
would meet an empty one. So those that are to stay are sent to a slot by its number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from kvrelease.prewarm.capacity import keep, share_saved, ways
from kvrelease.simulator.slots import DEFAULT_SIMILARITY, SlotCache
from kvrelease.workload.prefix_tree import PrefixTree


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to slots, in which order, and where it stays.

    Attributes:
        order: ids to send, one at a time: those that stay come last, the most valuable at the very end.
        residents: ids that stay, most valuable first, at most one for each slot.
        slot_of: by id of those that stay, the number of the slot that each is sent to; empty where none is named.
        control_slot: the slot for the control, which is sent after the first prompt: not the one that this took; None
            where none is named.
        cost_tokens: by id, what sending it makes slots compute that were empty before the first.
        share: of all tokens of traffic, those that it saves while what stays is there, 0 to 1.
    """

    order: tuple[str, ...]
    residents: tuple[str, ...]
    slot_of: dict[str, int]
    control_slot: int | None
    cost_tokens: dict[str, int]
    share: float

    @property
    def passing(self) -> tuple[str, ...]:
        """Ids that are sent and get no slot to stay in, most valuable last."""
        staying = frozenset(self.residents)
        return tuple(prompt_id for prompt_id in self.order if prompt_id not in staying)


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """Which slot a prompt is sent to by its number; of an engine without slots, or that keeps nothing there, none.

    Attributes:
        residents: as of a layout.
        slot_of: likewise.
        control_slot: likewise.
    """

    residents: tuple[str, ...] = ()
    slot_of: dict[str, int] = {}
    control_slot: int | None = None

    def for_control(self, resumed: Collection[str]) -> int | None:
        """The slot for the control: after an earlier run, which sent `resumed`, one whose prompt is yet to be sent."""
        taken = {slot for prompt_id, slot in self.slot_of.items() if prompt_id in resumed}
        if self.control_slot not in taken:
            return self.control_slot
        return next((slot for slot in self.slot_of.values() if slot not in taken), self.control_slot)

    def lost_to_control(self, sent: Collection[str], *, resumed: Collection[str]) -> tuple[str, ...]:
        """Of the prompts that are to stay and were `sent` before the control, those that it may have thrown out."""
        taken = self.for_control(resumed)
        return tuple(one for one in self.residents if one in sent and self.slot_of.get(one) == taken)

    def beside_control(self, sent: Collection[str], *, resumed: Collection[str]) -> str | None:
        """A prompt that was `sent`, lies in another slot than the control, and throws nobody out when asked again.

        None where no slot is named, or there is one only.
        """
        taken = self.for_control(resumed)
        if set(self.slot_of.values()) <= {taken}:
            return None
        staying = [one for one in self.residents if one in sent and self.slot_of[one] != taken]
        if staying:
            return staying[0]
        return next((one for one in sent if one not in self.slot_of), None)


def lay_out(
    tree: PrefixTree,
    *,
    tokens: Mapping[str, Sequence[int]],
    weights: Mapping[str, float],
    slots: int,
    by_number: bool = True,
) -> Layout:
    """The layout of a prompt set on so many slots.

    Those that stay are first the most valuable prompts of which each is unlike the others; then, where slots are sent
    to by their numbers, the most valuable of the rest. All others are sent before them, as production sends them: a
    server that keeps in host memory what a slot loses has those as well.

    Args:
        tree: of the whole prompt set's token ids, at blocks of one token.
        tokens: [prompts][tokens] the ids.
        weights: traffic weight by prompt id.
        slots: prompts that can be resident at once, >= 1.
        by_number: requests may name a slot, and it keeps what it got.
    """
    worth = ways(tree, weights)
    senders = keep(tree, weights=weights, room_blocks=None).senders
    ranked = sorted(senders, key=lambda prompt_id: (-worth[prompt_id], prompt_id))
    residents = _residents(tree, ranked, slots=slots, has_alike=by_number)
    staying = frozenset(residents)
    order = (*(one for one in reversed(ranked) if one not in staying), *reversed(residents))
    cache, free = SlotCache(slots), set(range(slots))
    # An idle server gives the first prompt its last slot, and the next one that is like nothing the slot before it.
    control_slot = max(slots - 2, 0) if by_number else None
    slot_of: dict[str, int] = {}
    cost_tokens: dict[str, int] = {}
    for number, prompt_id in enumerate(order):
        ids = tokens[prompt_id]
        if by_number and prompt_id in staying:
            slot_of[prompt_id] = cache.most_alike(ids, among=free)
            free.remove(slot_of[prompt_id])
        kept = cache.request(ids, hit_limit=max(len(ids) - 1, 0), slot=slot_of.get(prompt_id))
        cost_tokens[prompt_id] = len(ids) - kept
        if number == 0:
            cache.request(("the control",), slot=control_slot)
    return Layout(
        order=order,
        residents=residents,
        slot_of=slot_of,
        control_slot=control_slot,
        cost_tokens=cost_tokens,
        share=share_saved(tree, weights, resident=residents),
    )


def _residents(tree: PrefixTree, ranked: Sequence[str], *, slots: int, has_alike: bool) -> tuple[str, ...]:
    """Most valuable first; `ranked` is in that order."""
    found: list[str] = []
    for prompt_id in ranked:
        if len(found) < slots and all(_are_unlike(tree, prompt_id, other) for other in found):
            found.append(prompt_id)
    if has_alike:
        chosen = frozenset(found)
        found += [prompt_id for prompt_id in ranked if prompt_id not in chosen][: slots - len(found)]
    rank = {prompt_id: number for number, prompt_id in enumerate(ranked)}
    return tuple(sorted(found, key=rank.__getitem__))


def _are_unlike(tree: PrefixTree, one: str, other: str) -> bool:
    shared = tree.shared_tokens(one, other)
    return shared <= DEFAULT_SIMILARITY * min(tree.branches[one].tokens, tree.branches[other].tokens)
