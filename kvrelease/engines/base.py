"""The protocol that every engine speaks: requests, observations, capabilities, counters.

Prewarming, probing and generating are the same `complete` with other requests. A capability that an engine lacks is
data (`Capabilities`), shows up in the verdict, and is never emulated in silence.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from kvrelease.artifacts import JsonObject
from kvrelease.engines.cacheability import expected_hit, why_not_cached


class EngineKind(enum.StrEnum):
    """Which server is behind a URL."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"
    LOCAL = "local"


class Route(enum.StrEnum):
    """The path that a request is sent to."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One generation, as production sends it plus what a probe needs on top.

    Attributes:
        route: where it goes.
        body: production's body, whole; the adapter adds to a copy, and drops nothing from it but its own budget of
            tokens and, in a request that is not streamed, `stream_options`, which servers refuse there.
        salt: the key space: the text of the engine's salt field, None for no salt. An engine without salts raises
            `UsageError` when one is given.
        max_tokens: tokens to generate, >= 1.
        top_logprobs: k of the top-k log-probabilities wanted per generated token, 0 for none.
        bypasses_cache: ask the engine not to read its prefix cache (it may still write it).
        streams: ask for a stream, so that TTFT can be told; some bypasses exclude it.
        slot: number of the slot that is to serve it; None for the engine's choice. An engine without slots raises
            `UsageError` when one is given.
    """

    route: Route
    body: JsonObject
    salt: str | None = None
    max_tokens: int = 1
    top_logprobs: int = 0
    bypasses_cache: bool = False
    streams: bool = False
    slot: int | None = None


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate of a generated position.

    Attributes:
        token: the text of the token, as the server spells it.
        logprob: nats, <= 0; a server's stand-in for minus infinity (-9999, null) is kept out of the list.
    """

    token: str
    logprob: float


class GeneratedToken(msgspec.Struct, frozen=True, kw_only=True):
    """One generated token.

    Attributes:
        token: its text, as the server spells it.
        token_id: its id, None when the server does not tell.
        logprob: of the chosen token, nats; None when not known (NaN included).
        top: [k], most probable first; empty when not asked for.
    """

    token: str
    token_id: int | None = None
    logprob: float | None = None
    top: tuple[TopLogprob, ...] = ()


class CacheTiers(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cached tokens of one prompt came from, by the server's own word.

    Attributes:
        device_tokens: found in the accelerator's memory.
        host_tokens: brought back from the host's memory.
        storage_tokens: read from a store outside the process; None when the server has none.
        storage: the server's name of that store.
    """

    device_tokens: int
    host_tokens: int = 0
    storage_tokens: int | None = None
    storage: str | None = None

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.device_tokens + self.host_tokens + (self.storage_tokens or 0)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one request showed. None means "the server does not say", never zero.

    Attributes:
        text: the generated text (content and reasoning).
        tokens: [generated], empty when the server reports no log-probabilities.
        prompt_tokens: length of the prompt in tokens, by the server's own count.
        cached_tokens: how many of them came from a prefix cache, by the response's own usage.
        tiers: which tiers of the cache they came from.
        ttft_s: seconds from sending to the first generated token, of a streamed request only.
        total_s: seconds from sending to the last byte.
        finish_reason: `stop`, `length`, …
        model: the model name that the response carries.
        system_fingerprint: the response's own label; a hint, never deciding.
        retries: how often it was sent again before it answered.
        lost: of the attempts before, those that may have been computed all the same (the connection broke, a gateway
            answered 5xx) and have filled the cache: above zero a hit may be a hit of this very request.
        was_throttled: the server asked for fewer requests before it answered (429, or 503 with a time).
        retry_after_s: the longest wait that it asked for meanwhile, seconds; None when it asked for none.
        rank: the data-parallel rank that answered.
        id: the response's own id.
        created: when the answer was made, by the server's clock; Unix time in whole seconds.
        sent_at: when it was asked for, by our clock; Unix time in seconds.
        cached_in_front: one sentence naming the response cache that says it answered (`front_cache`); None where none
            does, which is no proof that an engine computed the answer.
    """

    text: str
    tokens: tuple[GeneratedToken, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tiers: CacheTiers | None = None
    ttft_s: float | None = None
    total_s: float
    finish_reason: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    retries: int = 0
    lost: int = 0
    was_throttled: bool = False
    retry_after_s: float | None = None
    rank: int | None = None
    id: str | None = None
    created: int | None = None
    sent_at: float | None = None
    cached_in_front: str | None = None


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do for us.

    Attributes:
        has_salt: a request can choose its own key space.
        has_bypass: a request can be made not to read the cache.
        has_tokenize: the server tells token ids.
        has_flush: the server can empty its own cache.
        cache_outlives_process: what an earlier process left in a store is found by this one, so that a process which
            nobody has asked yet may hit all the same.
        reference_heals: a request that bypasses the cache replaces what was cached (one slot), which hides a fault.
        block_tokens: granularity of a hit in tokens, as it is in effect (hybrid models pad it); None when not known.
        is_block_stated: by the user, of an engine that does not tell it; nothing has proved it.
        lost_tokens: of the end of every hit, computed again all the same (a speculative decoder that reads hidden
            states); 0 as far as is known.
        cacheable_limit: prompts that can be resident at once (slots); None when only memory limits it.
        why_nothing_is_cached: "cannot be cached: …", where the server says so of itself; None where it does not.
        miss_causes: what, on this engine, lets an identical prompt miss; most likely first.
    """

    has_salt: bool = False
    has_bypass: bool = False
    has_tokenize: bool = False
    has_flush: bool = False
    cache_outlives_process: bool = False
    reference_heals: bool = False
    block_tokens: int | None = None
    is_block_stated: bool = False
    lost_tokens: int = 0
    cacheable_limit: int | None = None
    why_nothing_is_cached: str | None = None
    miss_causes: tuple[str, ...] = ()

    def expected_hit(self, prompt_tokens: int) -> int | None:
        """Most tokens of a prompt that a cache holding all of it can serve; None when the block is not known."""
        if self.block_tokens is None:
            return None
        return expected_hit(prompt_tokens, block_tokens=self.block_tokens, lost_tokens=self.lost_tokens)

    def why_not_cached(self, prompt_tokens: int) -> str | None:
        """Why nothing of a prompt can be cached, "cannot be cached: …"; None where something can, or may."""
        if self.why_nothing_is_cached is not None:
            return self.why_nothing_is_cached
        if self.block_tokens is None:
            return None
        return why_not_cached(prompt_tokens, block_tokens=self.block_tokens, lost_tokens=self.lost_tokens)


