"""Sending requests to one replica so that every hit is witnessed and accounted for.

The response's own usage is the first witness. Where it says nothing, the server's counters are asked before and after,
and count only when they moved by exactly this request's prompt: then nobody else was on the engine. Where neither
speaks, the hit is not known, which is never zero.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence

import blake3
import msgspec

from kvrelease.binding.attribution import Attribution, PrefixMemory
from kvrelease.binding.hits import Unattributed
from kvrelease.binding.sisters import Sisters
from kvrelease.binding.store_hits import StoreHits
from kvrelease.binding.usage import Usage, counted_hit
from kvrelease.chain import DEFAULT_BLOCK_TOKENS
from kvrelease.engines.base import EngineClient, EngineIdentity, Observation, Request
from kvrelease.errors import KvreleaseError, ServiceError, one_of
from kvrelease.workload.key_space import key_space_name


class Witness(enum.StrEnum):
    """Who said how many tokens came from the cache."""

    USAGE = "usage"
    COUNTERS = "counters"
    NOBODY = "nobody"


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """One request and what is known of its hit.

    Attributes:
        key_space: the name of the one it asked in (`workload.key_space`), None for unsalted.
        observation: what the server answered.
        prompt_tokens: by the server's count, else by its tokenizer; None when neither tells.
        cacheable_tokens: most that can come from the cache; None when the block is not known.
        cached_tokens: that did; None when nobody witnessed.
        foreign_tokens: of these, what nothing explains; None when that cannot be told.
        witness: who said so.
        doubt: why it cannot be told whose the hit is; None where it can.
    """

    key_space: str | None
    observation: Observation
    prompt_tokens: int | None
    cacheable_tokens: int | None
    cached_tokens: int | None
    foreign_tokens: int | None
    witness: Witness
    doubt: Unattributed | None = None

    @property
    def hits_mostly(self) -> bool | None:
        """More than half of what can be cached came from the cache; None when nobody witnessed, or nothing can be.

        Of the whole prompt where the block is not known. A nonce prompt is judged by this, not by zero: what a chat
        template puts first may be cached rightly (`binding.control` makes it the smaller half).
        """
        most = self.prompt_tokens if self.cacheable_tokens is None else self.cacheable_tokens
        return 2 * self.cached_tokens > most if self.cached_tokens is not None and most else None

    @property
    def hits_wholly(self) -> bool | None:
        """Everything that can be cached came from the cache; None when nobody witnessed, or the block is not known."""
        if self.cached_tokens is None or self.cacheable_tokens is None:
            return None
        return self.cached_tokens >= self.cacheable_tokens > 0


def body_key(request: Request) -> bytes:
    """Names what a request has tokenised: its route and body, whatever its key space."""
    return blake3.blake3(msgspec.json.encode((request.route, request.body), order="sorted")).digest()


# Asked for its process at once, so that each goes over a connection of its own, of those that requests went over: a
# balancer that picks at random among two processes keeps all of them on one in 1 of 128 runs.
LOOKS = 8


class Spending:
    """What one replica was asked for.

    Attributes:
        requests: answered.
        retries: sent again.
        prompt_tokens: of all of them, where told.
        computed_tokens: of these, not from the cache; None once one was answered that does not tell.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        self.prompt_tokens = 0
        self.computed_tokens: int | None = 0

    def add(self, *, prompt_tokens: int | None, cached_tokens: int | None, retries: int) -> None:
        """Counts one answered request."""
        self.requests += 1
        self.retries += retries
        self.prompt_tokens += prompt_tokens or 0
        if self.computed_tokens is None or prompt_tokens is None or cached_tokens is None:
            self.computed_tokens = None
        else:
            self.computed_tokens += prompt_tokens - cached_tokens


