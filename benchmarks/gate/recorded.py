"""An engine that answers from a pool: what the gate's own collector is run on, in place of a server.

It has a cache, as a server has: what a request hits depends on the key space that it asks in and on what was asked
there before. Which of the recorded entries a key space holds is drawn when it is written, and by how: alone, or in
company of other requests in flight. Users' key space was written before the run, by the new release or the old one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from benchmarks.gate.pool import PooledPrompt, Reads
from kvrelease.binding.control import control_tokens
from kvrelease.binding.deployment import Deployment, Replica
from kvrelease.binding.observe import Leg, Spending, Witness
from kvrelease.engines.base import EngineIdentity, Observation, Request, Route
from kvrelease.workload.key_space import key_space_name
from kvrelease.workload.prompt_set import Prompt

# The field of a request's body that says which of the recorded prompts it is.
PROMPT = "recorded"


class RecordedReplica:
    """One replica, prepared, whose answers are drawn from a pool; it is its own observer, and its own engine.

    Args:
        prompts: that the run may ask.
        observations: [numbers] of the pool.
        identity: of the engine that was recorded.
        deployment: who asks.
        stale: ids of prompts whose entries in users' key space are the old release's.
        source: draws what is not decided by what was asked before.

    Attributes:
        identity: as given.
        deployment: as given.
        prefixes: the shared prefix of each prompt.
        tokens: token ids of each prompt, which nobody recorded.
        spent: on the run so far.
    """

    usage_speaks = True

    def __init__(
        self,
        prompts: Sequence[PooledPrompt],
        observations: Sequence[Observation],
        *,
        identity: EngineIdentity,
        deployment: Deployment,
        stale: Collection[str],
        source: random.Random,
    ) -> None:
        self.identity = identity
        self.deployment = deployment
        self.prefixes = {one.id: one.prefix for one in prompts}
        self.tokens: Mapping[str, tuple[int, ...]] = {one.id: () for one in prompts}
        self.spent = Spending()
        self._prompts = {one.id: one for one in prompts}
        self._observations = observations
        self._stale = stale
        self._source = source
        # Users' requests under one prefix share what was written of it, the old release's too.
        self._users = {prefix: source.random() for prefix in dict.fromkeys(self.prefixes.values())}
        self._written: dict[tuple[str | None, str], Reads] = {}
        self._begun: set[tuple[str | None, str]] = set()
        self._nonces: set[tuple[str | None, str]] = set()
        self._in_flight = 0
        self._at_once: list[str] = []

    @property
    def as_replica(self) -> Replica:
        """It, to the collector: everything that one asks of a replica, its observer and its engine is there."""
        return cast(Replica, self)

    @property
    def observer(self) -> RecordedReplica:
        """It."""
        return self

    @property
    def engine(self) -> RecordedReplica:
        """It."""
        return self

    async def counters(self) -> None:
        """None: nobody recorded any."""

    async def tokenize(self, request: Request) -> None:
        """None: nobody recorded the ids of a nonce."""

    async def require_same_process(self) -> None:
        """It is."""

    def request(
        self, prompt: Prompt, *, salt: str | None, max_tokens: int, top_logprobs: int = 0, streams: bool = False
    ) -> Request:
        """The prompt as production sends it, in a key space."""
        return Request(
            route=Route.CHAT,
            body={PROMPT: prompt.id},
            salt=salt,
            max_tokens=max_tokens,
            top_logprobs=top_logprobs,
            streams=streams,
        )

    async def observe(self, request: Request) -> Leg:
        """What was recorded of the entry that this request reads; or of a miss, which writes one."""
        assert not request.bypasses_cache, "no bypass was recorded"
        name = request.body.get(PROMPT)
        if not isinstance(name, str):
            return self._nonce(request)
        prompt = self._prompts[name]
        if request.salt == self.deployment.salt:
            reads = self._entry_of_users(prompt)
            return self._leg(request, prompt, reads, cached=prompt.cached_tokens, foreign=prompt.cached_tokens)
        known = self._written.get((request.salt, name))
        if known is not None:
            return self._leg(request, prompt, known, cached=prompt.cached_tokens)
        return await self._write(request, prompt)

    async def _write(self, request: Request, prompt: PooledPrompt) -> Leg:
        """A miss, but for what other prompts of its prefix left in the same key space before."""
        is_begun = (request.salt, prompt.prefix) in self._begun
        is_in_company = await self._has_company(prompt.id)
        entries = prompt.again if is_in_company else prompt.alone
        self._written[request.salt, prompt.id] = self._source.choice(entries)
        self._begun.add((request.salt, prompt.prefix))
        return self._leg(request, prompt, prompt.cold, cached=prompt.shared_tokens if is_begun else 0)

    async def _has_company(self, name: str) -> bool:
        """Whether other requests are in flight that write too; lets them begin."""
        if self._in_flight == 0:
            self._at_once = []
        self._in_flight += 1
        self._at_once.append(name)
        company = self._at_once
        await asyncio.sleep(0)
        self._in_flight -= 1
        return len(company) > 1

    def _entry_of_users(self, prompt: PooledPrompt) -> Reads:
        entries = prompt.stale if prompt.id in self._stale else prompt.company
        return entries[int(self._users[prompt.prefix] * len(entries))]

    def _leg(self, request: Request, prompt: PooledPrompt, reads: Reads, *, cached: int, foreign: int = 0) -> Leg:
        """A leg; whose users' entries are nobody has told this run."""
        self.spent.add(prompt_tokens=prompt.prompt_tokens, cached_tokens=cached, retries=0)
        return Leg(
            key_space=key_space_name(request.salt),
            observation=self._observations[self._source.choice(reads)],
            prompt_tokens=prompt.prompt_tokens,
            cacheable_tokens=prompt.cached_tokens,
            cached_tokens=cached,
            foreign_tokens=foreign,
            witness=Witness.USAGE,
        )

    def _nonce(self, request: Request) -> Leg:
        """A prompt that nobody asked before: a miss, and then a hit. What it answers does not matter."""
        abilities = self.identity.capabilities
        tokens = control_tokens(abilities.block_tokens or 1, lost_tokens=abilities.lost_tokens)
        key = (request.salt, str(request.body))
        most = abilities.expected_hit(tokens)
        cached = (most or 0) if key in self._nonces else 0
        self._nonces.add(key)
        self.spent.add(prompt_tokens=tokens, cached_tokens=cached, retries=0)
        return Leg(
            key_space=key_space_name(request.salt),
            observation=self._observations[0],
            prompt_tokens=tokens,
            cacheable_tokens=most,
            cached_tokens=cached,
            foreign_tokens=0,
            witness=Witness.USAGE,
        )