class RankPin(msgspec.Struct, frozen=True, kw_only=True):
    """One data-parallel rank of an engine, to which all requests of a client go.

    Attributes:
        rank: as the engine's counters name it.
        routed_as: what the request's header carries: where one server has some of a larger group's ranks, the place
            among its own.
    """

    rank: int
    routed_as: int


def shown_replica(url: str, *, name: str | None = None, rank: int | None = None) -> str:
    """How people read which replica is meant: its URL, with the name and the rank that it is one of."""
    beside = ", ".join(part for part in (name, None if rank is None else f"rank {rank}") if part)
    return f"{url} ({beside})" if beside else url


class EngineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself. Labels are hints: printed, never deciding.

    Attributes:
        kind: which adapter speaks to it.
        url: where; for the in-process engine its directory.
        version: the server's version, None when it does not tell.
        model: the served model name that requests must carry.
        context_tokens: longest prompt plus generation, None when not told.
        process: distinguishes this engine process from its predecessor at the same URL (start time, PID); None when
            it cannot be told.
        capacity_tokens: tokens that the engine's device prefix cache can hold, None when not told.
        capabilities: what can be asked of it.
        labels: what it claims about its weights (`root`, `model_path`, `weight_version`, …).
        runtime: settings that change KV's bytes or layout, as far as the server tells them.
        runtime_unread: names of such settings that it does not tell.
        name: the name of which `url` is one address; None where the URL is what was given.
        rank: the data-parallel rank that this client is pinned to; None where the engine has one cache, or chooses.
        ranks: that its counters tell apart, ascending; several are as many caches behind one URL.
    """

    kind: EngineKind
    url: str
    version: str | None
    model: str
    context_tokens: int | None
    process: str | None
    capacity_tokens: int | None = None
    capabilities: Capabilities
    labels: dict[str, str] = {}
    runtime: dict[str, str] = {}
    runtime_unread: tuple[str, ...] = ()
    name: str | None = None
    rank: int | None = None
    ranks: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        """How people read which replica this is."""
        return shown_replica(self.url, name=self.name, rank=self.rank)


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What the server counted since it started, of one data-parallel rank or summed over all.

    Attributes:
        queried_tokens: prompt tokens looked up in the prefix cache (or prompt tokens seen, where only that is told).
        cached_tokens: of these, found in a local cache.
        external_queried_tokens: looked up in a store outside the process; None when the server has no such counter.
        external_cached_tokens: of these, found there; None likewise.
        cached_by_source: hits by where they came from, in the server's own words; empty where it does not tell.
        running_requests: requests in flight now, None when not told.
        waiting_requests: requests that wait for the engine now, None when not told.
    """

    queried_tokens: float
    cached_tokens: float
    external_queried_tokens: float | None = None
    external_cached_tokens: float | None = None
    cached_by_source: dict[str, float] = {}
    running_requests: float | None = None
    waiting_requests: float | None = None

    @property
    def all_cached_tokens(self) -> float:
        """Found in any cache, local or external."""
        return self.cached_tokens + (self.external_cached_tokens or 0)

    def since(self, earlier: Counters) -> Counters | None:
        """What was counted after `earlier`; what is in flight or waiting is as it is now.

        None where a counter went back (the server restarted), or where more was found than looked up: then nothing of
        the window is known. Of a counter that only some servers have, the same makes that one unknown.
        """
        queried = self.queried_tokens - earlier.queried_tokens
        cached = self.cached_tokens - earlier.cached_tokens
        if queried < 0 or not 0 <= cached <= queried:
            return None
        return Counters(
            queried_tokens=queried,
            cached_tokens=cached,
            external_queried_tokens=_growth(earlier.external_queried_tokens, self.external_queried_tokens),
            external_cached_tokens=_growth(earlier.external_cached_tokens, self.external_cached_tokens),
            cached_by_source={
                source: tokens - earlier.cached_by_source.get(source, 0.0)
                for source, tokens in self.cached_by_source.items()
            },
            running_requests=self.running_requests,
            waiting_requests=self.waiting_requests,
        )


