"""Whose hits are the hits of one replica: every key space of it, in this run and as far as the memory goes."""

from __future__ import annotations

from typing import Protocol

from kvrelease.binding.hits import KnownPrefixes, Unattributed
from kvrelease.binding.salts import is_probe_salt
from kvrelease.binding.sisters import Sisters
from kvrelease.engines.base import EngineIdentity, Observation, Request
from kvrelease.ledger.records import CacheOrigin
from kvrelease.workload.key_space import key_space_name


class PrefixMemory(Protocol):
    """What remembers computed prefixes between runs (`ledger.store.Ledger` does)."""

    def computed_prefixes(self, origin: CacheOrigin) -> frozenset[bytes]:
        """Chain hashes of what this origin computed."""

    def sent_prefixes(self, origin: CacheOrigin) -> frozenset[bytes]:
        """Chain hashes of what it sent, not knowing what came of it."""

    def sister_prefixes(self, *, namespace: str, key_space: str | None) -> frozenset[bytes]:
        """Chain hashes of what any engine process computed under these keys, for this release."""

    def add_computed_prefixes(self, origin: CacheOrigin, prefixes: frozenset[bytes]) -> None:
        """Remembers what this origin computed."""

    def add_sent_prefixes(self, origin: CacheOrigin, prefixes: frozenset[bytes]) -> None:
        """Remembers what it sent, not knowing what came of it."""


