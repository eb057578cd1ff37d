"""What to send, in which order, and what it costs: every block once, the most valuable first; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kvrelease.prewarm.capacity import head_room_blocks, keep
from kvrelease.prewarm.slots import Layout, Numbers
from kvrelease.workload.key_space import KeySpace, salt_mark
from kvrelease.workload.prefix_tree import PrefixTree


class KeySpaceCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one key space needs of a plan.

    Attributes:
        model: adapter, None for the served model.
        salt: mark of the tenant's own salt (never the salt), None for none.
        prompts: of the set, in this key space.
        requests: to send.
        sent_tokens: of these requests' prompts.
        lower_bound_tokens: of these, the fewest that must be computed.
        blocks: that are resident afterwards.
    """

    model: str | None
    salt: str | None
    prompts: int
    requests: int
    sent_tokens: int
    lower_bound_tokens: int
    blocks: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one replica.

    Attributes:
        prompts: prompts of the set.
        prompt_tokens: tokens of all of them, shared ones counted every time; None when the server does not tokenise.
        cacheable_tokens: of these, the most that hits can cover; None likewise.
        lower_bound_tokens: the fewest that an empty cache must compute to hold all blocks sent; with slots, what empty
            ones compute in this order, each for itself, which is less where the server fills one from host memory; None
            likewise.
        sent_tokens: tokens of the prompts that are sent; None likewise.
        blocks_needed: different blocks of the prompts that are sent; None likewise.
        stated_block_tokens: the block size that the user states for an engine that does not tell it; else None.
        blocks_available: what the engine's device cache holds; None when it does not tell.
        head_room_blocks: of these, what has to stay free for requests in flight and the control.
        expected_hit_rate: of all prompt tokens of the set's traffic, those that hit afterwards; with slots, what
            stays in them; None likewise.
        proved_share: of what the best choice that fits would save, what this one saves at least, 0 to 1; None likewise.
        dropped: prompts left out for capacity, least valuable first; they do not make the run incomplete.
        uncacheable: prompts shorter than one block: nothing of them can be cached.
        order: ids to send; of those that compute no block that is just being computed, the first is sent first.
        most_in_flight: requests that may be in flight together; None for as many as the run allows.
        proof_first: ids that must be resident at the end, first to be asked again; empty for the heaviest.
        without_slot: ids that are sent and get no slot to stay in, least valuable first: resident afterwards only where
            the server keeps in host memory what a slot loses, which nobody can ask without throwing others out; empty
            on engines without slots.
        slot_of: by id of those that stay, the slot that each is sent to by number; empty on engines without slots.
        control_slot: the slot that the control is sent to; None on engines without.
        key_spaces: the cost of each, where the set has several.
        cannot_be_cached: why nothing of any prompt can be cached, "cannot be cached: …"; None where something can.
        warnings: what the operator should know of this plan.
    """

    prompts: int
    prompt_tokens: int | None
    cacheable_tokens: int | None
    lower_bound_tokens: int | None
    sent_tokens: int | None = None
    blocks_needed: int | None
    stated_block_tokens: int | None = None
    blocks_available: int | None
    head_room_blocks: int = 0
    expected_hit_rate: float | None = None
    proved_share: float | None = None
    dropped: tuple[str, ...] = ()
    uncacheable: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    most_in_flight: int | None = None
    proof_first: tuple[str, ...] = ()
    without_slot: tuple[str, ...] = ()
    slot_of: dict[str, int] = {}
    control_slot: int | None = None
    key_spaces: tuple[KeySpaceCost, ...] = ()
    cannot_be_cached: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def numbers(self) -> Numbers:
        """Which slot each prompt is sent to."""
        return Numbers(residents=self.proof_first, slot_of=self.slot_of, control_slot=self.control_slot)


def plan_of_nothing(tree: PrefixTree, *, why: str, capacity_tokens: int | None) -> Plan:
    """The plan where nothing can be cached: nothing is sent.

    Args:
        tree: of the whole prompt set's token ids.
        why: one sentence, "cannot be cached: …".
        capacity_tokens: of the engine's device cache, None when not known.
    """
    return Plan(
        prompts=len(tree.order),
        prompt_tokens=tree.prompt_tokens,
        cacheable_tokens=0,
        lower_bound_tokens=0,
        sent_tokens=0,
        blocks_needed=0,
        blocks_available=None if capacity_tokens is None else capacity_tokens // tree.block_tokens,
        expected_hit_rate=0.0,
        uncacheable=tree.order,
        cannot_be_cached=why,
    )


def make_plan(
    tree: PrefixTree,
    *,
    weights: Mapping[str, float],
    capacity_tokens: int | None,
    in_flight: int = 1,
    control_tokens: int = 0,
    key_spaces: Mapping[str, KeySpace] | None = None,
) -> Plan:
    """The plan for an engine that caches blocks.

    Args:
        tree: of the whole prompt set's token ids, at the engine's block size.
        weights: traffic weight by prompt id.
        capacity_tokens: of the engine's device cache, None when not known.
        in_flight: most requests at a time.
        control_tokens: of the control's prompt.
        key_spaces: by prompt id; None where all prompts are in one.
    """
    available = None if capacity_tokens is None else capacity_tokens // tree.block_tokens
    reserved = (
        0
        if available is None
        else head_room_blocks(block_tokens=tree.block_tokens, in_flight=in_flight, control_tokens=control_tokens)
    )
    kept = keep(tree, weights=weights, room_blocks=None if available is None else max(available - reserved, 0))
    plan = _plan(
        tree,
        order=kept.senders,
        available=available,
        reserved=reserved,
        expected_hit_rate=kept.share,
        dropped=kept.dropped,
        key_spaces=key_spaces,
    )
    return msgspec.structs.replace(plan, proved_share=kept.proved_share)


def plan_for_slots(
    tree: PrefixTree,
    *,
    layout: Layout,
    slots: int,
    capacity_tokens: int | None,
    key_spaces: Mapping[str, KeySpace] | None = None,
) -> Plan:
    """The plan for an engine that keeps one prompt per slot: one request at a time, the most valuable last.

    Args:
        tree: of the whole prompt set's token ids, at blocks of one token.
        layout: of the set on these slots.
        slots: prompts that can be resident at once, >= 1.
        capacity_tokens: of all slots, None when not known.
        key_spaces: by prompt id; None where all prompts are in one.
    """
    plan = _plan(
        tree,
        order=layout.order,
        available=capacity_tokens,
        reserved=0,
        expected_hit_rate=layout.share,
        dropped=(),
        key_spaces=key_spaces,
    )
    return msgspec.structs.replace(
        plan,
        lower_bound_tokens=sum(layout.cost_tokens.values()),
        most_in_flight=1,
        proof_first=layout.residents,
        without_slot=layout.passing,
        slot_of=layout.slot_of,
        control_slot=layout.control_slot,
        warnings=_warnings_of_slots(layout, slots=slots),
    )


def _warnings_of_slots(layout: Layout, *, slots: int) -> tuple[str, ...]:
    senders, stay = len(layout.order), len(layout.residents)
    if senders > stay:
        hold = "one slot holds one prompt" if slots == 1 else f"{slots} slots hold one prompt each"
        numbered = ("stays, sent to its slot by number", "stay, each sent to a slot by its number")
        unlike = ("gets one of its own", "are unlike enough to get one of their own")
        how = (numbered if layout.slot_of else unlike)[stay != 1]
        return (
            f"{hold}: of {senders} prompts {stay} {how}, the most valuable last; the "
            "others are resident only where the server keeps in host memory what a slot loses (llama.cpp --cache-ram)",
        )
    if stay < slots:
        return (
            f"{slots - stay} of {slots} slots {'stays' if slots - stay == 1 else 'stay'} empty: the set has no more "
            "prompts that cover something of their own, and users who come at the same time may meet an empty one",
        )
    return ()


def plan_without_tokens(
    order: Sequence[str],
    *,
    weights: Mapping[str, float],
    why: str,
    prompt_tokens: int | None = None,
    key_spaces: Mapping[str, KeySpace] | None = None,
) -> Plan:
    """The plan where the server does not tell token ids or its block: one request at a time, no figures.

    Args:
        order: ids of all prompts.
        weights: traffic weight by prompt id.
        why: there are no figures, as one sentence.
        prompt_tokens: of all prompts; None when the server does not tokenise.
        key_spaces: by prompt id; None where all prompts are in one.
    """
    spaces = key_spaces or {}
    count = len({spaces[prompt_id] for prompt_id in spaces})
    return Plan(
        prompts=len(order),
        prompt_tokens=prompt_tokens,
        cacheable_tokens=None,
        lower_bound_tokens=None,
        blocks_needed=None,
        blocks_available=None,
        order=tuple(sorted(order, key=lambda prompt_id: (-weights[prompt_id], prompt_id))),
        most_in_flight=1,
        warnings=(
            f"no figures: {why}",
            *(
                (f"{count} key spaces; the cost of each is not known without token ids and blocks",)
                if count > 1
                else ()
            ),
        ),
    )


def of_stated_block(plan: Plan, *, block_tokens: int) -> Plan:
    """A plan whose figures hold for the block size that the user states."""
    warning = f"blocks of {block_tokens} tokens are what --block-tokens states; the server does not tell its own"
    return msgspec.structs.replace(plan, stated_block_tokens=block_tokens, warnings=(*plan.warnings, warning))


def _plan(
    tree: PrefixTree,
    *,
    order: Sequence[str],
    available: int | None,
    reserved: int,
    expected_hit_rate: float | None,
    dropped: tuple[str, ...],
    key_spaces: Mapping[str, KeySpace] | None,
) -> Plan:
    return Plan(
        prompts=len(tree.order),
        prompt_tokens=tree.prompt_tokens,
        cacheable_tokens=tree.cacheable_tokens,
        lower_bound_tokens=tree.lower_bound_tokens(order),
        sent_tokens=sum(tree.branches[prompt_id].tokens for prompt_id in order),
        blocks_needed=tree.blocks_of(order),
        blocks_available=available,
        head_room_blocks=reserved,
        expected_hit_rate=expected_hit_rate,
        dropped=dropped,
        uncacheable=tree.uncacheable,
        order=tuple(order),
        key_spaces=_costs(tree, order, key_spaces),
    )


def _costs(
    tree: PrefixTree, order: Sequence[str], key_spaces: Mapping[str, KeySpace] | None
) -> tuple[KeySpaceCost, ...]:
    if key_spaces is None or len(set(key_spaces.values())) < 2:
        return ()
    members: dict[KeySpace, list[str]] = {}
    for prompt_id in tree.order:
        members.setdefault(key_spaces[prompt_id], []).append(prompt_id)
    sent: dict[KeySpace, list[str]] = {space: [] for space in members}
    for prompt_id in order:
        sent[key_spaces[prompt_id]].append(prompt_id)
    return tuple(
        KeySpaceCost(
            model=space.model or None,
            salt=salt_mark(space.salt) if space.salt else None,
            prompts=len(members[space]),
            requests=len(sent[space]),
            sent_tokens=sum(tree.branches[prompt_id].tokens for prompt_id in sent[space]),
            lower_bound_tokens=tree.lower_bound_tokens(sent[space]),
            blocks=tree.blocks_of(sent[space]),
        )
        for space in sorted(members)
    )
