"""The in-process engine: transformers, greedy, with a block-wise prefix cache that any key can be tried on.

It serves as the reference that is clean by construction, as the demo's pair of workers, and as the instrument that
measures what staleness looks like (`stale_and_clean`).
"""

# ruff: noqa: PLC0415 - torch costs seconds, and is there only with the `local` extra

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from kvrelease.chain import DEFAULT_BLOCK_TOKENS, cacheable_blocks
from kvrelease.engines.base import (
    Capabilities,
    Counters,
    EngineIdentity,
    EngineKind,
    GeneratedToken,
    Observation,
    Request,
    TopLogprob,
)
from kvrelease.engines.block_cache import TOKENS_ONLY, BlockCache, KeyScheme
from kvrelease.engines.blocks import COMPUTE_DTYPES, KV_CACHE_DTYPES, Block, BlockShape
from kvrelease.engines.kernel_noise import KernelNoise, NoiseSource
from kvrelease.engines.local_kv import KvCache, append_blocks, cut_block, kv_shape, run_model
from kvrelease.engines.local_release import LoadedRelease, computing, load
from kvrelease.engines.local_tokens import TokenCodec
from kvrelease.engines.prompt_body import StopRule, stop_rule_of
from kvrelease.engines.request_fields import refuse_slot
from kvrelease.errors import PromptTooLong, UnsupportedRelease, UsageError

if TYPE_CHECKING:
    import torch

# The quietest: hits and cold runs agree within 1e-4 nats (tests/engines/test_local.py). Also the fastest where the CPU
# has no bf16 instructions: 850 tokens of SmolLM2-135M took 3 s against 15 to 20 on two busy cores.
DEFAULT_DTYPE = "float32"
_OPENED = itertools.count(1)


async def open_local(
    directory: Path,
    *,
    cache: BlockCache | None = None,
    key_scheme: KeyScheme = TOKENS_ONLY,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    dtype: str = DEFAULT_DTYPE,
    kv_cache_dtype: str = "auto",
    threads: int | None = None,
    device: str = "cpu",
    noise: KernelNoise | None = None,
) -> LocalEngine:
    """An engine that serves the release in a directory.

    Args:
        directory: config.json, safetensors weights, tokenizer.
        cache: where blocks are kept; engines that are given the same one share it. None for one of its own.
        key_scheme: what keys a block.
        block_tokens: tokens of a block, >= 1.
        dtype: `float32`, `bfloat16` or `float16`; of weights, and of KV as it is computed.
        kv_cache_dtype: what blocks are kept as: `auto` as they were computed, `fp8_e4m3` in eight bits without a scale,
            as vLLM's --kv-cache-dtype does it. A request reads what it hits in eight bits, and what it computes as
            computed, so that a hit answers a little differently from a miss, for good.
        threads: for torch, process-wide; None leaves its setting alone.
        device: of torch, that the model runs on; blocks are kept in the host's memory all the same.
        noise: of kernels, for tests and benchmarks of what judges answers; None, as everywhere else, for none.

    Raises:
        MissingExtra: torch or transformers is not installed.
        UsageError: an argument is out of range.
        InputError: the directory cannot be loaded; `UnsupportedRelease` when it is whole, and cannot run here.
    """
    if dtype not in COMPUTE_DTYPES:
        raise UsageError(f"opening {directory} in process: dtype {dtype!r} is none of {', '.join(COMPUTE_DTYPES)}")
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise UsageError(
            f"opening {directory} in process: kv_cache_dtype {kv_cache_dtype!r} is none of {', '.join(KV_CACHE_DTYPES)}"
        )
    if block_tokens < 1 or (threads is not None and threads < 1):
        raise UsageError(f"opening {directory} in process: block_tokens and threads must be at least 1")
    engine = await asyncio.to_thread(
        _open,
        directory,
        cache or BlockCache(),
        key_scheme,
        block_tokens=block_tokens,
        dtype=dtype,
        kept_as=KV_CACHE_DTYPES[kv_cache_dtype] or dtype,
        threads=threads,
        device=device,
        noise=noise,
    )
    engine.cache.attach()
    return engine