def _growth(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before


class EngineClient(Protocol):
    """One replica. Opened with `async with`; whoever opens closes."""

    @property
    def kind(self) -> EngineKind:
        """Which adapter this is."""

    @property
    def url(self) -> str:
        """How messages name it."""

    @property
    def name(self) -> str | None:
        """The name of which `url` is one address; None where the URL is what was given."""

    @property
    def rank(self) -> int | None:
        """The data-parallel rank that it is pinned to; None where the engine has one cache, or chooses."""

    async def identify(self) -> EngineIdentity:
        """Who answers; asked again on every call.

        Raises:
            WrongModel: the server does not serve the model that was asked for.
            UsageError: it serves several, and none was named.
            ServiceError: it did not answer properly.
        """

    async def current_process(self) -> str | None:
        """`EngineIdentity.process` of who answers now, by the one route that tells it; None when nothing does.

        Raises:
            ServiceError: it did not answer properly.
        """

    async def tokenize(self, request: Request) -> tuple[int, ...] | None:
        """[prompt] token ids of a request by the server's own tokenizer and chat template; None when it cannot tell.

        Raises:
            ServiceError: it can tell, and failed.
        """

    async def complete(self, request: Request) -> Observation:
        """What one request shows.

        Raises:
            UsageError: the request asks for what `Capabilities` denies.
            PromptTooLong: prompt and generation do not fit the context.
            ServiceError: no proper answer within the deadline, after the retries that are safe.
        """

    async def counters(self) -> Counters | None:
        """The server's own counters; None when it exposes none that can be used."""

    async def flush(self) -> bool | None:
        """Empties this engine's own cache: True done, False refused, None when the reply does not tell.

        Callers need the user's `--allow-flush`. Never touches a shared store.
        """

    async def aclose(self) -> None:
        """Closes connections; the engine keeps running."""
