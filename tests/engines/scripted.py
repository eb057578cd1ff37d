"""A real HTTP server that behaves like vLLM, llama.cpp or a plain OpenAI server, with scripted weights and faults.

Derived from source, and not a mock of our own classes: every adapter speaks to it over a real socket.

Source: vLLM 0.32.0 (block hash chain with the salt in the first block, at most ⌊(n-1)/B⌋·B hits, the first inserted
block wins, `prompt_logprobs` skips reading and still writes, null `prompt_tokens_details` without its flag,
`reset_prefix_cache` and `collective_rpc` in development mode only, error texts, metric names); llama.cpp b11434 (slots,
longest common prefix, `cache_prompt: false` replaces the slot, `timings.cache_n`, `/props`, slot files without any
identity, completions with log-probabilities of chat's shape); SGLang 0.5.23 (`scripted_sglang.py`).

Example:
    with ScriptedEngine(kind=EngineKind.VLLM, release="old") as engine:
        ...                                   # requests to engine.url fill the cache with old's keys and values
        engine.reload("new")                  # in place, the cache stays: the incident
        engine.break_with(Break.BUSY, times=2)  # the next two generations answer 429
        assert engine.requests[-1].path == "/v1/chat/completions"

What it computes is described in `scripted_model.py`: tokens are words, a release is a name, and stale, clean and old
answers differ in their log-probabilities, by about `strength_nats`. The same requests give the same answers.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from kvrelease.engines.base import EngineKind
from tests.engines import scripted_sglang
from tests.engines.scripted_break import Break
from tests.engines.scripted_cache import BlockCache, Cache, SlotCache
from tests.engines.scripted_model import chat_prompt, ranked, token_ids, word_id
from tests.engines.scripted_routes import GENERATIONS, Handler
from tests.http_servers import ManyClientsServer

__all__ = ["Break", "Generation", "ScriptedEngine", "Seen"]

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Seen:
    """One request that arrived. Header names are in lower case; `body` is empty for a GET."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json


@dataclasses.dataclass
class Breakage:
    """A fault in force."""

    how: Break
    path: str
    times: int | None


@dataclasses.dataclass
class Generation:
    """What one request made."""

    words: list[str]
    tops: Sequence[Sequence[tuple[str, float]]]
    prompt_tokens: int
    cached: int
    external: int = 0


