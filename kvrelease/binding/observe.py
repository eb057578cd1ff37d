"""Sending requests to one replica so that every hit is witnessed and accounted for.

The response's own usage is the first witness. Where it says nothing, the server's counters are asked before and after,
and count only when they moved by exactly this request's prompt: then nobody else was on the engine. Where neither
speaks, the hit is not known, which is never zero.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping, Sequence
from typing import Protocol

import blake3
import msgspec

from kvrelease.binding.hits import KnownPrefixes
from kvrelease.engines.base import Counters, EngineClient, EngineIdentity, Observation, Request
from kvrelease.errors import ServiceError
from kvrelease.ledger.records import CacheOrigin


class Witness(enum.StrEnum):
    """Who said how many tokens came from the cache."""

    USAGE = "usage"
    COUNTERS = "counters"
    NOBODY = "nobody"


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """One request and what is known of its hit.

    Attributes:
        key_space: the salt it carried, None for unsalted.
        observation: what the server answered.
        prompt_tokens: by the server's count, else by its tokenizer; None when neither tells.
        cacheable_tokens: most that can come from the cache; None when the block is not known.
        cached_tokens: that did; None when nobody witnessed.
        foreign_tokens: of these, what nothing explains; None when that cannot be told.
        witness: who said so.
    """

    key_space: str | None
    observation: Observation
    prompt_tokens: int | None
    cacheable_tokens: int | None
    cached_tokens: int | None
    foreign_tokens: int | None
    witness: Witness

    @property
    def hits_mostly(self) -> bool | None:
        """More than half of what can be cached came from the cache; None when nobody witnessed, or nothing can be.

        Of the whole prompt where the block is not known. A nonce prompt is judged by this, not by zero: what a chat
        template puts first may be cached rightly (`binding.control` makes it the smaller half).
        """
        most = self.prompt_tokens if self.cacheable_tokens is None else self.cacheable_tokens
        return 2 * self.cached_tokens > most if self.cached_tokens is not None and most else None


PROBE_SALT = "kvrelease-"


def probe_salt(purpose: str) -> str:
    """A key space of this run's own, recognisable in an engine's logs; at most 64 of `[a-z0-9-]`."""
    return f"{PROBE_SALT}{purpose}-{secrets.token_hex(8)}"


def is_probe_salt(key_space: str | None) -> bool:
    """Whether a key space is one that `probe_salt` made."""
    return key_space is not None and key_space.startswith(PROBE_SALT)


# Between salt and adapter; neither has it once it is quoted.
_ADAPTER = "@"
_QUOTED = str.maketrans({"%": "%25", _ADAPTER: "%40"})


def origin_space(salt: str | None, *, adapter: str | None = None) -> str | None:
    """How a key space is called in `CacheOrigin`: one name for each pair of salt and adapter, None for neither.

    vLLM takes no `@` in a salt, but SGLang does: so it is quoted there.
    """
    quoted = None if salt is None else salt.translate(_QUOTED)
    return quoted if adapter is None else f"{quoted or ''}{_ADAPTER}{adapter}"


class PrefixMemory(Protocol):
    """What remembers computed prefixes between runs (`ledger.store.Ledger` does)."""

    def computed_prefixes(self, origin: CacheOrigin) -> frozenset[bytes]:
        """Chain hashes of what this origin computed."""

    def add_computed_prefixes(self, origin: CacheOrigin, prefixes: frozenset[bytes]) -> None:
        """Remembers what this origin computed."""


def body_key(request: Request) -> bytes:
    """Names what a request has tokenised: its route and body, whatever its key space."""
    return blake3.blake3(msgspec.json.encode((request.route, request.body), order="sorted")).digest()


class Spending:
    """What one replica was asked for: answered requests, requests sent again, prompt tokens where they are told."""

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        self.prompt_tokens = 0

    def add(self, *, prompt_tokens: int, retries: int) -> None:
        """Counts one answered request."""
        self.requests += 1
        self.retries += retries
        self.prompt_tokens += prompt_tokens


class Observer:
    """One replica under observation; requests of one run share what it learns.

    Args:
        engine: the open engine.
        identity: what it said of itself at the start of the run.
        namespace: of the release that is said to be served.
        memory: earlier runs' knowledge.
        tokens: ids that are known already, by `body_key`; shared with other observers, and left as they are.
    """

    def __init__(
        self,
        engine: EngineClient,
        *,
        identity: EngineIdentity,
        namespace: str,
        memory: PrefixMemory,
        tokens: Mapping[bytes, tuple[int, ...]] | None = None,
    ) -> None:
        self.engine = engine
        self.identity = identity
        self._namespace = namespace
        self._memory = memory
        self._known: dict[str | None, KnownPrefixes] = {}
        self._usage_speaks: bool | None = None
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
        """Whether responses tell cached tokens; None before the first."""
        return self._usage_speaks

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
        before = None if self._usage_speaks else await self.engine.counters()
        observation = await self.engine.complete(request)
        self._usage_speaks = observation.cached_tokens is not None
        cached, witness = observation.cached_tokens, Witness.USAGE
        if cached is None:
            after = await self.engine.counters()
            cached = _counted_hit(before, after, prompt_tokens=observation.prompt_tokens)
            witness = Witness.NOBODY if cached is None else Witness.COUNTERS
        prompt_tokens = observation.prompt_tokens if observation.prompt_tokens is not None else _length(tokens)
        self.spent.add(prompt_tokens=prompt_tokens or 0, retries=observation.retries)
        abilities = self.identity.capabilities
        return Leg(
            key_space=request.salt,
            observation=observation,
            prompt_tokens=prompt_tokens,
            cacheable_tokens=None if prompt_tokens is None else abilities.expected_hit(prompt_tokens),
            cached_tokens=cached,
            foreign_tokens=self._foreign(request, tokens=tokens, cached=cached, retries=observation.retries),
            witness=witness,
        )

    def _foreign(
        self, request: Request, *, tokens: tuple[int, ...] | None, cached: int | None, retries: int
    ) -> int | None:
        if cached is None:
            return None
        if tokens is None or self.identity.capabilities.block_tokens is None:
            return 0 if cached == 0 else None
        if request.bypasses_cache and not self.identity.capabilities.reference_heals:
            # It may write, but a look-up goes on finding the first inserted entry: it explains no later hit.
            # Source: vLLM 0.32.0, v1/core/block_pool.py, lines 42-70.
            return cached
        key_space = self.key_space(request)
        foreign = self.known(key_space).account(tokens, cached_tokens=cached)
        plain = origin_space(request.salt)
        if foreign and key_space != plain and self.known(plain).explained_tokens(tokens) >= cached:
            return None  # another name of the same weights, or an adapter that its engine does not keep apart
        # The attempt before, that we heard nothing of, may have been computed: then we hit ourselves.
        return None if foreign and retries else foreign

    def key_space(self, request: Request) -> str | None:
        """Where a request's blocks live in this process: its salt, and the adapter where its body names one.

        Adapters share no block with the served model.
        """
        asked = request.body.get("model")
        adapter = asked if isinstance(asked, str) and asked != self.identity.model else None
        return origin_space(request.salt, adapter=adapter)

    def spaces_within(self, salt: str | None) -> tuple[str | None, ...]:
        """Key spaces that requests with a salt may have had in this run: the salt's own, and those of adapters."""
        plain = origin_space(salt)
        adapters = f"{plain or ''}{_ADAPTER}"
        return (plain, *(space for space in self._known if space is not None and space.startswith(adapters)))

    def learn(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Remembers that this release computed a whole prompt, though this run did not see it do so."""
        if self.identity.capabilities.block_tokens is not None:
            self.known(self.key_space(request)).learn(tokens)

    def known(self, key_space: str | None) -> KnownPrefixes:
        """What is known to have been computed by this release in a key space of this process."""
        if key_space not in self._known:
            block = self.identity.capabilities.block_tokens
            assert block is not None, "prefixes are only known at a known block size"
            origin = self._origin(key_space)
            known = self._memory.computed_prefixes(origin) if origin else frozenset()
            self._known[key_space] = KnownPrefixes(block_tokens=block, known=known)
        return self._known[key_space]

    def _origin(self, key_space: str | None) -> CacheOrigin | None:
        if self.identity.process is None:
            return None  # without a process identity an earlier run may have met another cache
        return CacheOrigin(
            replica=self.identity.url,
            process=self.identity.process,
            key_space=key_space,
            namespace=self._namespace,
        )

    async def require_same_process(self) -> None:
        """Checks that the engine process is the one that this run began with.

        Raises:
            ServiceError: it was restarted meanwhile, so that the observations belong to two caches.
        """
        now = await self.engine.current_process()
        if now != self.identity.process:
            raise ServiceError(
                f"the engine process behind {self.identity.url} changed during the run ({self.identity.process} → "
                f"{now}): what was observed belongs to two caches",
                hint="run it again; if a router spreads requests over several processes, name each with --engine-url",
            )

    def remember(self) -> None:
        """Hands what this run learnt to the memory; call it once, also when the run was cut short.

        Key spaces of this run's own probes are left out: nobody will ever ask there again.
        """
        for key_space, known in self._known.items():
            origin = self._origin(key_space)
            if origin and not is_probe_salt(key_space):
                self._memory.add_computed_prefixes(origin, known.learnt)


def _length(tokens: tuple[int, ...] | None) -> int | None:
    return None if tokens is None else len(tokens)


def _counted_hit(before: Counters | None, after: Counters | None, *, prompt_tokens: int | None) -> int | None:
    """The hit of one request by the counters; None when they do not speak of this request alone."""
    if before is None or after is None or prompt_tokens is None:
        return None
    if after.queried_tokens - before.queried_tokens != prompt_tokens:
        return None
    hit = after.all_cached_tokens - before.all_cached_tokens
    return int(hit) if 0 <= hit <= prompt_tokens else None


def total(values: Sequence[int | None]) -> int | None:
    """The sum, or None when one of them is not known, or there is none."""
    return None if not values or any(value is None for value in values) else sum(value or 0 for value in values)


def known_total(values: Sequence[int | None]) -> int | None:
    """The sum of what is known when it is more than zero: one proof is enough; else like `total`."""
    return sum(value or 0 for value in values) or total(values)
