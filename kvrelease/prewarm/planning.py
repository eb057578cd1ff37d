"""The plan of each replica, from what its engine says of itself; replicas that are alike share one."""

from __future__ import annotations

import msgspec

from kvrelease.binding.control import control_tokens
from kvrelease.binding.deployment import Replica
from kvrelease.binding.salts import combined_salt, key_spaces
from kvrelease.engines.base import Request
from kvrelease.prewarm.pace import AUTO_CAP
from kvrelease.prewarm.plan import Plan, make_plan, plan_for_slots, plan_of_nothing, plan_without_tokens
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree

# Filling a cache takes a prompt; an engine generates one token at least.
MAX_TOKENS = 1


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what it was made from; shared by replicas that are alike.

    Attributes:
        plan: what to send.
        tree: prompts of several key spaces share nothing in it.
        requests: by prompt id, as production sends them in the key space of each.
    """

    plan: Plan
    tree: PrefixTree
    requests: dict[str, Request]


class Planner:
    """Makes plans, each once: 200 replicas of one model take no longer than one."""

    def __init__(self, *, concurrency: int | None) -> None:
        """Plans for at most so many requests in flight on a replica; None where that is found out later."""
        self._in_flight = concurrency or AUTO_CAP
        self._made: dict[object, Planned] = {}

    def plan(self, replica: Replica) -> Planned:
        """The plan of a replica."""
        identity = replica.identity
        abilities = identity.capabilities
        shape = (
            identity.kind,
            identity.model,
            identity.capacity_tokens,
            abilities.block_tokens,
            abilities.cacheable_limit,
        )
        # Replicas that tokenise alike share one table, and the identity of that table is that of its ids.
        key = (id(replica.tokens), shape)
        if key not in self._made:
            plan, tree = self._plan(replica)
            self._made[key] = Planned(plan=plan, tree=tree, requests=_requests(replica))
        return self._made[key]

    def _plan(self, replica: Replica) -> tuple[Plan, PrefixTree]:
        identity = replica.identity
        prompt_set = replica.deployment.prompt_set
        weights = {prompt.id: prompt.weight for prompt in prompt_set.prompts}
        spaces = key_spaces(prompt_set, model=identity.model)
        block = identity.capabilities.block_tokens
        if replica.tokens is None or block is None:
            order = [prompt.id for prompt in prompt_set.prompts]
            return plan_without_tokens(order, weights=weights, key_spaces=spaces), replica.tree
        tree = replica.tree
        if len(set(spaces.values())) > 1:
            tree = build_prefix_tree(replica.tokens, block_tokens=block, key_spaces=spaces)
        longest = max(map(len, replica.tokens.values()))
        nothing = identity.capabilities.why_not_cached(longest)
        if nothing is not None:
            return plan_of_nothing(tree, why=nothing, capacity_tokens=identity.capacity_tokens), tree
        slots = identity.capabilities.cacheable_limit
        if slots is not None:
            plan = plan_for_slots(
                tree, weights=weights, slots=slots, capacity_tokens=identity.capacity_tokens, key_spaces=spaces
            )
        else:
            plan = make_plan(
                tree,
                weights=weights,
                capacity_tokens=identity.capacity_tokens,
                in_flight=min(self._in_flight, len(prompt_set)),
                control_tokens=control_tokens(block),
                key_spaces=spaces,
            )
        return plan, tree


def _requests(replica: Replica) -> dict[str, Request]:
    deployment = replica.deployment
    return {
        prompt.id: replica.request(
            prompt, salt=combined_salt(deployment.salt, prompt.salt), max_tokens=MAX_TOKENS, streams=True
        )
        for prompt in deployment.prompt_set.prompts
    }