class ScriptedEngine:
    """One engine process behind a URL. Use as a context manager.

    Args:
        kind: VLLM, LLAMACPP, OPENAI (vLLM's cache, and no route beyond the protocol) or SGLANG.
        release: the weights it starts with; any name.
        model: the served model name.
        block_tokens: granularity of a hit of the block cache.
        capacity_blocks: blocks that fit; None for no limit.
        gives_up_a_block: every hit loses its last block, as with Eagle and MTP; told in development mode.
        slots: prompts that fit (llama.cpp).
        keeps_in_ram: llama.cpp's `--cache-ram`.
        context_tokens: longest prompt plus generation.
        reports_cached_tokens: False leaves `prompt_tokens_details` null, and `timings` out.
        keeps_extensions: whether what SGLang adds to the protocol arrives (a gateway may drop it).
        has_metrics: whether `/metrics` answers.
        has_dev_routes: vLLM's development mode, llama.cpp's `--slot-save-path`, or SGLang's `/server_info`.
        ignores_salt: answers as if no salt was sent (a gateway dropped it, a misspelt field).
        honours_bypass: False goes on reading the cache when asked not to.
        api_key: wanted as a bearer token on `/v1`; None for open.
        store: a shared dictionary, the tier below, which ignores salts (SGLang's does not); it survives `restart`,
            `reload` and flushes.
        adapters: names of adapters that SGLang lists.
        loras: vLLM's adapters, from the served name to what was loaded under it: keys have the name only, and a store
            below not even that.
        window_tokens: of sliding windows: what lies further back is cached, and not read; None for full attention.
        slot_files: a shared dictionary for llama.cpp's slot save and restore.
        strength_nats: distance between releases.
        noise: whether every answer carries up to 0.02 nats of noise, different from run to run.
        host: the loopback address to listen on: several engines can have one port.
        port: to listen on; 0 for any.
        ranks: data-parallel ranks, each with a cache and counters of its own (vLLM, SGLang).
        honours_rank: False deals requests out in turn whatever their header says, with status 200, as some routes do.

    Attributes:
        url: the base URL, without `/v1`.
        requests: what arrived, in order.
        cached_of: [generations] cached tokens of each, whatever was reported.
    """

    def __init__(
        self,
        kind: EngineKind = EngineKind.VLLM,
        *,
        release: str = "old",
        model: str = "scripted",
        block_tokens: int = 16,
        capacity_blocks: int | None = None,
        gives_up_a_block: bool = False,
        slots: int = 1,
        keeps_in_ram: bool = False,
        context_tokens: int = 4096,
        reports_cached_tokens: bool = True,
        keeps_extensions: bool = True,
        has_metrics: bool = True,
        has_dev_routes: bool = True,
        ignores_salt: bool = False,
        honours_bypass: bool = True,
        api_key: str | None = None,
        store: dict[str, str] | None = None,
        adapters: Sequence[str] = (),
        loras: Mapping[str, str] | None = None,
        window_tokens: int | None = None,
        slot_files: dict[str, tuple[list[int], list[str]]] | None = None,
        strength_nats: float = 0.5,
        noise: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        ranks: int = 1,
        honours_rank: bool = True,
    ) -> None:
        self.kind = kind
        self.host = host
        self.release = release
        self.model = model
        self.block_tokens = block_tokens
        self.capacity_blocks = capacity_blocks
        self.gives_up_a_block = gives_up_a_block
        self.slots = slots
        self.context_tokens = context_tokens
        self.reports_cached_tokens = reports_cached_tokens
        self.keeps_extensions = keeps_extensions
        self.has_metrics = has_metrics
        self.has_dev_routes = has_dev_routes
        self.ignores_salt = ignores_salt
        self.honours_bypass = honours_bypass
        self.api_key = api_key
        self.slot_files = {} if slot_files is None else slot_files
        self.strength_nats = strength_nats
        self.has_noise = noise
        self.flush_reply: tuple[int, bytes] | None = None
        """Replaces the answer of a flush (status, body); the cache is then left alone."""
        self.token_shift = 0
        """Added to every id that `/tokenize` tells: another tokenizer."""
        self.cache_labels: dict[str, object] = {}
        """More of `vllm:cache_config_info`, or in place of what it has."""
        self.refused_text: str | None = None
        """A body that holds it is answered with `refused_status` on `refused_on`."""
        self.refused_status = 400
        self.refused_on: tuple[str, ...] = GENERATIONS
        self.external_source: str | None = None
        """What `vllm:prompt_tokens_cached_by_source` calls the store below; None for a release without that metric."""
        self.fingerprint: str | None = None
        """vLLM's `--fingerprint-value`; None for the label that it makes itself."""
        self.other_names: tuple[str, ...] = ()
        """vLLM's further `--served-model-name`s."""
        self.store_path = "/kv/shared"
        """Where vLLM's connector keeps the store below."""
        self.waiting = 0
        """What `vllm:num_requests_waiting` tells."""
        self.adapters = tuple(adapters)
        self.loras = dict(loras or {})
        self.window_tokens = window_tokens
        self.weight_versions = ["default"]  # SGLang's label; several when an answer is generated across a swap
        self.root = f"/models/{release}"  # what /v1/models claims; like vLLM's, a reload leaves it
        self.requests: list[Seen] = []
        self.cached_of: list[int] = []
        self.ranks = ranks
        self.routing = threading.local()
        """`rank`: where the request that this thread serves goes; `port`: of the client's end of its connection."""
        self.honours_rank = honours_rank
        self.rank_of: list[int] = []
        """[generations] the rank that ran each."""
        self.queried_of_rank = [0] * ranks
        self.hits_of_rank = [0] * ranks
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.external_hit_tokens = 0
        self.started = 1_700_000_000.0
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self._breakages: list[Breakage] = []
        self._store = store
        self._keeps_in_ram = keeps_in_ram
        self.caches: list[Cache] = [self._new_cache() for _ in range(ranks)]
        self._server = ManyClientsServer((host, port), type("BoundHandler", (Handler,), {"engine": self}))

    @property
    def cache(self) -> Cache:
        """The cache of the first rank."""
        return self.caches[0]

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.stop()

    def reload(self, release: str, *, reset: bool = False) -> None:
        """Swaps the weights in place, as `reload_weights` does: the cache stays unless `reset`."""
        with self.lock:
            self.release = release
            if reset:
                self.flush()

    def restart(self, release: str | None = None) -> None:
        """Becomes a new process at the same URL: its own cache and counters are gone, the store below is not."""
        with self.lock:
            self.release = self.release if release is None else release
            self.root = f"/models/{self.release}"
            self.caches = [self._new_cache() for _ in range(self.ranks)]
            self.queried_tokens = self.hit_tokens = self.external_hit_tokens = 0
            self.queried_of_rank, self.hits_of_rank = [0] * self.ranks, [0] * self.ranks
            self.started += 100.0

    def break_with(self, how: Break, *, times: int | None = None, path: str = "/v1/c") -> None:
        """Misbehaves on the next requests whose path begins with `path`: `times` of them, or from now on."""
        with self.lock:
            self._breakages.append(Breakage(how, path, times))

    def mend(self) -> None:
        """Ends every misbehaviour."""
        with self.lock:
            self._breakages.clear()

    def generations(self) -> list[Seen]:
        """The requests that generate, in order."""
        return [seen for seen in self.requests if seen.path in ("/v1/chat/completions", "/v1/completions")]

    def prompt_ids(self, path: str, body: Json) -> list[tuple[int, ...]]:
        """[prompts] token ids of each prompt of a body."""
        if path == "/v1/chat/completions":
            return [token_ids(chat_prompt(body))]
        prompt = body.get("prompt", "")
        if isinstance(prompt, str):
            return [token_ids(prompt)]
        if all(isinstance(item, int) for item in prompt):
            return [tuple(prompt)]
        return [token_ids(item) if isinstance(item, str) else tuple(item) for item in prompt]

    def tokens_of(self, body: Json) -> Sequence[int]:
        """What vLLM's `/tokenize` tells."""
        return token_ids(body["prompt"] if "prompt" in body else chat_prompt(body))

    def routed(self, headers: dict[str, str]) -> int:
        """The rank that a request goes to: that of its header, else the next in turn."""
        asked = headers.get("x-data-parallel-rank")
        with self.lock:
            return int(asked) if asked is not None and self.honours_rank else len(self.rank_of) % self.ranks

    def generate(self, prompt: Sequence[int], body: Json) -> Generation:
        """Runs one request: reads the cache, computes the rest with the running release, and writes the cache."""
        salt = None if self.ignores_salt else self._salt(body)
        running = self.release
        if (lora := body.get("model")) in self.loras:
            salt, running = f"{salt or ''}@{lora}", f"{running}+{self.loras[lora]}"
        bypasses = self._bypasses(body) and self.honours_bypass
        with self.lock:
            rank = getattr(self.routing, "rank", 0)
            cache = self.caches[rank]
            found = cache.read(prompt, salt=salt, bypasses=bypasses, slot=body.get("id_slot"))
            cached = len(found.provenance)
            tokens = list(prompt)
            provenance = found.provenance + [running] * (len(prompt) - cached)
            words: list[str] = []
            tops: list[Sequence[tuple[str, float]]] = []
            noise = f"run {len(self.cached_of)}" if self.has_noise else None
            wanted = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
            # Both servers shorten a generation that would outgrow the context.
            for _ in range(min(wanted, self.context_tokens - len(prompt))):
                seen = provenance if self.window_tokens is None else provenance[-self.window_tokens :]
                top = ranked(tokens, seen, running=running, strength_nats=self.strength_nats, noise=noise)
                tops.append(top)
                words.append(top[0][0])
                tokens.append(word_id(top[0][0]))
                provenance.append(running)
            # The last generated token has no keys and values yet.
            cache.write(tokens[:-1], provenance[:-1], salt=salt)
            if not bypasses or self.kind is not EngineKind.VLLM:
                self.queried_of_rank[rank] += len(prompt)
                self.hits_of_rank[rank] += cached - found.external
                self.queried_tokens += len(prompt)
                self.hit_tokens += cached - found.external
                self.external_hit_tokens += found.external
            self.cached_of.append(cached)
            self.rank_of.append(rank)
        return Generation(words=words, tops=tops, prompt_tokens=len(prompt), cached=cached, external=found.external)

    def usage(self, usage: Json) -> Json:
        """The `usage` of an answer; for servers that tell it otherwise."""
        return usage

    @property
    def has_store(self) -> bool:
        """Whether a tier below is attached."""
        return self._store is not None

    def flush(self) -> None:
        """Empties this engine's own cache."""
        with self.lock:
            for cache in self.caches:
                cache.clear()

    def refuses(self, path: str, body: Json) -> bool:
        """Whether a body is one that this engine does not take."""
        return self.refused_text is not None and path in self.refused_on and self.refused_text in json.dumps(body)

    def take_breakage(self, path: str) -> Break | None:
        """The misbehaviour that this request meets."""
        with self.lock:
            for breakage in self._breakages:
                if path.startswith(breakage.path) and breakage.times != 0:
                    if breakage.times is not None:
                        breakage.times -= 1
                    return breakage.how
        return None

    def _salt(self, body: Json) -> str | None:
        match self.kind:
            case EngineKind.VLLM:
                salt: str | None = body.get("cache_salt")
                return salt
            case EngineKind.SGLANG:
                return scripted_sglang.key_space(body)
            case _:
                return None

    def _bypasses(self, body: Json) -> bool:
        match self.kind:
            case EngineKind.VLLM:
                return body.get("prompt_logprobs") is not None
            case EngineKind.LLAMACPP:
                return body.get("cache_prompt") is False
            case _:
                return False

    def _new_cache(self) -> Cache:
        if self.kind is EngineKind.LLAMACPP:
            return SlotCache(slots=self.slots, keeps_in_ram=self._keeps_in_ram)
        return BlockCache(
            block_tokens=self.block_tokens,
            capacity_blocks=self.capacity_blocks,
            store=self._store,
            store_keeps_salt=self.kind is EngineKind.SGLANG,
            gives_up_a_block=self.gives_up_a_block,
        )
