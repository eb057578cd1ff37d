"""The plan of each replica, from what its engine says of itself; replicas that are alike share one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from kvrelease.binding.control import control_tokens, front_tokens
from kvrelease.binding.deployment import Replica
from kvrelease.binding.hits import Unattributed
from kvrelease.binding.salts import key_spaces
from kvrelease.engines.base import Request, Route
from kvrelease.errors import KvreleaseError
from kvrelease.prewarm.pace import AUTO_CAP
from kvrelease.prewarm.plan import (
    Plan,
    make_plan,
    of_stated_block,
    plan_for_slots,
    plan_of_nothing,
    plan_without_tokens,
)
from kvrelease.prewarm.slots import lay_out
from kvrelease.workload.key_space import KeySpace
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree
from kvrelease.workload.prompt_set import PromptKind

# Filling a cache takes a prompt; an engine generates one token at least.
MAX_TOKENS = 1

EMPTIES = (
    "the server empties idle slots into host memory (one KV pool for all slots, llama.cpp --kv-unified), or other "
    "clients took them: no slot was sent to by its number, and of prompts that share their start only that stays"
)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what it was made from; shared by replicas that are alike.

    Attributes:
        plan: what to send.
        tree: prompts of several key spaces share nothing in it.
        requests: by prompt id, as production sends them in the key space of each.
        cost_tokens: on an engine with slots, by prompt id, what sending it in the plan's order computes; else empty.
        without_numbers: the same for slots that turn out to keep nothing; None on an engine without slots.
    """

    plan: Plan
    tree: PrefixTree
    requests: dict[str, Request]
    cost_tokens: dict[str, int] = {}
    without_numbers: Planned | None = None


class Planner:
    """Makes plans, each once: 200 replicas of one model take no longer than one."""

    def __init__(self, *, concurrency: int | None) -> None:
        """Plans for at most so many requests in flight on a replica; None where that is found out later."""
        self._in_flight = concurrency or AUTO_CAP
        self._made: dict[object, Planned] = {}
        self._front_tokens: dict[int, int] = {}  # by the identity of a table of ids, which is its tokenizer's

    async def fronts(self, replicas: Sequence[Replica]) -> None:
        """Asks what every prompt begins with, once for each tokenizer: the control is the longer for it.

        Where no capacity is told, no room is kept, and nobody is asked. One whose tokenizer fails by now gets the room
        of a control without: the control itself will tell.
        """
        for replica in replicas:
            key, identity = id(replica.tokens), replica.identity
            if replica.tokens is None or identity.capacity_tokens is None or key in self._front_tokens:
                continue
            deployment = replica.deployment
            kinds = {prompt.kind for prompt in deployment.prompt_set.prompts}
            with contextlib.suppress(KvreleaseError):
                self._front_tokens[key] = await front_tokens(
                    replica.observer,
                    route=Route.CHAT if PromptKind.CHAT in kinds else Route.COMPLETIONS,
                    production=deployment.production,
                    model=identity.model,
                )

    def plan(self, replica: Replica) -> Planned:
        """The plan of a replica."""
        identity = replica.identity
        shape = (identity.kind, identity.model, identity.capacity_tokens, identity.capabilities)
        # Replicas that tokenise alike share one table, and the identity of that table is that of its ids.
        key = (id(replica.tokens), frozenset(replica.left_out), shape)
        if key not in self._made:
            self._made[key] = self._plan(replica, requests=_requests(replica))
        return self._made[key]

    def _plan(self, replica: Replica, *, requests: dict[str, Request]) -> Planned:
        identity = replica.identity
        prompt_set = replica.deployment.prompt_set
        weights = {prompt.id: prompt.weight for prompt in prompt_set.prompts}
        spaces = key_spaces(prompt_set, model=identity.model)
        block = identity.capabilities.block_tokens
        if replica.tokens is None or block is None:
            order = [prompt.id for prompt in prompt_set.prompts if prompt.id not in replica.left_out]
            unknown = Unattributed.NO_IDS if replica.tokens is None else Unattributed.NO_BLOCK
            tokens = None if replica.tokens is None else sum(map(len, replica.tokens.values()))
            plan = plan_without_tokens(
                order, weights=weights, why=unknown.reason, prompt_tokens=tokens, key_spaces=spaces
            )
            return Planned(plan=plan, tree=replica.tree, requests=requests)
        tree = replica.tree
        if len(set(spaces.values())) > 1:
            tree = build_prefix_tree(replica.tokens, block_tokens=block, key_spaces=spaces)
        longest = max(map(len, replica.tokens.values()))
        nothing = identity.capabilities.why_not_cached(longest)
        if nothing is not None:
            plan = plan_of_nothing(tree, why=nothing, capacity_tokens=identity.capacity_tokens)
            return Planned(plan=plan, tree=tree, requests=requests)
        slots = identity.capabilities.cacheable_limit
        if slots is not None:
            return _for_slots(replica, tree=tree, requests=requests, slots=slots, weights=weights, spaces=spaces)
        plan = make_plan(
            tree,
            weights=weights,
            capacity_tokens=identity.capacity_tokens,
            in_flight=min(self._in_flight, len(prompt_set)),
            control_tokens=control_tokens(
                block,
                front_tokens=self._front_tokens.get(id(replica.tokens), 0),
                lost_tokens=identity.capabilities.lost_tokens,
            ),
            key_spaces=spaces,
        )
        if identity.capabilities.is_block_stated:
            plan = of_stated_block(plan, block_tokens=block)
        return Planned(plan=plan, tree=tree, requests=requests)


def _for_slots(
    replica: Replica,
    *,
    tree: PrefixTree,
    requests: dict[str, Request],
    slots: int,
    weights: dict[str, float],
    spaces: dict[str, KeySpace],
) -> Planned:
    """The plan for slots by their numbers, and the other one; only that where production names them itself."""
    assert replica.tokens is not None, "slots are planned by token ids"
    named = {slot for request in requests.values() if (slot := _named_slot(request)) is not None}
    slots = min(slots, len(named)) if named else slots
    made = []
    for by_number, why in (
        (False, "requests name their slot themselves (id_slot): sent as they are" if named else EMPTIES),
        (True, None),
    ):
        layout = lay_out(tree, tokens=replica.tokens, weights=weights, slots=slots, by_number=by_number)
        plan = plan_for_slots(
            tree, layout=layout, slots=slots, capacity_tokens=replica.identity.capacity_tokens, key_spaces=spaces
        )
        if why is not None:
            plan = msgspec.structs.replace(plan, warnings=(*plan.warnings, why))
        made.append(Planned(plan=plan, tree=tree, requests=requests, cost_tokens=layout.cost_tokens))
    without, numbered = made
    return without if named else msgspec.structs.replace(numbered, without_numbers=without)


def _named_slot(request: Request) -> int | None:
    """The slot that production chooses; None, as -1, leaves it to the server."""
    named = request.body.get("id_slot")
    return named if isinstance(named, int) and named >= 0 else None


def _requests(replica: Replica) -> dict[str, Request]:
    deployment = replica.deployment
    return {
        prompt.id: replica.request(prompt, salt=deployment.salt, max_tokens=MAX_TOKENS, streams=True)
        for prompt in deployment.prompt_set.prompts
    }
