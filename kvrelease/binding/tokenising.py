"""Token ids of a prompt set, asked once for each set of replicas that make the same ones.

Two hundred replicas of one model need not tokenise the same prompts two hundred times, nor keep as many copies: each is
asked for a few prompts, and where its ids are those of a replica that was asked for all, that one's ids are its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence

import msgspec

from kvrelease.binding.left_out import LeftOut, Why, left_out_for
from kvrelease.binding.observe import body_key
from kvrelease.engines.base import EngineClient, EngineKind, Request
from kvrelease.engines.request_fields import has_media
from kvrelease.errors import KvreleaseError, PromptTooLong, one_of
from kvrelease.workload.prefix_tree import PrefixTree, build_prefix_tree

# The longest prompt, the shortest and one between: another tokenizer, template or special token shows on any of them.
SAMPLE = 3
# Tokenising takes a server milliseconds; more at once would keep its event loop from its users.
AT_ONCE = 8

Ids = tuple[int, ...]
# What became of one prompt: its ids, why the server does not take it, or None where it does not tell them.
Answer = Ids | KvreleaseError | None
_UNTOLD = "its ids are not told, and others' are"


class TokenTable:
    """The ids of one prompt set by one tokenizer.

    Attributes:
        by_prompt: [prompts][tokens] ids by prompt id; empty where the server does not tokenise.
        by_body: the same by `body_key`, for an observer.
        left_out: by prompt id, those that the server does not take.
    """

    def __init__(
        self, requests: Mapping[str, Request], ids: Mapping[str, Ids], *, left_out: Mapping[str, LeftOut]
    ) -> None:
        self.by_prompt = {prompt_id: ids[prompt_id] for prompt_id in requests if prompt_id in ids}
        self.by_body = {body_key(requests[prompt_id]): told for prompt_id, told in self.by_prompt.items()}
        self.left_out = {prompt_id: left_out[prompt_id] for prompt_id in requests if prompt_id in left_out}
        self._requests = requests
        self._trees: dict[int, PrefixTree] = {}
        self._within: dict[int, TokenTable] = {}

    def tree(self, block_tokens: int) -> PrefixTree:
        """The prefix tree at a block size, built once."""
        if block_tokens not in self._trees:
            self._trees[block_tokens] = build_prefix_tree(self.by_prompt, block_tokens=block_tokens)
        return self._trees[block_tokens]

    def within(self, context_tokens: int, *, max_tokens: int) -> TokenTable:
        """The table of what fits a context, made once; the rest is left out.

        Args:
            context_tokens: of prompt and generation together.
            max_tokens: to generate.

        Raises:
            PromptTooLong: nothing fits.
        """
        room = context_tokens - max_tokens
        if room not in self._within:
            long = {
                prompt_id: LeftOut(
                    prompt=prompt_id,
                    why=Why.TOO_LONG,
                    detail=f"{len(ids)} tokens and {max_tokens} to generate, where {context_tokens} fit",
                )
                for prompt_id, ids in self.by_prompt.items()
                if len(ids) > room
            }
            rest = {prompt_id: ids for prompt_id, ids in self.by_prompt.items() if prompt_id not in long}
            if long and not rest:
                shortest = min(self.by_prompt, key=lambda prompt_id: len(self.by_prompt[prompt_id]))
                raise PromptTooLong(
                    f"no prompt fits the context of {context_tokens} tokens together with the {max_tokens} to "
                    f"generate; the shortest, {shortest!r}, has {len(self.by_prompt[shortest])} tokens",
                    hint="shorten the prompts, or serve a longer context (vLLM --max-model-len, llama.cpp -c)",
                )
            fits = TokenTable(self._requests, rest, left_out=self.left_out | long)
            self._within[room] = fits if long else self
        return self._within[room]


class Tokenising:
    """What the replicas of one run have told of one prompt set.

    Args:
        leaves_out: a prompt that a server does not take is left out; else it ends the replica's preparation, and ids
            that are not told of every prompt count as none.
    """

    def __init__(self, *, leaves_out: bool) -> None:
        self._leaves_out = leaves_out
        self._locks: dict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tables: dict[object, TokenTable] = {}
        self.asked = 0
        """Prompts that were sent to a tokenizer."""

    async def table(
        self, engine: EngineClient, *, kind: EngineKind, model: str, requests: Mapping[str, Request]
    ) -> TokenTable:
        """The ids of the prompts by a replica's tokenizer.

        Args:
            engine: the replica.
            kind: of its engine.
            model: that it serves.
            requests: by prompt id, as production sends them.

        Raises:
            KvreleaseError: whatever the engine raises; where prompts are left out, if it takes none of them.
        """
        sample = await self._answers(engine, _sampled(requests))
        if all(told is None for told in sample.values()) or not (self._leaves_out or None not in sample.values()):
            return TokenTable(requests, {}, left_out={})
        # By whether it is refused, not by the words: they name the replica.
        signature = frozenset(
            (prompt_id, told if isinstance(told, tuple) else None) for prompt_id, told in sample.items()
        )
        key = (kind, model, frozenset(requests), signature)
        async with self._locks[key]:
            if key not in self._tables:
                rest = {prompt_id: one for prompt_id, one in requests.items() if prompt_id not in sample}
                self._tables[key] = self._made(requests, sample | await self._answers(engine, rest))
            return self._tables[key]

    def _made(self, requests: Mapping[str, Request], answers: Mapping[str, Answer]) -> TokenTable:
        ids = {prompt_id: told for prompt_id, told in answers.items() if isinstance(told, tuple)}
        errors = {prompt_id: told for prompt_id, told in answers.items() if isinstance(told, KvreleaseError)}
        if len(errors) == len(requests):
            prompt_id, error = next(iter(errors.items()))
            raise error.about(f"all prompts were refused, of which the first is {prompt_id!r}")
        if not self._leaves_out and len(ids) < len(requests):
            return TokenTable(requests, {}, left_out={})
        left_out = {}
        for prompt_id, told in answers.items():
            if isinstance(told, KvreleaseError):
                found = left_out_for(told, prompt=prompt_id)
                assert found is not None, "other errors end the preparation"
                left_out[prompt_id] = found
            elif told is None and ids:
                left_out[prompt_id] = LeftOut(prompt=prompt_id, why=Why.NO_IDS, detail=_UNTOLD)
        return TokenTable(requests, ids, left_out=left_out)

    async def _answers(self, engine: EngineClient, requests: Mapping[str, Request]) -> dict[str, Answer]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(prompt_id: str, request: Request) -> Answer:
            async with limit:
                self.asked += 1
                try:
                    return await engine.tokenize(request)
                except KvreleaseError as error:
                    if left_out_for(error, prompt=prompt_id) is None:
                        raise
                    if not self._leaves_out:
                        error.about(f"prompt {prompt_id!r}")
                        raise
                    return error

        found = await _all([one(prompt_id, request) for prompt_id, request in requests.items()])
        return dict(zip(requests, found, strict=True))


def _sampled(requests: Mapping[str, Request]) -> dict[str, Request]:
    """The longest, the shortest and one between, by what is sent; of those that are text alone, where there are any.

    Ids of others are not told by every server that tokenises.
    """
    texts = [prompt_id for prompt_id, request in requests.items() if not has_media(request.body)]
    ordered = sorted(
        texts or requests, key=lambda prompt_id: (len(msgspec.json.encode(requests[prompt_id].body)), prompt_id)
    )
    if len(ordered) <= SAMPLE:
        return {prompt_id: requests[prompt_id] for prompt_id in ordered}
    return {prompt_id: requests[prompt_id] for prompt_id in (ordered[-1], ordered[0], ordered[len(ordered) // 2])}


async def _all(calls: Sequence[Coroutine[None, None, Answer]]) -> list[Answer]:
    """What each call gives, in their order; all are ended when one fails, and its error is ours."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as errors:
        raise one_of(errors) from errors
    return [task.result() for task in tasks]