class Observer:
    """One replica under observation; requests of one run share what it learns.

    Args:
        engine: the open engine.
        identity: what it said of itself at the start of the run.
        namespace: of the release that is said to be served.
        memory: earlier runs' knowledge.
        sisters: what the replicas of this run computed; None where there is no other one.
        tokens: ids that are known already, by `body_key`; shared with other observers, and left as they are.
    """

    def __init__(
        self,
        engine: EngineClient,
        *,
        identity: EngineIdentity,
        namespace: str,
        memory: PrefixMemory,
        sisters: Sisters | None = None,
        tokens: Mapping[bytes, tuple[int, ...]] | None = None,
    ) -> None:
        self.engine = engine
        self.identity = identity
        self._sisters = sisters or Sisters(namespace=namespace, memory=memory)
        self._hits = Attribution(identity, namespace=namespace, memory=memory, sisters=self._sisters)
        self._store = StoreHits(engine)
        self._usage = Usage(identity.shown)
        self._shared = {} if tokens is None else tokens
        self._tokens: dict[bytes, tuple[int, ...] | None] = {}
        self.spent = Spending()

    async def tokenize(self, request: Request) -> tuple[int, ...] | None:
        """Token ids of a request; a body is tokenised once, whatever its key space.

        Raises:
            KvreleaseError: whatever the engine raises.
        """
        key = body_key(request)
        if key in self._shared:
            return self._shared[key]
        if key not in self._tokens:
            self._tokens[key] = await self.engine.tokenize(request)
        return self._tokens[key]

    @property
    def usage_speaks(self) -> bool | None:
        """Whether every response so far told cached tokens; None before the first."""
        return self._usage.speaks

    async def observe(self, request: Request, *, tokens: tuple[int, ...] | None = None) -> Leg:
        """Sends one request and accounts for its hit.

        Args:
            request: what to send.
            tokens: its token ids, where the caller has them; None to ask for them.

        Raises:
            KvreleaseError: whatever the engine raises.
        """
        if tokens is None:
            tokens = await self.tokenize(request)
        block_tokens = self.identity.capabilities.block_tokens or DEFAULT_BLOCK_TOKENS
        await self._store.sending(len(tokens or ()))
        before = await self.engine.counters() if self._usage.needs_counters else None
        with self._sisters.asking(tokens or (), block_tokens=block_tokens):
            observation = await self._answered(request, tokens=tokens)
            cached, witness = self._usage.told(observation, ids=_length(tokens)), Witness.USAGE
            if cached is None:
                after = await self.engine.counters()
                cached = counted_hit(before, after, prompt_tokens=observation.prompt_tokens)
                witness = Witness.NOBODY if cached is None else Witness.COUNTERS
            prompt_tokens = observation.prompt_tokens if observation.prompt_tokens is not None else _length(tokens)
            self.spent.add(prompt_tokens=prompt_tokens, cached_tokens=cached, retries=observation.retries)
            foreign, doubt = self._hits.foreign(request, observation, tokens=tokens, cached=cached)
        if foreign and tokens is not None and cached is not None and not request.bypasses_cache:
            await self._sisters.answered(tokens, block_tokens=block_tokens)
            if self._hits.is_of_sisters(request, tokens, cached=cached):
                is_from_store = await self._store.found(observation, tokens=foreign)
                if is_from_store:
                    self._hits.learn(request, tokens)
                    foreign = 0
                elif is_from_store is None:
                    foreign, doubt = None, Unattributed.SISTER
        abilities = self.identity.capabilities
        return Leg(
            key_space=key_space_name(request.salt),
            observation=observation,
            prompt_tokens=prompt_tokens,
            cacheable_tokens=None if prompt_tokens is None else abilities.expected_hit(prompt_tokens),
            cached_tokens=cached,
            foreign_tokens=foreign,
            witness=witness,
            doubt=doubt,
        )

    async def _answered(self, request: Request, *, tokens: tuple[int, ...] | None) -> Observation:
        """What the engine answers; where it does not, what it may have computed all the same is remembered."""
        may_have_run = True
        try:
            observation = await self.engine.complete(request)
            may_have_run = False
        except ServiceError as error:
            may_have_run = error.may_have_run
            raise
        except KvreleaseError:
            may_have_run = False  # refused by us, or for its length
            raise
        finally:  # cancelled, too
            if may_have_run and tokens is not None:
                self._hits.add_sent(request, tokens)
        return observation

    def spaces_within(self, salt: str | None) -> tuple[str | None, ...]:
        """Key spaces that requests with a salt may have had in this run: the salt's own, and those of adapters."""
        return self._hits.spaces_within(salt)

    def doubt_rank(self) -> None:
        """It is not proven that requests reach the rank that they are for: no hit is attributed from now on."""
        self._hits.doubt_rank()

    def learn(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Remembers that this release computed a whole prompt, though this run did not see it do so."""
        self._hits.learn(request, tokens)

    def forget(self) -> None:
        """Forgets what this release computed: its cache was emptied. The memory has to forget first."""
        self._hits.forget()

    def remember(self) -> None:
        """Hands what this run learnt to the memory; call it once, also when the run was cut short."""
        self._hits.remember()

    async def require_same_process(self) -> None:
        """Checks that the engine process is the one that this run began with, on as many connections as it used.

        Raises:
            ServiceError: it was restarted meanwhile, so that the observations belong to two caches.
        """
        try:
            async with asyncio.TaskGroup() as group:
                looks = [group.create_task(self.engine.current_process()) for _ in range(LOOKS)]
        except ExceptionGroup as errors:
            raise one_of(errors) from errors
        others = [look.result() for look in looks if look.result() != self.identity.process]
        if others:
            raise ServiceError(
                f"the engine process behind {self.identity.url} changed during the run, or there are several "
                f"({self.identity.process} → {others[0]}): what was observed belongs to two caches",
                hint="run it again; if a router spreads requests over several processes, name each with --engine-url",
            )


def _length(tokens: tuple[int, ...] | None) -> int | None:
    return None if tokens is None else len(tokens)


def total(values: Sequence[int | None]) -> int | None:
    """The sum, or None when one of them is not known, or there is none."""
    return None if not values or any(value is None for value in values) else sum(value or 0 for value in values)


def known_total(values: Sequence[int | None]) -> int | None:
    """The sum of what is known when it is more than zero: one proof is enough; else like `total`."""
    return sum(value or 0 for value in values) or total(values)