def _open(
    directory: Path,
    cache: BlockCache,
    key_scheme: KeyScheme,
    *,
    block_tokens: int,
    dtype: str,
    kept_as: str,
    threads: int | None,
    device: str,
    noise: KernelNoise | None,
) -> LocalEngine:
    release = load(directory, dtype=dtype, device=device)
    with computing(directory):
        shape = kv_shape(release, directory, block_tokens=block_tokens, dtype=kept_as)
    return LocalEngine(directory, release, cache, key_scheme, shape=shape, dtype=dtype, threads=threads, noise=noise)


class LocalEngine:
    """One in-process worker; opened by `open_local`.

    Generation is greedy whatever the body says: `temperature`, `top_p`, `seed`, penalties, `logit_bias` and
    `response_format` are ignored, as probes override them on every engine, and so is `model`. The body's `stop`,
    `stop_token_ids` and `ignore_eos` are followed. Blocks of the prompt are cached, not those of generated tokens.
    One request runs at a time.
    """

    def __init__(
        self,
        directory: Path,
        release: LoadedRelease,
        cache: BlockCache,
        key_scheme: KeyScheme,
        *,
        shape: BlockShape,
        dtype: str,
        threads: int | None,
        noise: KernelNoise | None,
    ) -> None:
        self.cache = cache
        self.scratch = BlockCache()
        self.key_scheme = key_scheme
        self.shape = shape
        self.process = f"{os.getpid()}-{next(_OPENED)}-{time.time_ns()}"
        self._directory = directory
        self._release = release
        self._tokens = TokenCodec(release, name=self.url)
        self._dtype = dtype
        self._threads = threads
        self._noise = noise
        self._noise_source = NoiseSource(noise, device=release.device) if noise is not None else None
        self._running = threading.Lock()
        self._is_open = True
        self._queried_tokens = 0
        self._cached_tokens = 0
        self._file_tokens = 0

    @property
    def kind(self) -> EngineKind:
        """Always `local`."""
        return EngineKind.LOCAL

    @property
    def url(self) -> str:
        """The directory."""
        return str(self._directory)

    @property
    def name(self) -> None:
        """None: it has no address."""

    @property
    def rank(self) -> None:
        """None: it has one cache."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self.shape.tokens

    def replica(
        self,
        *,
        directory: Path | None = None,
        cache: BlockCache | None = None,
        key_scheme: KeyScheme = TOKENS_ONLY,
        noise: KernelNoise | None = None,
    ) -> LocalEngine:
        """One more replica of this release: the same weights, loaded once, and a process of its own to whoever asks.

        Whoever asks for it closes it too.

        Args:
            directory: what it calls itself; None for this engine's.
            cache: as for `open_local`.
            key_scheme: likewise.
            noise: likewise.
        """
        engine = LocalEngine(
            directory or self._directory,
            self._release,
            cache or BlockCache(),
            key_scheme,
            shape=self.shape,
            dtype=self._dtype,
            threads=self._threads,
            noise=noise,
        )
        engine.cache.attach()
        return engine

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Gives up its share of the cache; the blocks stay for others who hold it."""
        if self._is_open:
            self._is_open = False
            self.cache.detach()

    async def identify(self) -> EngineIdentity:
        """Who answers; the version is that of transformers and torch."""
        versions = self._release.versions
        return EngineIdentity(
            kind=self.kind,
            url=self.url,
            version=" ".join(f"{name} {version}" for name, version in versions.items()),
            model=self._directory.resolve().name,
            context_tokens=self._release.context_tokens,
            process=self.process,
            capacity_tokens=self.cache.max_bytes // (2 * self.shape.half_bytes) * self.block_tokens,
            capabilities=Capabilities(
                has_salt=True,
                has_bypass=True,
                has_tokenize=True,
                has_flush=not self.cache.has_files,
                cache_outlives_process=not self.cache.has_single_writer,
                block_tokens=self.block_tokens,
            ),
            labels={"root": self.url},
            runtime={
                "dtype": self._dtype,
                "kv_cache_dtype": self.shape.dtype,
                "attention": self._release.attention,
                **versions,
                **({"device": self._release.device} if self._release.device != "cpu" else {}),
                **({"kernel_noise": str(self._noise)} if self._noise is not None else {}),
            },
        )

    async def current_process(self) -> str:
        """This one."""
        return self.process

    async def tokenize(self, request: Request) -> tuple[int, ...]:
        """[prompt] token ids by the release's own tokenizer and chat template.

        Raises:
            Refused: the body is malformed, or the template refuses the messages.
        """
        return await asyncio.to_thread(self._tokens.encode, request)

    async def complete(self, request: Request) -> Observation:
        """What one request shows; TTFT is told whether or not the request streams.

        A request that bypasses the cache reads nothing from it, and writes the blocks that are not there yet.

        Raises:
            UsageError: `max_tokens` or `top_logprobs` out of range.
            PromptTooLong: prompt and generation do not fit the context.
            Refused: the body is malformed, or the template refuses the messages.
            InputError: the cache's directory cannot be written, or the model does not run: memory is short, for one.
        """
        started = time.perf_counter()
        return await asyncio.to_thread(self._complete, request, started=started)

    def beside(self, noise: KernelNoise | None) -> LocalEngine:
        """Another worker of the same weights on the same cache, with other noise: what this one does in another batch.

        Whoever asks for it closes it too.
        """
        return self.replica(cache=self.cache, key_scheme=self.key_scheme, noise=noise)

    async def reread(self, request: Request, *, times: int) -> tuple[Observation, ...]:
        """What so many passes over what is cached show at the first token; nothing is kept, and nothing counted.

        Where noise is in the logits alone, the passes up to there are one and the same, and made once.

        Raises:
            PromptTooLong: prompt and generation do not fit the context.
            Refused: the body is malformed, or the template refuses the messages.
        """
        return await asyncio.to_thread(self._reread, request, times=times)

    async def complete_together(self, requests: Sequence[Request]) -> tuple[Observation, ...]:
        """What requests show that are computed in one batch, as servers do; greedy, to `max_tokens` whatever comes.

        Raises:
            UsageError: they differ in length, in what they hit, or in how much they generate.
            PromptTooLong: prompt and generation do not fit the context.
            Refused: a body is malformed, or the template refuses the messages.
        """
        return await asyncio.to_thread(self._complete_together, requests)

    async def counters(self) -> Counters:
        """Its own counters; requests that bypass the cache are not looked up, and not counted."""
        return Counters(
            queried_tokens=self._queried_tokens,
            cached_tokens=self._cached_tokens - self._file_tokens,
            external_cached_tokens=self._file_tokens if self.cache.has_files else None,
        )

    async def flush(self) -> bool:
        """Empties its memory cache; False when blocks remain in a directory, or when others hold the cache too."""
        if self.cache.is_shared:
            return False
        return self.cache.clear()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One request computes at a time; what torch and the model raise meanwhile is told as an error of ours."""
        with self._running, computing(self._directory):
            yield

    def _complete(self, request: Request, *, started: float) -> Observation:
        refuse_slot(request, url=self.url)
        token_ids = self._tokens.encode(request)
        self._check_fits(token_ids, request)
        keys = self.key_scheme.block_keys(token_ids, block_tokens=self.block_tokens, salt=request.salt)
        with self._alone():
            cached: tuple[Block, ...] = ()
            if not request.bypasses_cache:
                usable = cacheable_blocks(len(token_ids), self.block_tokens)
                found = self.cache.prefix(keys[:usable], self.shape)
                cached = found.blocks
                self._queried_tokens += len(token_ids)
                self._cached_tokens += len(cached) * self.block_tokens
                self._file_tokens += found.from_files * self.block_tokens
            return self._answer(
                token_ids,
                cached,
                request,
                started=started,
                kept_blocks=self._kept_blocks(keys),
                keep=lambda kv: self.cache.store(keys, self.shape, lambda index: cut_block(kv, index, self.shape)),
            )

    def _complete_together(self, requests: Sequence[Request]) -> tuple[Observation, ...]:
        import torch

        started = time.perf_counter()
        ids = [self._tokens.encode(request) for request in requests]
        keys = []
        for request, token_ids in zip(requests, ids, strict=True):
            self._check_fits(token_ids, request)
            own = self.key_scheme.block_keys(token_ids, block_tokens=self.block_tokens, salt=request.salt)
            keys.append(own)
        usable = cacheable_blocks(len(ids[0]), self.block_tokens)
        with self._alone(), torch.inference_mode():
            found = [self.cache.prefix(own[:usable], self.shape).blocks for own in keys]
            rows = zip(ids, found, requests, strict=True)
            alike = {(len(row), len(hit), request.max_tokens) for row, hit, request in rows}
            if len(alike) != 1:
                raise UsageError(
                    f"{self.url} in process: prompts of one batch have one length, one hit and one budget, not {alike}"
                )
            ((_, hit_blocks, steps),) = alike
            kv = self._restore_rows(found, kept_blocks=len(keys[0]))
            rest = [list(token_ids[hit_blocks * self.block_tokens :]) for token_ids in ids]
            made: list[list[GeneratedToken]] = [[] for _ in requests]
            for step in range(steps):
                logits = self._off(run_model(self._release, torch.tensor(rest, device=self._release.device), kv))
                if step == 0:
                    for row, own in enumerate(keys):
                        cut = functools.partial(cut_block, kv, shape=self.shape, row=row)
                        self.cache.store(own, self.shape, cut)
                for row, request in enumerate(requests):
                    made[row].append(self._choose(logits[row], top=request.top_logprobs))
                rest = [[_chosen(tokens[-1])] for tokens in made]
        return tuple(
            Observation(
                text=self._tokens.text([_chosen(token) for token in tokens]),
                tokens=tuple(tokens),
                prompt_tokens=len(token_ids),
                cached_tokens=hit_blocks * self.block_tokens,
                total_s=time.perf_counter() - started,
                finish_reason="length",
                model=self._directory.resolve().name,
            )
            for token_ids, tokens in zip(ids, made, strict=True)
        )

    def _reread(self, request: Request, *, times: int) -> tuple[Observation, ...]:
        import torch

        started = time.perf_counter()
        token_ids = self._tokens.encode(request)
        self._check_fits(token_ids, request)
        keys = self.key_scheme.block_keys(token_ids, block_tokens=self.block_tokens, salt=request.salt)
        usable = cacheable_blocks(len(token_ids), self.block_tokens)
        one_pass = self._noise is None or not self._noise.read
        with self._alone(), torch.inference_mode():
            cached = self.cache.prefix(keys[:usable], self.shape).blocks
            rest = token_ids[len(cached) * self.block_tokens :]
            passes = (self._exact(rest, self._restore(cached, kept_blocks=0)) for _ in range(1 if one_pass else times))
            logits = [self._off(exact) for exact in passes for _ in range(times if one_pass else 1)]
            tokens = [self._choose(one, top=request.top_logprobs) for one in logits]
        return tuple(
            Observation(
                text=token.token,
                tokens=(token,),
                prompt_tokens=len(token_ids),
                cached_tokens=len(cached) * self.block_tokens,
                total_s=time.perf_counter() - started,
                finish_reason="length",
                model=self._directory.resolve().name,
            )
            for token in tokens
        )

    def _kept_blocks(self, keys: Sequence[bytes]) -> int:
        """Blocks of a prompt that go into the cache, or lie there; none where all do, and the pass only reads."""
        if self._noise_source is None or len(self.cache.prefix(keys, self.shape).blocks) == len(keys):
            return 0
        return len(keys)

    def _check_fits(self, token_ids: Sequence[int], request: Request) -> None:
        if request.max_tokens < 1 or request.top_logprobs < 0:
            raise UsageError(f"{self.url} in process: max_tokens must be at least 1, top_logprobs at least 0")
        context = self._release.context_tokens
        if context is not None and len(token_ids) + request.max_tokens > context:
            raise PromptTooLong(
                f"{self.url} in process: {len(token_ids)} prompt tokens and {request.max_tokens} to generate do not "
                f"fit its context of {context}"
            )

    def _answer(
        self,
        token_ids: Sequence[int],
        cached: Sequence[Block],
        request: Request,
        *,
        started: float,
        kept_blocks: int = 0,
        keep: Callable[[KvCache], None] | None = None,
    ) -> Observation:
        """Greedy generation over cached blocks; `keep` gets the KV of the whole prompt, to keep that many blocks."""
        import torch

        stop = stop_rule_of(request)
        with torch.inference_mode():
            kv = self._restore(cached, kept_blocks=kept_blocks)
            logits = self._forward(token_ids[len(cached) * self.block_tokens :], kv)
            tokens = [self._choose(logits, top=request.top_logprobs)]
            ttft_s = time.perf_counter() - started
            if keep is not None:
                keep(kv)
            generated = [_chosen(tokens[-1])]
            while (finish_reason := self._finish_reason(generated, stop, request)) is None:
                logits = self._forward(generated[-1:], kv)
                tokens.append(self._choose(logits, top=request.top_logprobs))
                generated.append(_chosen(tokens[-1]))
        text = self._tokens.text_before(stop.texts, generated)
        return Observation(
            text=self._tokens.text(generated) if text is None else text,
            tokens=tuple(tokens),
            prompt_tokens=len(token_ids),
            cached_tokens=len(cached) * self.block_tokens,
            ttft_s=ttft_s,
            total_s=time.perf_counter() - started,
            finish_reason=finish_reason,
            model=self._directory.resolve().name,
        )

    def _finish_reason(self, generated: Sequence[int], stop: StopRule, request: Request) -> str | None:
        """Why a generation ends here, None when it goes on."""
        end_ids = stop.token_ids | (frozenset() if stop.ignores_eos else self._release.eos_ids)
        if generated[-1] in end_ids or self._tokens.text_before(stop.texts, generated) is not None:
            return "stop"
        return "length" if len(generated) == request.max_tokens else None

    def _forward(self, token_ids: Sequence[int], kv: KvCache) -> torch.Tensor:
        """[vocabulary] logits after the last token, noise included; `kv` grows by the tokens."""
        return self._off(self._exact(token_ids, kv))

    def _exact(self, token_ids: Sequence[int], kv: KvCache) -> torch.Tensor:
        """[vocabulary] logits after the last token; `kv` grows by the tokens."""
        import torch

        if self._threads is not None:
            torch.set_num_threads(self._threads)  # worker threads do not inherit it
        return run_model(self._release, torch.tensor([list(token_ids)], device=self._release.device), kv)[0]

    def _off(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self._noise_source is None else self._noise_source.disturb_logits(logits)

    def _choose(self, logits: torch.Tensor, *, top: int) -> GeneratedToken:
        logprobs = logits.float().log_softmax(-1)
        chosen = int(logprobs.argmax())
        logprob = float(logprobs[chosen])
        best = logprobs.topk(min(top, len(logprobs)))
        return GeneratedToken(
            token=self._tokens.spell(chosen),
            token_id=chosen,
            logprob=None if math.isnan(logprob) else logprob,
            top=tuple(
                TopLogprob(token=self._tokens.spell(token_id), logprob=value)
                for value, token_id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
                if math.isfinite(value)
            ),
        )

    def _restore(self, blocks: Sequence[Block], *, kept_blocks: int) -> KvCache:
        """A cache of transformers that holds these blocks, the first of those that will be kept."""
        return self._restore_rows([blocks], kept_blocks=kept_blocks)

    def _restore_rows(self, rows: Sequence[Sequence[Block]], *, kept_blocks: int) -> KvCache:
        """The same for a batch, whose rows hold as many blocks each."""
        kv = cast(KvCache, self._release.empty_kv())
        if rows[0]:
            append_blocks(kv, rows, dtype=self._dtype, device=self._release.device)
        if self._noise_source is not None:
            self._noise_source.disturb(kv, kept_tokens=kept_blocks * self.block_tokens)
        return kv

    def _blocks(self, token_ids: Sequence[int], scratch: BlockCache, *, salt: str | None) -> list[Block]:
        """[usable blocks] of a prompt under these weights, computed where neither cache has them from this engine."""
        import torch

        usable = cacheable_blocks(len(token_ids), self.block_tokens)
        prefix = token_ids[: usable * self.block_tokens]
        keys = KeyScheme(namespace=self.process).block_keys(prefix, block_tokens=self.block_tokens)
        own_keys = self.key_scheme.block_keys(prefix, block_tokens=self.block_tokens, salt=salt)
        with self._alone(), torch.inference_mode():
            blocks = list(scratch.prefix(keys, self.shape).blocks)
            if len(blocks) < usable and self.cache.has_single_writer:
                own = self.cache.prefix(own_keys, self.shape).blocks
                blocks += own[len(blocks) :]
            if len(blocks) < usable:
                kv = self._restore(blocks, kept_blocks=usable)
                self._forward(prefix[len(blocks) * self.block_tokens :], kv)
                blocks += [cut_block(kv, index, self.shape) for index in range(len(blocks), usable)]
                scratch.store(keys, self.shape, blocks.__getitem__)
        return blocks

    def _answer_over(self, token_ids: Sequence[int], blocks: Sequence[Block], request: Request) -> Observation:
        with self._alone():
            return self._answer(token_ids, blocks, request, started=time.perf_counter())


async def stale_and_clean(
    old: LocalEngine,
    new: LocalEngine,
    request: Request,
    *,
    scratch: BlockCache | None = None,
    stale_from: int = 0,
    hit_tokens: int | None = None,
) -> tuple[Observation, Observation]:
    """What `new` answers over KV that `old` computed, and over its own: both are hits of the same length.

    This is what a tokens-only key does after an upgrade, without an engine to upgrade. Neither engine's own cache is
    written, nor read unless all that is in it is its own. Prompts shorter than a block and a token have nothing to be
    stale in: `cached_tokens` is then 0.

    Args:
        old: the release before.
        new: the release whose answer is wanted; its tokenizer and template make the token ids.
        request: its salt does not matter.
        scratch: keeps the blocks of both between calls, so that a shared system prompt is computed once; None for the
            one that `new` has.
        stale_from: leading tokens that `new` computed itself, whole blocks of them; what follows is `old`'s.
        hit_tokens: how much of the prompt is a hit, whole blocks of it; None for as much as can be.

    Raises:
        UnsupportedRelease: no block of `old` can be hit by `new`: their KV has other shapes, or `old` does not know
            a token of the prompt.
        PromptTooLong: prompt and generation do not fit the context of either.
        Refused: the body is malformed.
    """
    return await asyncio.to_thread(
        _stale_and_clean, old, new, request, scratch or new.scratch, stale_from=stale_from, hit_tokens=hit_tokens
    )


def _stale_and_clean(
    old: LocalEngine,
    new: LocalEngine,
    request: Request,
    scratch: BlockCache,
    *,
    stale_from: int,
    hit_tokens: int | None,
) -> tuple[Observation, Observation]:
    if old.shape != new.shape:
        raise UnsupportedRelease(f"KV of {old.url} is {old.shape}, of {new.url} {new.shape}: none can be stale")
    token_ids = new._tokens.encode(request)
    for engine in (new, old):
        engine._check_fits(token_ids, request)
    if max(token_ids) >= old._release.vocabulary:
        raise UnsupportedRelease(f"{old.url} lacks a token of the prompt as {new.url} reads it: none can be stale")
    first = stale_from // new.block_tokens
    hit = None if hit_tokens is None else hit_tokens // new.block_tokens
    theirs = old._blocks(token_ids, scratch, salt=request.salt)
    ours = new._blocks(token_ids, scratch, salt=request.salt)
    stale = new._answer_over(token_ids, [*ours[:first], *theirs[first:]][:hit], request)
    clean = new._answer_over(token_ids, ours[:hit], request)
    return stale, clean


def _chosen(token: GeneratedToken) -> int:
    assert token.token_id is not None
    return token.token_id
