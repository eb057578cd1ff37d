"""Token ids of a prompt set, asked once for each set of replicas that make the same ones.

Two hundred replicas of one model need not tokenise the same prompts two hundred times, nor keep as many copies: each is
asked for a few prompts, and where its ids are those of a replica that was asked for all, that one's ids are its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence

import msgspec

from kvrelease.binding.observe import body_key
from kvrelease.engines.base import EngineClient, EngineKind, Request
from kvrelease.errors import one_of
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree

# The longest prompt, the shortest and one between: another tokenizer, template or special token shows on any of them.
SAMPLE = 3
# Tokenising takes a server milliseconds; more at once would keep its event loop from its users.
AT_ONCE = 8

Ids = tuple[int, ...]


class TokenTable:
    """The ids of one prompt set by one tokenizer.

    Attributes:
        by_prompt: [prompts][tokens] ids by prompt id.
        by_body: the same by `body_key`, for an observer.
    """

    def __init__(self, requests: Mapping[str, Request], ids: Mapping[str, Ids]) -> None:
        self.by_prompt = {prompt_id: ids[prompt_id] for prompt_id in requests}
        self.by_body = {body_key(request): ids[prompt_id] for prompt_id, request in requests.items()}
        self._trees: dict[int, PrefixTree] = {}

    def tree(self, block_tokens: int) -> PrefixTree:
        """The prefix tree at a block size, built once."""
        if block_tokens not in self._trees:
            self._trees[block_tokens] = build_prefix_tree(self.by_prompt, block_tokens=block_tokens)
        return self._trees[block_tokens]


class Tokenising:
    """What the replicas of one run have told of one prompt set."""

    def __init__(self) -> None:
        self._locks: dict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tables: dict[object, TokenTable | None] = {}
        self.asked = 0
        """Prompts that were sent to a tokenizer."""

    async def table(
        self, engine: EngineClient, *, kind: EngineKind, model: str, requests: Mapping[str, Request]
    ) -> TokenTable | None:
        """The ids of all prompts by a replica's tokenizer; None when it does not tell those of every one.

        Args:
            engine: the replica.
            kind: of its engine.
            model: that it serves.
            requests: by prompt id, as production sends them.

        Raises:
            KvreleaseError: whatever the engine raises.
        """
        sample = await self._ids(engine, _sampled(requests))
        if sample is None:
            return None
        key = (kind, model, frozenset(requests), tuple(sorted(sample.items())))
        async with self._locks[key]:
            if key not in self._tables:
                rest = {prompt_id: one for prompt_id, one in requests.items() if prompt_id not in sample}
                told = await self._ids(engine, rest)
                self._tables[key] = None if told is None else TokenTable(requests, sample | told)
            return self._tables[key]

    async def _ids(self, engine: EngineClient, requests: Mapping[str, Request]) -> dict[str, Ids] | None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(request: Request) -> Ids | None:
            async with limit:
                self.asked += 1
                return await engine.tokenize(request)

        found = await _all([one(request) for request in requests.values()])
        ids = {prompt_id: told for prompt_id, told in zip(requests, found, strict=True) if told is not None}
        return ids if len(ids) == len(requests) else None


def _sampled(requests: Mapping[str, Request]) -> dict[str, Request]:
    """The longest, the shortest and one between, by what is sent."""
    ordered = sorted(requests, key=lambda prompt_id: (len(msgspec.json.encode(requests[prompt_id].body)), prompt_id))
    if len(ordered) <= SAMPLE:
        return dict(requests)
    return {prompt_id: requests[prompt_id] for prompt_id in (ordered[-1], ordered[0], ordered[len(ordered) // 2])}


async def _all(calls: Sequence[Coroutine[None, None, Ids | None]]) -> list[Ids | None]:
    """What each call gives, in their order; all are ended when one fails, and its error is ours."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as errors:
        raise one_of(errors) from errors
    return [task.result() for task in tasks]