class Attribution:
    """Whose the hits of one engine process are.

    Args:
        identity: what it said of itself at the start of the run.
        namespace: of the release that is said to be served.
        memory: earlier runs' knowledge.
        sisters: what the replicas of this run computed.
    """

    def __init__(self, identity: EngineIdentity, *, namespace: str, memory: PrefixMemory, sisters: Sisters) -> None:
        self._identity = identity
        self._sisters = sisters
        self._namespace = namespace
        self._memory = memory
        self._known: dict[str | None, KnownPrefixes] = {}
        self._is_rank_in_doubt = False

    def doubt_rank(self) -> None:
        """From now on requests may be served by another rank's cache: nothing is attributed, and nothing learnt."""
        self._is_rank_in_doubt = True

    def foreign(
        self, request: Request, observation: Observation, *, tokens: tuple[int, ...] | None, cached: int | None
    ) -> tuple[int | None, Unattributed | None]:
        """The foreign tokens of a hit, or why they are not known; what was sent is remembered.

        Args:
            request: that was sent.
            observation: its answer.
            tokens: its token ids; None where the server does not tell them.
            cached: tokens that hit; None where nobody told.
        """
        told = Unattributed.UNTOLD if cached is None else None
        if tokens is None:
            return (0, None) if cached == 0 else (None, told or Unattributed.NO_IDS)
        found = self._accounted(request, observation, tokens=tokens, cached=cached)
        if self._identity.capabilities.block_tokens is None:  # what was learnt helps a run that knows the block
            return (0, None) if cached == 0 else (None, told or Unattributed.NO_BLOCK)
        return found

    def _accounted(
        self, request: Request, observation: Observation, *, tokens: tuple[int, ...], cached: int | None
    ) -> tuple[int | None, Unattributed | None]:
        """The same of a prompt with token ids."""
        told = Unattributed.UNTOLD if cached is None else None
        if request.bypasses_cache and not self._identity.capabilities.reference_heals:
            # It may write, but a look-up goes on finding the first inserted entry: it explains no later hit.
            # Source: vLLM 0.32.0, v1/core/block_pool.py, lines 42-70.
            return cached, told
        known = self._known_in(self._key_space(request))
        was_empty = known.is_empty
        doubt = self._doubt_of(observation, tokens=tokens, cached=cached) or told
        if doubt or observation.lost:
            known.add_sent(tokens)  # an attempt that was lost may have been computed: then the next hits itself
        if cached is None or doubt:
            # Nothing says how far ours reaches; where nothing of ours was, a hit is foreign all the same.
            is_known = cached == 0 or (was_empty and doubt in (Unattributed.OTHER_IDS, Unattributed.OTHER_BLOCK))
            return (cached, told) if is_known else (None, told or doubt)
        foreign = known.account(tokens, cached_tokens=cached)
        if foreign is None:
            return None, Unattributed.LOST if observation.lost else Unattributed.SENT
        if foreign == 0:
            self._tell_sisters(request, tokens)
        unadapted = self._known_in(origin_space(request.salt))
        if foreign and known is not unadapted and unadapted.sent_tokens(tokens) >= cached:
            # Another name of the same weights, or an adapter that its engine does not keep apart.
            return None, Unattributed.ADAPTER
        return foreign, None

    def _doubt_of(
        self, observation: Observation, *, tokens: tuple[int, ...], cached: int | None
    ) -> Unattributed | None:
        """Why nothing is learnt of an answer, whatever it tells of its hit."""
        if self._is_rank_in_doubt:
            return Unattributed.RANK
        if observation.prompt_tokens not in (None, len(tokens)):
            return Unattributed.OTHER_IDS
        # Smaller blocks than stated show in such a hit. Of a hit that is a multiple, ours explain all that was ours.
        abilities = self._identity.capabilities
        is_other = abilities.is_block_stated and abilities.block_tokens and (cached or 0) % abilities.block_tokens
        return Unattributed.OTHER_BLOCK if is_other else None

    def is_of_sisters(self, request: Request, tokens: tuple[int, ...], *, cached: int) -> bool:
        """Whether a hit ends within what this replica and others of the release computed."""
        block_tokens = self._identity.capabilities.block_tokens
        if block_tokens is None:
            return False
        key_space = self._key_space(request)
        computed = self._sisters.computed(key_space, block_tokens=block_tokens)
        return self._known_in(key_space).explained_tokens(tokens, also=computed) >= cached

    def _tell_sisters(self, request: Request, tokens: tuple[int, ...]) -> None:
        block_tokens = self._identity.capabilities.block_tokens
        if block_tokens is not None:
            self._sisters.learn(tokens, key_space=self._key_space(request), block_tokens=block_tokens)

    def add_sent(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Remembers that a prompt was sent, and that nobody told what came of it."""
        self._known_in(self._key_space(request)).add_sent(tokens)

    def forget(self) -> None:
        """Forgets what this release computed: its cache was emptied. The memory has to forget first."""
        self._known.clear()

    def _key_space(self, request: Request) -> str | None:
        """Where a request's blocks live in this process: its salt, and the adapter where its body names one.

        Adapters share no block with the served model.
        """
        asked = request.body.get("model")
        adapter = asked if isinstance(asked, str) and asked != self._identity.model else None
        return origin_space(request.salt, adapter=adapter)

    def spaces_within(self, salt: str | None) -> tuple[str | None, ...]:
        """Key spaces that requests with a salt may have had in this run: the salt's own, and those of adapters."""
        plain = origin_space(salt)
        adapters = f"{plain or ''}{_ADAPTER}"
        return (plain, *(space for space in self._known if space is not None and space.startswith(adapters)))

    def learn(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Remembers that this release computed a whole prompt, here or elsewhere."""
        self._known_in(self._key_space(request)).learn(tokens)
        self._tell_sisters(request, tokens)

    def _known_in(self, key_space: str | None) -> KnownPrefixes:
        """What is known to have been computed by this release in a key space of this process."""
        if key_space not in self._known:
            abilities = self._identity.capabilities
            # Where only this run asks, the memory has nothing: a run has dozens of these, at four queries each.
            origin = None if is_probe_salt(key_space) else self._origin(key_space)
            known = self._memory.computed_prefixes(origin) if origin else frozenset()
            sent = self._memory.sent_prefixes(origin) if origin else frozenset()
            self._known[key_space] = KnownPrefixes(
                block_tokens=abilities.block_tokens,
                is_block_told=not abilities.is_block_stated,
                known=known,
                sent=sent,
            )
        return self._known[key_space]

    def _origin(self, key_space: str | None) -> CacheOrigin | None:
        if self._identity.process is None:
            return None  # without a process identity an earlier run may have met another cache
        return CacheOrigin(
            replica=self._identity.url,
            process=self._identity.process,
            key_space=key_space,
            namespace=self._namespace,
        )

    def remember(self) -> None:
        """Hands what this run learnt to the memory; call it once, also when the run was cut short.

        Key spaces of this run's own probes are left out: nobody will ever ask there again.
        """
        for key_space, known in self._known.items():
            origin = self._origin(key_space)
            if origin and not is_probe_salt(key_space):
                self._memory.add_computed_prefixes(origin, known.learnt)
                self._memory.add_sent_prefixes(origin, known.newly_sent)


_ADAPTER = "@"  # between key space and adapter; no name of a key space has it


def origin_space(salt: str | None, *, adapter: str | None = None) -> str | None:
    """How a key space is called in `CacheOrigin`: one name for each pair of salt and adapter, None for neither.

    Of a salt its name (`workload.key_space`) is told, never a secret.
    """
    name = key_space_name(salt)
    return name if adapter is None else f"{name or ''}{_ADAPTER}{adapter}"
